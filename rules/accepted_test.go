package rules_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
)

// TestLimitsAsRead: what each way of writing a limit means.
func TestLimitsAsRead(t *testing.T) {
	const day = 24 * time.Hour
	window := func(count int64, period time.Duration) bucket.Limit {
		return bucket.Limit{Algorithm: bucket.FixedWindow, Count: count, Period: period}
	}
	for _, c := range []struct {
		limit string
		want  bucket.Limit
	}{
		{"unit: second, requests_per_unit: 1", window(1, time.Second)},
		{"unit: minute, requests_per_unit: 2", window(2, time.Minute)},
		{"unit: hour, requests_per_unit: 3", window(3, time.Hour)},
		{"unit: day, requests_per_unit: 4", window(4, day)},
		{"unit: week, requests_per_unit: 5", window(5, 7*day)},
		{"unit: month, requests_per_unit: 6", window(6, 30*day)},
		{"unit: year, requests_per_unit: 4294967295", window(4294967295, 365*day)},
		{"unit: DAY, requests_per_unit: 0", window(0, day)},
		{"unit: Minute, requests_per_unit: 0x10, name: n, unlimited: no", window(16, time.Minute)},
		{"unit: day", window(0, day)},
		{"period: 1h30m, count: 9223372036854775807", window(9223372036854775807, 90*time.Minute)},
		{"period: 7d, count: 1", window(1, 7*day)},
		{"period: 2w, count: 1", window(1, 14*day)},
		{"period: 1d12h, count: 1, algorithm: fixed_window, align: first_hit", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: 36 * time.Hour, Align: bucket.AlignFirstHit}},
		{"unit: month, count: 1, align: calendar", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Align: bucket.AlignCalendar, Unit: bucket.Month}},
		{"unit: week, count: 1, align: calendar, timezone: Asia/Tokyo", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Align: bucket.AlignCalendar, Unit: bucket.Week, Zone: "Asia/Tokyo"}},
		{"unit: minute, count: 3, algorithm: token_bucket, refill: interval, align: epoch", bucket.Limit{Algorithm: bucket.TokenBucket, Count: 3, Period: time.Minute, Refill: bucket.RefillInterval}},
		{"unit: minute, count: 3, algorithm: token_bucket, refill: continuous, burst: 9, weight: 2", bucket.Limit{Algorithm: bucket.TokenBucket, Count: 3, Period: time.Minute, Burst: 9, Cost: 2}},
		{"period: 1s, count: 3, algorithm: leaky_bucket, burst: 1", bucket.Limit{Algorithm: bucket.LeakyBucket, Count: 3, Period: time.Second, Burst: 1}},
		{"period: 1us, count: 3, algorithm: leaky_queue", bucket.Limit{Algorithm: bucket.LeakyQueue, Count: 3, Period: time.Microsecond}},
		{"period: 1s, count: 3, algorithm: sliding_log, log_entries: 65536, count_denied: on, min_interval: 250ms", bucket.Limit{Algorithm: bucket.SlidingLog, Count: 3, Period: time.Second, LogEntries: 65536, CountDenied: true, MinInterval: 250 * time.Millisecond}},
		{"period: 1m, count: 3, block_for: 10m", bucket.Limit{Algorithm: bucket.FixedWindow, Count: 3, Period: time.Minute, BlockFor: 10 * time.Minute}},
		{"period: 1s, count: 3, algorithm: sliding_counter, soft: 1000%", bucket.Limit{Algorithm: bucket.SlidingCounter, Count: 3, Period: time.Second, Soft: 1000}},
		{"count: 3, algorithm: concurrency, weight: 2, align: epoch, count_denied: false", bucket.Limit{Algorithm: bucket.Concurrency, Count: 3, Cost: 2}},
		{"period: 1s, count: 3, algorithm: sliding_window, sub_windows: 3600", bucket.Limit{Algorithm: bucket.SlidingWindow, Count: 3, Period: time.Second, SubWindows: 3600}},
	} {
		set := load(t, one(c.limit))
		r := set.Rules()[0]
		if r.Limits == nil || r.Limits.Len() != 1 || r.Limits.At(0) != c.want {
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.limit, r.Limits, c.want)
		}
		if set.Slots() != (c.want.Algorithm == bucket.Concurrency) {
			t.Errorf("%s: slots are %v", c.limit, set.Slots())
		}
	}
}

