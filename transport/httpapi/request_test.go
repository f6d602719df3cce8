package httpapi

import (
	"math"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/test/apitest"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
	"github.com/sluicecluster/sluice/transport/internal/httpbody"
)

func TestReadEveryField(t *testing.T) {
	b := limiter.NewBatch()
	defer b.Release()
	many, err := readCall([]byte(`{
		"verb": "refund", "cost": 9223372036854775807, "domain": "d\u00e9",
		"descriptor": [{"key": "k", "value": "v"}, {"value": "", "key": "only"}],
		"limits": [
			{"algorithm":"token_bucket","count":1,"period":0.000001,"burst":2,"weight":3,"refill":"interval","align":"first_hit","min_interval":2.5,"block_for":0.5,"soft":10,"count_denied":true},
			{"count":7,"align":"calendar","unit":"month","timezone":"Europe/Berlin"},
			{"algorithm":"sliding_window","period":3155760000,"sub_windows":5},
			{"algorithm":"sliding_log","log_entries":6},
			{"unlimited":true}
		]}`), b, checkFields, callOptions, atomicInto(b))
	if err != nil || many || len(b.Checks) != 1 {
		t.Fatal(many, err, len(b.Checks))
	}
	c := b.Checks[0]
	if c.Domain != "dé" || c.Cost != math.MaxInt64 || c.Verb != bucket.Refund || c.Err != nil {
		t.Errorf("%+v", c)
	}
	if d := c.Descriptor; len(d) != 2 || d[0] != (rules.Entry{Key: "k", Value: "v"}) || d[1] != (rules.Entry{Key: "only"}) {
		t.Errorf("descriptor %+v", d)
	}
	want := []bucket.Limit{
		{Algorithm: bucket.TokenBucket, Count: 1, Period: time.Microsecond, Burst: 2, Cost: 3, Refill: bucket.RefillInterval,
			Align: bucket.AlignFirstHit, MinInterval: 2500 * time.Millisecond, BlockFor: 500 * time.Millisecond, Soft: 10, CountDenied: true},
		{Algorithm: bucket.FixedWindow, Count: 7, Align: bucket.AlignCalendar, Unit: bucket.Month, Zone: "Europe/Berlin"},
		{Algorithm: bucket.SlidingWindow, Period: bucket.MaxPeriod, SubWindows: 5},
		{Algorithm: bucket.SlidingLog, LogEntries: 6},
		{Algorithm: bucket.FixedWindow, Unlimited: true},
	}
	if !slices.Equal(c.Limits, want) {
		t.Errorf("limits %+v\nwant %+v", c.Limits, want)
	}
}

// badBodies are bodies that are rejected whole: where, and a part of the reason.
var badBodies = []struct{ name, body, field, reason string }{
	{"empty", "", "", "empty body"},
	{"blank", " \n\t", "", "empty body"},
	{"not JSON", "domain=shop", "", "malformed JSON"},
	{"cut short", `{"domain":"shop"`, "", "ends too early"},
	{"cut short in a list", `{"checks":[{"domain":"shop"}`, "checks", "ends too early"},
	{"cut short in a string", `{"domain":"sho`, "domain", "ends too early"},
	{"missing colon", `{"domain" "shop"}`, "domain", "malformed JSON"},
	{"comma too many", `{"domain":"shop",}`, "", "malformed JSON"},
	{"key without quotes", `{domain:"shop"}`, "", "malformed JSON"},
	{"wrong bracket", `{"checks":[}`, "checks", "malformed JSON"},
	{"more after the end", `{} {}`, "", "after the end"},
	{"garbage after the end", `{"domain":"shop"}x`, "", "after the end"},
	{"an array", `[]`, "", "want an object, found an array"},
	{"a string", `"check"`, "", "want an object, found a string"},
	{"null", `null`, "", "want an object, found null"},
	{"unknown field", `{"domian":"shop"}`, "", `unknown field "domian"; want one of domain, descriptor`},
	{"field in the wrong case", `{"Domain":"shop"}`, "", "unknown field"},
	{"unknown field of a check", `{"checks":[{"Cost":1}]}`, "checks[0]", "unknown field"},
	{"unknown field of an entry", `{"descriptor":[{"key":"a"},{"name":"b"}]}`, "descriptor[1]", "unknown field"},
	{"unknown field of a limit", `{"checks":[{},{"limits":[{"rate":1}]}]}`, "checks[1].limits[0]", "unknown field"},
	{"field twice", `{"cost":1,"cost":2}`, "", "twice"},
	{"field twice, escaped", `{"cost":1,"\u0063ost":2}`, "", "twice"},
	{"null field", `{"cost":null}`, "cost", "want a number, found null"},
	{"domain a number", `{"domain":1}`, "domain", "want a string, found a number"},
	{"cost a string", `{"cost":"1"}`, "cost", "want a number, found a string"},
	{"cost a fraction", `{"cost":1.5}`, "cost", "want a whole number"},
	{"cost in powers", `{"cost":1e3}`, "cost", "want a whole number"},
	{"cost beyond int64", `{"cost":9223372036854775808}`, "cost", "out of range"},
	{"descriptor an object", `{"descriptor":{"key":"a"}}`, "descriptor", "want an array, found an object"},
	{"entry without a value", `{"descriptor":["a"]}`, "descriptor[0]", `"a" has no =; want "key=value"`},
	{"entry a number", `{"descriptor":[1]}`, "descriptor[0]", `want an object, or a string "key=value", found a number`},
	{"entry an array", `{"descriptor":[["a","b"]]}`, "descriptor[0]", `want an object, or a string "key=value", found an array`},
	{"value an array", `{"descriptor":[{"value":[]}]}`, "descriptor[0].value", "want a string, found an array"},
	{"checks an object", `{"checks":{}}`, "checks", "want an array"},
	{"all_or_nothing a number", `{"checks":[],"all_or_nothing":1}`, "all_or_nothing", "want true or false, found a number"},
	{"period a string", `{"limits":[{"period":"1m"}]}`, "limits[0].period", "want a number of seconds, for example 60, found a string"},
	{"period out of range", `{"limits":[{"period":1e300}]}`, "limits[0].period", "out of range"},
	{"period at the very end", `{"limits":[{"period":9223372036.854775807}]}`, "limits[0].period", "out of range"},
	{"soft beyond int32", `{"limits":[{"soft":2147483648}]}`, "limits[0].soft", "out of range"},
	{"one check and a list", `{"domain":"shop","checks":[]}`, "checks", "beside"},
	{"a list and one check", `{"checks":[],"domain":"shop"}`, "domain", "beside checks"},
	{"bad bytes", "{\"domain\":\"\xff\"}", "", "not UTF-8"},
	{"bad bytes after the end", "{}\xff", "", "not UTF-8"},
	{"byte order mark", "\ufeff{}", "", "malformed JSON"},
	{"deep", strings.Repeat("[", 100_000), "", "want an object, found an array"},
	{"deep in a field", `{"domain":` + strings.Repeat("[", 100_000), "domain", "want a string, found an array"},
}

