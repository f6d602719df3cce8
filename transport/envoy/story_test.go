package envoy

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sluicecluster/sluice/test/apitest"
)

// tell asks an API to a node with rules what each line says, and compares the answer. A line is
//
//	TIME DESCRIPTOR | DESCRIPTOR … -> ANSWER
//
// where TIME is since apitest.Start, and a DESCRIPTOR its entries key=value, with what is not
// an entry behind a plus: +hits=N, +back (negative hits), +limit=N/UNIT or N/UNIT*M. On the first
// one, +all=N are the request's own hits_addend, and +domain=D is its domain, else "d".
func tell(t *testing.T, rules string, change func(*Config), lines string) {
	t.Helper()
	n := apitest.NewNode(t)
	c := Config{Limiter: newLimiter(t, n, rules)}
	if change != nil {
		change(&c)
	}
	d := open(t, c)
	for line := range strings.Lines(lines) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		at, rest, _ := strings.Cut(line, " ")
		since, err := time.ParseDuration(at)
		asked, want, ok := strings.Cut(rest, "->")
		if err != nil || !ok {
			t.Fatalf("%s: no time, or no answer", line)
		}
		n.Now.Store(apitest.Start + int64(since))
		res, err := d.ShouldRateLimit(t.Context(), parseRequest(t, asked))
		if err != nil {
			t.Errorf("%s\ngot error %v", line, err)
		} else if got := show(res); got != strings.TrimSpace(want) {
			t.Errorf("%s\ngot %s", line, got)
		}
	}
}

func parseRequest(t *testing.T, text string) *ratelimitv3.RateLimitRequest {
	t.Helper()
	req := &ratelimitv3.RateLimitRequest{Domain: "d"}
	for part := range strings.SplitSeq(text, "|") {
		d := new(commonv3.RateLimitDescriptor)
		req.Descriptors = append(req.Descriptors, d)
		for word := range strings.FieldsSeq(part) {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "+hits":
				d.HitsAddend = wrapperspb.UInt64(number(t, value))
			case "+back":
				d.IsNegativeHits = true
			case "+limit":
				d.Limit = parseLimit(t, value)
			case "+all":
				req.HitsAddend = uint32(number(t, value))
			case "+domain":
				req.Domain = value
			default:
				d.Entries = append(d.Entries, &commonv3.RateLimitDescriptor_Entry{Key: key, Value: value})
			}
		}
	}
	return req
}

func parseLimit(t *testing.T, text string) *override {
	count, unit, _ := strings.Cut(text, "/")
	unit, times, multiplied := strings.Cut(unit, "*")
	o := &override{RequestsPerUnit: uint32(number(t, count)), Unit: typev3.RateLimitUnit(typev3.RateLimitUnit_value[unit])}
	if multiplied {
		o.UnitMultiplier = wrapperspb.UInt32(uint32(number(t, times)))
	}
	return o
}

func number(t *testing.T, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

var codeNames = map[ratelimitv3.RateLimitResponse_Code]string{
	ratelimitv3.RateLimitResponse_UNKNOWN:    "unknown",
	ratelimitv3.RateLimitResponse_OK:         "ok",
	ratelimitv3.RateLimitResponse_OVER_LIMIT: "over",
}

// show writes a response in short: the code of the whole and each status, for example
// "over: ok 3/MINUTE left=2 reset=1m0s; over".
func show(res *ratelimitv3.RateLimitResponse) string {
	var statuses []string
	for _, s := range res.GetStatuses() {
		text := codeNames[s.GetCode()]
		if l := s.GetCurrentLimit(); l != nil {
			text += fmt.Sprintf(" %d/%v", l.GetRequestsPerUnit(), l.GetUnit())
			if l.GetName() != "" {
				text += " " + l.GetName()
			}
		}
		if s.GetCurrentLimit() != nil || s.GetLimitRemaining() != 0 {
			text += fmt.Sprint(" left=", s.GetLimitRemaining())
		}
		if s.GetDurationUntilReset() != nil {
			text += fmt.Sprint(" reset=", s.GetDurationUntilReset().AsDuration())
		}
		statuses = append(statuses, text)
	}
	return codeNames[res.GetOverallCode()] + ": " + strings.Join(statuses, "; ")
}