// TestRuleAsRead reads every key that stands beside the limits.
func TestRuleAsRead(t *testing.T) {
	set := mustParse(t, `
domain: d
descriptors:
  - key: a
    value: b*
    rate_limit: {name: first, unit: day, requests_per_unit: 1, replaces: [{name: x}, {name: y}]}
    limits:
      - {name: second, period: 1s, count: 2}
      - {period: 1m, count: 3}
    shadow_mode: true
    quota_mode: true
    detailed_metric: true
    value_to_metric: true
    share_threshold: true
    consistency: strict
    replication: sync
    on_failure: closed
    on_partition: open
    unknown_share: none
    on_lost_state: fresh
    cache_denials: false
    response:
      status: 503
      headers: {Retry-After: 5, X-Why: "too much", X-Ok: yes}
      body: no
    metadata: {a: 1, b: {c: [x, true, null, 2.5]}}
`)
	r, _ := set.Match("d", []rules.Entry{{Key: "a", Value: "bc"}})
	if r == nil {
		t.Fatal("no rule")
	}
	if r.Limits.Len() != 3 || r.Limits.At(1).Count != 2 || r.Limits.At(2).Count != 3 {
		t.Errorf("limits %+v", r.Limits)
	}
	if got := fmt.Sprint(r.LimitName(0), r.LimitName(1), r.LimitName(2)); got != "firstsecondfirst#3" {
		t.Errorf("limits are called %s", got)
	}
	got := *r
	got.Limits = nil
	type kept = struct {
		Name, Path, File         string
		Line                     int
		Shadow, Quota, Detailed  bool
		NoDenialCache            bool
		Replaces                 []string
		Consistency, Replication string
		OnFailure, OnPartition   string
		UnknownShare             string
		OnLostState              string
		Response                 rules.Response
		Metadata                 map[string]any
		Entries                  []rules.Entry
	}
	have := kept{r.Name, r.Path, r.File, r.Line, r.Shadow, r.Quota, r.DetailedMetric, r.NoDenialCache, r.Replaces, r.Consistency.String(),
		r.Replication.String(), r.OnFailure.String(), r.OnPartition.String(), r.UnknownShare.String(), r.OnLostState.String(), *r.Response, r.Metadata, r.Entries()}
	want := kept{"first", "d/a=b*", "f.yaml", 4, true, true, true, true, []string{"x", "y"}, "strict", "sync", "closed", "open", "none", "fresh",
		rules.Response{Status: 503, Headers: []rules.Header{{Name: "Retry-After", Value: "5"}, {Name: "X-Why", Value: "too much"}, {Name: "X-Ok", Value: "yes"}}, Body: "no"},
		map[string]any{"a": 1.0, "b": map[string]any{"c": []any{"x", true, nil, 2.5}}},
		[]rules.Entry{{Key: "a", Value: "b*"}}}
	if !reflect.DeepEqual(have, want) {
		t.Errorf("got  %+v\nwant %+v", have, want)
	}
}

func TestDefaults(t *testing.T) {
	set := mustParse(t, `
domain: d
descriptors:
  - key: short
    rate_limit: {unit: second, requests_per_unit: 1}
  - key: ten
    rate_limit: {period: 10s, count: 1}
  - key: mixed
    limits: [{unit: second, count: 1}, {unit: hour, count: 1}]
  - key: calendar
    rate_limit: {unit: minute, count: 1, align: calendar}
  - key: free
    rate_limit: {unlimited: true, requests_per_unit: 7}
  - key: named
    limits: [{unit: day, count: 1, name: only}]
`)
	for i, want := range []string{
		"d/short none strict share share", "d/ten async strict share share", "d/mixed async strict share share",
		"d/calendar async strict share share", "d/free none strict share share", "only async strict share share",
	} {
		r := set.Rules()[i]
		if got := fmt.Sprint(r.Name, " ", r.Replication, " ", r.Consistency, " ", r.OnFailure, " ", r.OnPartition); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if r.Shadow || r.Quota || r.NoDenialCache || r.Response != nil || r.Metadata != nil || r.Replaces != nil {
			t.Errorf("%s: something is set: %+v", r.Name, r)
		}
		if r.Unlimited != (r.Limits == nil) {
			t.Errorf("%s: unlimited %v with limits %v", r.Name, r.Unlimited, r.Limits)
		}
	}
}

