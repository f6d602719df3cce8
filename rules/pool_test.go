package rules_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/rules"
)

// withPool is a file with the pool p and, below it, the key a with the elastic given.
func withPool(pool, elastic string) string {
	return "domain: d\npools:\n  p: {" + pool + "}\n" + strings.TrimPrefix(one("unit: day, count: 1"), "domain: d\n") + "    elastic: {" + elastic + "}\n"
}

const (
	somePool = "limit: {count: 100, period: 1s}"
	reserved = somePool + ", reserves: {high: 0, low: 50%}"
)

// poolFaults are those of pools and elastic.
var poolFaults = faults{
	bySchema: []fault{
		{"no limit", withPool("", "pool: p"), "3: pools.p.limit: is missing: say how large the pool is"},
		{"nothing", "domain: d\npools: {p: }\n", "2: pools.p.limit: is missing: say how large the pool is"},
		{"a list", "domain: d\npools: [p]\n", "2: pools: must be a mapping (key: value), not a list"},
		{"a strange name", "domain: d\npools: {a/b: {" + somePool + "}}\n", "2: pools.a/b: a pool's name is 1 to 64 letters, digits, dots, hyphens and underscores"},
		{"unknown key", withPool(somePool+", size: 5", "pool: p"), `3: pools.p: unknown key "size"`},
		{"a limit's key", withPool("count: 5", "pool: p"), "3: pools.p: the key count belongs in rate_limit or limits, not here"},
		{"soft", withPool("limit: {count: 100, period: 1s, soft: 5%}", "pool: p"), "3: pools.p.limit: the key soft belongs in rate_limit or limits, not here"},
		{"pool of nothing", withPool("limit: {count: 0, period: 1s}", "pool: p"), "3: pools.p.limit.count: must be at least 1: a pool of nothing admits nothing"},
		{"queue", withPool("limit: {count: 5, period: 1s, algorithm: leaky_queue}", "pool: p"), "3: pools.p.limit.algorithm: leaky_queue delays checks, and a pool admits them at once; use leaky_bucket"},
		{"unknown replication", withPool(somePool+", replication: twice", "pool: p"), `3: pools.p.replication: must be one of async, sync, none, not "twice"`},
		{"negative reserve", withPool(somePool+", reserves: {low: -1}", "pool: p"), "3: pools.p.reserves.low: must be from 0 to 4611686018427387904, not -1"},
		{"reserve of words", withPool(somePool+", reserves: {low: half}", "pool: p"), `3: pools.p.reserves.low: must be a whole percentage from 0% to 100%, not "half"`},
		{"reserve above 100%", withPool(somePool+", reserves: {low: 101%}", "pool: p"), `3: pools.p.reserves.low: must be a whole percentage from 0% to 100%, not "101%"`},
		{"reserve of nothing", withPool(somePool+", reserves: {low: }", "pool: p"), "3: pools.p.reserves.low: is missing: say how much the priority leaves free, in units or percent"},
		{"a priority without a name", withPool(somePool+", reserves: {'': 1}", "pool: p"), "3: pools.p.reserves.: a priority has a name, which may not be empty"},
		{"too many priorities", withPool(somePool+", reserves: {"+numbered(17, "p%d: 1,")+"}", "pool: p"), "3: pools.p.reserves: has 17 priorities; at most 16 are allowed"},
		{"too many pools", "domain: d\npools: {" + numbered(257, "p%d: {"+somePool+"},") + "}\n", "2: pools.p256: the domain has 256 pools already, and more are not allowed"},
		{"load without a size", withPool(somePool+", load: {expires: 5s}", "pool: p"), "3: pools.p.load.shrink_to: is missing: say what is left of the pool at full load, such as 20%"},
		{"load that changes nothing", withPool(somePool+", load: {shrink_to: 100%}", "pool: p"), "3: pools.p.load.shrink_to: 100% is no shrinking; give less, or leave load out"},
		{"load without percent", withPool(somePool+", load: {shrink_to: 20}", "pool: p"), `3: pools.p.load.shrink_to: needs a percent sign: write 20%`},
		{"load assumed", withPool(somePool+", load: {shrink_to: 0%, unreported: 2}", "pool: p"), `3: pools.p.load.unreported: needs a percent sign: write 2%`},
		{"load assumed of more", withPool(somePool+", load: {shrink_to: 0%, unreported: 101%}", "pool: p"), `3: pools.p.load.unreported: must be a whole percentage from 0% to 100%, not "101%"`},
		{"elastic without a pool", withPool(somePool, "priority: low"), "7: d/a.elastic.pool: is missing: name a pool of this domain"},
		{"unknown key of elastic", withPool(somePool, "pool: p, share: 5"), `7: d/a.elastic: unknown key "share"`},
		{"elastic without limits", "domain: d\npools: {p: {" + somePool + "}}\ndescriptors: [{key: a, elastic: {pool: p}}]\n", "3: d/a.elastic: has no effect without limits beside it"},
		{"concurrency", withPool("limit: {count: 5, algorithm: concurrency}", "pool: p"), "3: pools.p.limit.algorithm: concurrency is for reservations, and only checks take from a pool; use another one"},
	},
	byReader: []fault{
		{"misfit", withPool("limit: {count: 5, period: 1s, sub_windows: 5}", "pool: p"), "3: pools.p.limit.sub_windows: is for the sliding window only; leave it out"},
		{"reserve of everything", withPool(somePool+", reserves: {low: 100}", "pool: p"), "3: pools.p.reserves.low: leaves 100 of 100 units free, so the priority would never get any"},
		{"reserve of all bursts", withPool("limit: {algorithm: token_bucket, count: 100, burst: 10, period: 1s}, reserves: {low: 10}", "pool: p"), "3: pools.p.reserves.low: leaves 10 of 10 units free, so the priority would never get any"},
		{"load that ends at once", withPool(somePool+", load: {shrink_to: 0%, expires: 1ms}", "pool: p"), "3: pools.p.load.expires: must be at least 100ms, not 1ms"},
		{"load that stays for days", withPool(somePool+", load: {shrink_to: 0%, expires: 2d}", "pool: p"), "3: pools.p.load.expires: must be at most 1h, not 48h0m0s: a load that old says nothing"},
		{"elastic of an unauthenticated client", withPool(somePool, "pool: q"), `7: d/a.elastic.pool: the domain has no pool "q"`},
		{"no such priority", withPool(reserved, "pool: p, priority: mid"), `7: d/a.elastic.priority: must be one of high, low, not "mid"`},
		{"no priority", withPool(reserved, "pool: p"), `7: d/a.elastic.priority: is missing: pool "p" has high, low`},
		{"priority without reserves", withPool(somePool, "pool: p, priority: low"), `7: d/a.elastic.priority: pool "p" has no reserves, so all rules take from it alike`},
		{"priority of no entry", withPool(reserved, "pool: p, priority: low, priority_key: tier"), `7: d/a.elastic.priority_key: no entry that leads to this rule has the key "tier"`},
		{"elastic of concurrency", ofOwn("count: 1, algorithm: concurrency"), "4: d/a.rate_limit.algorithm: does not go with elastic: reservations take units of concurrency, and never of a pool"},
		{"elastic of a queue", ofOwn("count: 1, period: 1s, algorithm: leaky_queue"), "4: d/a.rate_limit.algorithm: does not go with elastic: checks that the pool admits would overtake those that wait in the queue"},
		{"elastic of a pace", ofOwn("count: 1, period: 1s, min_interval: 1s"), "4: d/a.rate_limit.min_interval: does not go with elastic: a pool has units to give and no time"},
		{"elastic of what blocks", ofOwn("count: 1, period: 1s, block_for: 1s"), "4: d/a.rate_limit.block_for: does not go with elastic: a pool would admit what is blocked"},
		{"elastic of what counts denials", ofOwn("count: 1, period: 1s, algorithm: sliding_log, count_denied: true"), "4: d/a.rate_limit.count_denied: does not go with elastic: what the pool admits would count as denied"},
		{"elastic of no limit", ofOwn("unlimited: true"), "4: d/a.rate_limit.unlimited: does not go with elastic: the rule denies nothing"},
	},
}