func TestBadBodies(t *testing.T) {
	node := apitest.NewNode(t)
	h := newAPI(t, newLimiter(t, node))
	for _, c := range badBodies {
		w, m := call(t, h, http.MethodPost, "/v1/check", c.body)
		detail, _ := m["detail"].(string)
		field, _ := m["field"].(string)
		offset, ok := m["offset"].(float64)
		if w.Code != 400 || w.Header().Get("Content-Type") != httpanswer.TypeProblem || field != c.field || !strings.Contains(detail, c.reason) {
			t.Errorf("%s: %d %s\nwant field %q, reason %q", c.name, w.Code, w.Body, c.field, c.reason)
		}
		if !ok || offset < 0 || offset > float64(len(c.body)) {
			t.Errorf("%s: offset %v of %d bytes", c.name, m["offset"], len(c.body))
		}
	}
	if n := node.Asked.Load(); n != 0 {
		t.Errorf("%d checks were decided", n)
	}
}

// One check that is not well formed, and a call that is of none or too many.
func TestBadChecks(t *testing.T) {
	long := strings.Repeat("x", limiter.MaxText+1)
	for _, c := range []struct{ name, body, field string }{
		{"no field", `{}`, "domain"},
		{"no descriptor", `{"domain":"shop"}`, "descriptor"},
		{"too many entries", `{"domain":"shop","descriptor":[` + strings.Repeat(`{"key":"k"},`, 5000) + `{"key":"k"}]}`, "descriptor"},
		{"long key", `{"domain":"shop","descriptor":[{"key":"` + long + `"}]}`, "descriptor[0].key"},
		{"negative cost", user("x", `,"cost":-1`), "cost"},
		{"unknown verb", user("x", `,"verb":"reset"`), "verb"},
		{"long word", user("x", `,"verb":"`+strings.Repeat("y", 1_000_000)+`"`), "verb"},
		{"unknown algorithm", user("x", `,"limits":[{"count":1,"period":1},{"algorithm":"gcra"}]`), "limits[1].algorithm"},
		{"zero period", user("x", `,"limits":[{"count":1}]`), "limits[0].period"},
		{"negative period", user("x", `,"limits":[{"count":1,"period":-1}]`), "limits[0].period"},
		{"too many limits", user("x", `,"limits":[`+strings.Repeat(`{"count":1,"period":1},`, 5000)+`{}]`), "limits"},
		{"no checks", `{"checks":[]}`, "checks"},
		{"too many checks", `{"checks":[` + strings.Repeat(`{},`, limiter.MaxChecks) + `{}]}`, "checks"},
	} {
		node := apitest.NewNode(t)
		w, m := post(t, newAPI(t, newLimiter(t, node)), c.body, http.StatusBadRequest)
		if len(w.Body.Bytes()) > 1000 {
			t.Errorf("%s: %d bytes of answer", c.name, w.Body.Len())
		}
		if m["code"] != "invalid" || m["field"] != c.field || !strings.HasPrefix(m["detail"].(string), c.field+": ") {
			t.Errorf("%s: %s", c.name, w.Body)
		}
		if node.Asked.Load() != 0 {
			t.Errorf("%s: it was decided", c.name)
		}
	}
}

// A limit without its period: the error has an example.
func TestNoPeriod(t *testing.T) {
	_, m := post(t, newAPI(t, newLimiter(t, apitest.NewNode(t))), user("x", `,"limits":[{"count":1}]`), http.StatusBadRequest)
	if m["detail"] != "limits[0].period: is missing; give the time that count is for, for example 60 seconds" {
		t.Errorf("%v", m)
	}
}

func TestBodyLimit(t *testing.T) {
	h := newAPI(t, newLimiter(t, apitest.NewNode(t)))
	fits := user("x", "")
	fits += strings.Repeat(" ", httpbody.Most-len(fits))
	post(t, h, fits, 200)
	if w, m := post(t, h, fits+" ", http.StatusRequestEntityTooLarge); !strings.Contains(m["detail"].(string), "4194304 bytes") {
		t.Errorf("%s", w.Body)
	}
	// Without a length announced.
	r, err := http.NewRequest(http.MethodPost, "/v1/check", struct{ *strings.Reader }{strings.NewReader(fits + " ")})
	if err != nil {
		t.Fatal(err)
	}
	r.ContentLength = -1
	if w := serve(h, r); w.Code != http.StatusRequestEntityTooLarge {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