// TestShortLimits: each short form is the limit that it stands for.
func TestShortLimits(t *testing.T) {
	for _, c := range []struct{ short, long string }{
		{"5/1m", "{count: 5, period: 1m}"},
		{"0/1h30m", "{count: 0, period: 1h30m}"},
		{"1000/day", "{count: 1000, period: day}"},
		{"1000/day", "{count: 1000, unit: day}"},
		{"7 / WEEK", "{requests_per_unit: 7, period: 7d}"},
		{"3/month", "{count: 3, period: 30d}"},
	} {
		set := load(t, "domain: d\ndescriptors:\n  - {key: a, limits: ["+c.short+", 1/1s]}\n  - {key: b, limits: ["+c.long+", 1/1s]}\n")
		if a, b := set.Rules()[0].Limits.At(0), set.Rules()[1].Limits.At(0); a != b || a.Algorithm != bucket.FixedWindow {
			t.Errorf("%s is %+v, %s is %+v", c.short, a, c.long, b)
		}
	}
	set := mustParse(t, one("period: month, count: 1, align: calendar, timezone: Europe/Berlin"))
	if l := set.Rules()[0].Limits.At(0); l.Unit != bucket.Month || l.Period != 0 {
		t.Errorf("by the calendar: %+v", l)
	}
}