func numbered(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, i)
	}
	return b.String()
}

// ofOwn is an elastic rule with the limit given.
func ofOwn(limit string) string {
	return one(limit) + "    elastic: {pool: p}\npools: {p: {" + somePool + "}}\n"
}

func TestPoolAsRead(t *testing.T) {
	set := mustParse(t, withPool("limit: {algorithm: token_bucket, count: 1000, period: 1s, burst: 333}, reserves: {high: 0, some: 30, low: 50%}, "+
		"load: {shrink_to: 20%, unreported: 5%}", "pool: p, priority: low, priority_key: a"))
	p := set.Pool("d", "p")
	if p == nil || set.Pool("d", "q") != nil || set.Pool("e", "p") != nil || !slices.Equal(set.Pools(), []*rules.Pool{p}) {
		t.Fatalf("pools %v", set.Pools())
	}
	if !p.FollowsLoad || p.Expires != 10*time.Second || p.Unreported != 0.05 || p.Replication != rules.ReplicateNone || p.Line != 3 || p.Domain != "d" {
		t.Errorf("%+v", p)
	}
	for _, w := range []struct {
		load         float64
		count, burst int64
		reserves     []int64
	}{
		{-1, 1000, 333, []int64{0, 30, 167}},
		{0, 1000, 333, []int64{0, 30, 167}},
		{0.01, 960, 319, []int64{0, 30, 160}},
		{0.5, 600, 199, []int64{0, 30, 100}},
		{1, 200, 66, []int64{0, 30, 33}},
		{7, 200, 66, []int64{0, 30, 33}},
	} {
		step := rules.StepOf(w.load)
		limits := p.Limits(step)
		l := limits.At(0)
		if l.Count != w.count || l.Burst != w.burst || l.Period != time.Second {
			t.Errorf("at load %v: %+v", w.load, l)
		}
		for i, want := range w.reserves {
			if got := p.Reserve(i, step); got != want {
				t.Errorf("at load %v: %s leaves %d free, want %d", w.load, p.Priorities()[i], got, want)
			}
		}
		if p.Limits(step) != limits {
			t.Errorf("load %v has two sets of limits", w.load)
		}
	}
	rule, _ := set.Match("d", []rules.Entry{{Key: "a", Value: "x"}})
	if rule.Elastic == nil || rule.Elastic.Pool != p {
		t.Fatalf("%+v", rule.Elastic)
	}
	for value, want := range map[string]string{"high": "high", "low": "low", "": "low", "nobody": "low"} {
		got := rule.Elastic.Priority([]rules.Entry{{Key: "a", Value: value}})
		if p.Priorities()[got] != want {
			t.Errorf("%q has priority %s, want %s", value, p.Priorities()[got], want)
		}
	}
}

