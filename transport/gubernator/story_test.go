package gubernator

import (
	"strconv"
	"strings"
	"testing"
	"time"

	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	"github.com/sluicecluster/sluice/test/apitest"
)

// tell plays a story on one counter of a node of its own. Each line is a request and the answer
// that it must have, for example
//
//	1m30s hits=2 limit=10 : under left=8 reset=2m
//
// The time, and that of the reset, is since apitest.Start, the midnight of Wednesday,
// 15 November 2023; reset=0 is none. Fields that a line leaves out are those of usual.
func tell(t *testing.T, usual, lines string) {
	t.Helper()
	d, n := openNode(t)
	for _, line := range strings.Split(strings.TrimSpace(lines), "\n") {
		line = strings.TrimSpace(line)
		question, want, ok := strings.Cut(line, ":")
		at, question, _ := strings.Cut(strings.TrimSpace(question), " ")
		if !ok {
			t.Fatalf("%q has no answer", line)
		}
		n.Now.Store(apitest.Start + int64(duration(t, at)))
		r := get(t, d, requestOf(t, usual+" "+question))[0]
		if got := spell(r); got != strings.TrimSpace(want) {
			t.Errorf("%s\n\tanswered: %s", line, got)
		}
	}
}

// requestOf reads name=value pairs; later ones win.
func requestOf(t *testing.T, text string) *gubernatorv1.RateLimitReq {
	t.Helper()
	q := &gubernatorv1.RateLimitReq{Name: "story", UniqueKey: "k"}
	for _, pair := range strings.Fields(text) {
		name, value, _ := strings.Cut(pair, "=")
		switch name {
		case "hits":
			q.Hits = number(t, value)
		case "limit":
			q.Limit = number(t, value)
		case "burst":
			q.Burst = number(t, value)
		case "duration": // milliseconds, unless it has a unit
			if ms, err := strconv.ParseInt(value, 10, 64); err == nil {
				q.Duration = ms
			} else {
				q.Duration = duration(t, value).Milliseconds()
			}
		case "algorithm":
			q.Algorithm = gubernatorv1.Algorithm(gubernatorv1.Algorithm_value[value])
		case "behavior":
			q.Behavior = 0
			for _, bit := range strings.Split(value, "+") {
				b, ok := gubernatorv1.Behavior_value[bit]
				if !ok {
					t.Fatalf("no behavior %s", bit)
				}
				q.Behavior |= gubernatorv1.Behavior(b)
			}
		default:
			t.Fatalf("no field %s", name)
		}
	}
	return q
}

// spell is what a story says of an answer.
func spell(r *gubernatorv1.RateLimitResp) string {
	if r.GetError() != "" {
		return "error " + r.GetError()
	}
	text := "under"
	if r.GetStatus() == gubernatorv1.Status_OVER_LIMIT {
		text = "over"
	}
	text += " left=" + strconv.FormatInt(r.GetRemaining(), 10)
	if r.GetResetTime() == 0 {
		return text + " reset=0"
	}
	since := time.Duration(r.GetResetTime()-apitest.Start/int64(time.Millisecond)) * time.Millisecond
	d := since.String()
	if strings.HasSuffix(d, "m0s") {
		d = strings.TrimSuffix(d, "0s")
	}
	if strings.HasSuffix(d, "h0m") {
		d = strings.TrimSuffix(d, "0m")
	}
	return text + " reset=" + d
}

func number(t *testing.T, text string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func duration(t *testing.T, text string) time.Duration {
	t.Helper()
	d, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return d
}
