package rules_test

import (
	"fmt"
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
	flags := fmt.Sprint(r.Shadow, r.Quota, r.DetailedMetric, r.NoDenialCache, r.Consistency, r.Replication, r.OnFailure, r.OnPartition, r.UnknownShare, r.OnLostState)
	if want := "true true true true strict sync closed open none fresh"; flags != want {
		t.Errorf("got  %s\nwant %s", flags, want)
	}
	place := fmt.Sprint(r.Name, " ", r.Path, " ", r.File, ":", r.Line, " ", r.Replaces, " ", r.Entries())
	if want := "first d/a=b* f.yaml:4 [x y] [{a b*}]"; place != want {
		t.Errorf("got  %s\nwant %s", place, want)
	}
	answer := fmt.Sprintf("%+v %#v", *r.Response, r.Metadata)
	if want := "{Status:503 Headers:[{Name:Retry-After Value:5} {Name:X-Why Value:too much} {Name:X-Ok Value:yes}] Body:no} " +
		`map[string]interface {}{"a":1, "b":map[string]interface {}{"c":[]interface {}{"x", true, interface {}(nil), 2.5}}}`; answer != want {
		t.Errorf("got  %s\nwant %s", answer, want)
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
  - {key: only, limits: [{unit: day, count: 1, name: limit}]}
`)
	for i, want := range []string{"both: both both#2", "rule: limit", "rule: limit rule#2", "d/none: d/none d/none#2", "limit: limit"} {
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

// TestMergedFiles: what the files of a domain say together.
func TestMergedFiles(t *testing.T) {
	set, err := rules.Parse(files(
		"domain: d\nmax_keys: 5000\nunmatched: deny\n", "domain: d\npools: {p: {"+somePool+"}}\n", one("unit: day, count: 1")+"    elastic: {pool: p}\n",
		"domain: d\ndescriptors: [{key: b, limits: [2/1s]}]\n", "domain: e\n", "domain: f\nunmatched: allow\nversion: 1\n",
	), rules.Options{MergeDomains: true})
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(set.Domains(), set.MaxKeys(), set.Unmatched("d"), set.Unmatched("e"), set.Unmatched("f"), set.Unmatched("g"))
	if want := "[d e f] map[d:5000 e:0 f:0] deny warn allow warn"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for key, want := range map[string]int64{"a": 1, "b": 2} {
		if r, _ := set.Match("d", []rules.Entry{{Key: key, Value: "x"}}); r == nil || r.Limits.At(0).Count != want || key == "a" && r.Elastic.Pool != set.Pool("d", "p") {
			t.Errorf("%s: %+v", key, r)
		}
	}
}