// TestPoolShrinksToNothing: a share of nothing blocks; it is not the default of something.
func TestPoolShrinksToNothing(t *testing.T) {
	p := mustParse(t, withPool("limit: {algorithm: token_bucket, count: 10, period: 1s, burst: 2}, reserves: {a: 50%}, load: {shrink_to: 0%}", "pool: p, priority: a")).Pool("d", "p")
	if l := p.Limits(rules.LoadSteps).At(0); l.Count != 0 || p.Reserve(0, rules.LoadSteps) != 0 {
		t.Errorf("at load 1: %+v", l)
	}
	if l := p.Limits(rules.StepOf(0.6)).At(0); l.Count != 0 {
		t.Errorf("a burst below 1 at load 0.6: %+v", l)
	}
}

// TestPoolKeys: pools have counters of their own names.
func TestPoolKeys(t *testing.T) {
	seen := make(map[string]string)
	for _, domain := range []string{"d", "dp", "d2"} {
		set := mustParse(t, "domain: "+domain+"\npools: {p: {"+somePool+"}, pp: {"+somePool+"}, 2p: {"+somePool+"}}\n")
		for _, p := range set.Pools() {
			key := string(p.AppendKey(nil))
			if other, ok := seen[key]; ok {
				t.Errorf("%s/%s has the key of %s", p.Domain, p.Name, other)
			}
			seen[key] = p.Domain + "/" + p.Name
		}
	}
}