// TestNames: the descriptor's name is the rule's, whatever its limits are called.
func TestNames(t *testing.T) {
	set := mustParse(t, `
domain: d
descriptors:
  - {key: two, name: both, limits: [5/1m, 100/1h]}
  - {key: one, name: rule, limits: [{count: 1, period: 1s, name: limit}]}
  - {key: envoy, name: rule, rate_limit: {requests_per_unit: 1, unit: day, name: limit}, limits: [1/1s]}
  - {key: none, limits: [5/1m, 100/1h]}
`)
	for i, want := range []string{"both: both both#2", "rule: limit", "rule: limit rule#2", "d/none: d/none d/none#2"} {
		r := set.Rules()[i]
		got := r.Name + ":"
		for j := range r.Limits.Len() {
			got += " " + r.LimitName(r.Limits.Place(j))
		}
		if got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestUnmatched: one file of a domain says what becomes of checks without a rule.
func TestUnmatched(t *testing.T) {
	files := []rules.File{
		{Name: "a.yaml", Data: []byte("domain: d\nunmatched: deny\n")}, {Name: "b.yaml", Data: []byte("domain: d\n")},
		{Name: "c.yaml", Data: []byte("domain: e\n")}, {Name: "d.yaml", Data: []byte("domain: f\nunmatched: allow\nversion: 1\n")},
	}
	set, err := rules.Parse(files, rules.Options{MergeDomains: true})
	if err != nil {
		t.Fatal(err)
	}
	for domain, want := range map[string]rules.Unmatched{"d": rules.UnmatchedDeny, "e": rules.UnmatchedWarn, "f": rules.UnmatchedAllow, "g": rules.UnmatchedWarn} {
		if got := set.Unmatched(domain); got != want {
			t.Errorf("%s: %v, want %v", domain, got, want)
		}
	}
	for key, want := range map[string]string{
		"unmatched: deny":             `z.yaml:2: unmatched: another file has it for domain "d" already; leave one out`,
		"otherwise: {limits: [1/1s]}": "z.yaml:2: d.otherwise: the level has one already, at a.yaml:3",
	} {
		files := []rules.File{
			{Name: "a.yaml", Data: []byte("domain: d\nunmatched: allow\notherwise: {limits: [2/1s]}\n")},
			{Name: "z.yaml", Data: []byte("domain: d\n" + key + "\n")},
		}
		if _, err := rules.Parse(files, rules.Options{MergeDomains: true}); err == nil || err.Error() != want {
			t.Errorf("%s twice: %v", key, err)
		}
	}
}

// TestEnvoyFilesLoad: oddities that envoyproxy/ratelimit loads, and the warnings
// that say what becomes of them.
func TestEnvoyFilesLoad(t *testing.T) {
	const head = "domain: d\ndescriptors:\n"
	long := strings.Repeat("v", 1025)
	for _, c := range []struct {
		name, text string
		warnings   []string
	}{
		{"nothing but a domain", "domain: d\n", nil},
		{"nulls", "domain: d\ndescriptors:\n  - key: a\n    value:\n    rate_limit:\n    descriptors:\n    shadow_mode: ~\n", nil},
		{"a number for a domain", "domain: 5\n", nil},
		{"values that are not text", head + "  - {key: a, value: 5}\n  - {key: a, value: yes}\n  - {key: a, value: 2024-01-01}\n", nil},
		{"document marks", "---\ndomain: d\n...\n---\n", nil},
		{"anchors and merges", head + "  - key: a\n    rate_limit: &l {unit: day, requests_per_unit: 1}\n  - key: b\n    rate_limit: *l\n  - key: c\n    rate_limit: {<<: *l, name: x}\n", nil},
		{"JSON", `{"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unit": "day", "requests_per_unit": 1}}]}`, nil},
		{"key in the wrong mapping", one("unit: day, requests_per_unit: 1, shadow_mode: true"), []string{
			"f.yaml:4: d/a.rate_limit: the key shadow_mode has no effect here; it belongs in a descriptor"}},
		{"count is missing", one("unit: day"), []string{
			"f.yaml:4: d/a.rate_limit: requests_per_unit is missing, which blocks everything; write 0 if that is meant"}},
		{"name that nothing has", head + "  - {key: a, name: n}\n", []string{"f.yaml:3: d/a.name: has no effect without limits beside it"}},
		{"wildcard in the key", head + "  - key: a*\n", []string{
			"f.yaml:3: d/a*.key: * is a wildcard in value only; in key it stands for itself"}},
		{"a long value", head + "  - key: a\n    value: " + long + "\n", nil},
		{"a key that cannot come", head + "  - key: " + long + "\n", []string{
			"f.yaml:3: d/" + long[:80] + "….key: has 1025 bytes, and a check cannot carry more than 1024: nothing will match it"}},
		{"eventual", beside("consistency: eventual\n    replication: none\n    on_partition: closed"), nil},
		{"eventual by the calendar", one("unit: month, align: calendar, timezone: Europe/Berlin, count: 1") + "    consistency: eventual\n", nil},
		{"eventual and nothing", one("unit: day, count: 0") + "    consistency: eventual\n", nil},
	} {
		set, err := parse(t, c.text)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		var got []string
		for _, w := range set.Warnings() {
			got = append(got, w.String())
		}
		if !reflect.DeepEqual(got, c.warnings) {
			t.Errorf("%s: warnings\n%s\nwant\n%s", c.name, strings.Join(got, "\n"), strings.Join(c.warnings, "\n"))
		}
	}
}

func TestMergeKeys(t *testing.T) {
	set := mustParse(t, `
domain: d
descriptors:
  - key: a
    rate_limit: &l {unit: day, requests_per_unit: 1}
  - key: b
    rate_limit: {requests_per_unit: 2, <<: *l}
  - key: c
    rate_limit: {<<: [*l, {name: n, requests_per_unit: 9}]}
`)
	for i, want := range []string{"d/a 1", "d/b 2", "n 1"} {
		r := set.Rules()[i]
		if got := fmt.Sprint(r.Name, " ", r.Limits.At(0).Count); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestMaxKeys: one file of a domain may have it.
func TestMaxKeys(t *testing.T) {
	files := []rules.File{
		{Name: "a.yaml", Data: []byte("domain: d\nmax_keys: 5000\n")}, {Name: "b.yaml", Data: []byte("domain: d\n")}, {Name: "c.yaml", Data: []byte("domain: e\n")},
	}
	set, err := rules.Parse(files, rules.Options{MergeDomains: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(set.MaxKeys()); got != "map[d:5000 e:0]" {
		t.Error(got)
	}
	files = append(files, rules.File{Name: "z.yaml", Data: files[0].Data})
	if _, err := rules.Parse(files, rules.Options{MergeDomains: true}); err == nil ||
		err.Error() != `z.yaml:2: max_keys: another file has it for domain "d" already; leave one out` {
		t.Error(err)
	}
}

func TestMergeDomains(t *testing.T) {
	a := rules.File{Name: "a.yaml", Data: []byte(one("unit: day, requests_per_unit: 1"))}
	b := rules.File{Name: "b.yaml", Data: []byte(strings.Replace(one("unit: day, requests_per_unit: 2"), "key: a", "key: b", 1))}
	if _, err := rules.Parse([]rules.File{a, b}, rules.Options{}); err == nil ||
		err.Error() != `b.yaml:1: domain: domain "d" is already described in a.yaml:1; put both in one file, or allow domains to be merged (--merge-domains)` {
		t.Errorf("without merging: %v", err)
	}
	set, err := rules.Parse([]rules.File{a, b}, rules.Options{MergeDomains: true})
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int64{"a": 1, "b": 2} {
		if r, _ := set.Match("d", []rules.Entry{{Key: key, Value: "x"}}); r == nil || r.Limits.At(0).Count != want {
			t.Errorf("%s: %+v", key, r)
		}
	}
	if _, err := rules.Parse([]rules.File{a, {Name: "c.yaml", Data: a.Data}}, rules.Options{MergeDomains: true}); err == nil ||
		err.Error() != "c.yaml:3: d/a: the same key and value are already at a.yaml:3" {
		t.Errorf("the same rule twice: %v", err)
	}
	if got := set.Domains(); len(got) != 1 || got[0] != "d" {
		t.Errorf("domains %v", got)
	}
}
