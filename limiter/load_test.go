package limiter

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

const loadRules = `
domain: shop
pools:
  spare:
    limit: {unit: hour, count: 100}
    reserves: {high: 0, low: 50%}
    load: {shrink_to: 20%, expires: 10s, unreported: 5%}
  steady:
    limit: {unit: hour, count: 100}
descriptors:
  - key: high
    rate_limit: {unit: hour, count: 0}
    elastic: {pool: spare, priority: high}
  - key: low
    rate_limit: {unit: hour, count: 0}
    elastic: {pool: spare, priority: low}
  - key: steady
    rate_limit: {unit: hour, count: 0}
    elastic: {pool: steady}
`

// loaded is a Limiter of which the test moves the clock.
type loaded struct {
	*script
	told []LoadReport
}

func newLoaded(t *testing.T) *loaded {
	l := &loaded{}
	l.script = newScript(t, loadRules, func(c *Config) {
		c.Cluster.(*fakeCluster).spreadLoad = func(r LoadReport) { l.told = append(l.told, r) }
	})
	return l
}

// room returns the most that a check by key may cost.
func (l *loaded) room(key string) (n int64) {
	for strings.HasPrefix(l.do(fmt.Sprintf("%s=x *%d read", key, n+1)), "allowed") {
		n++
	}
	return n
}

func (l *loaded) report(reporter string, load float64) PoolLoad {
	l.t.Helper()
	got, err := l.ReportLoad(l.t.Context(), LoadReport{Domain: "shop", Pool: "spare", Reporter: reporter, Load: load})
	if err != nil {
		l.t.Fatal(err)
	}
	return got
}

func (l *loaded) want(load float64, high, low int64) {
	l.t.Helper()
	if p, h, o := l.Stats().Pools[0], l.room("high"), l.room("low"); p.Load != load || h != high || o != low {
		l.t.Errorf("load %v, room for %d and %d; want %v, %d and %d", p.Load, h, o, load, high, low)
	}
}

// TestLoad: the pool follows the highest load that counts, and reports expire.
func TestLoad(t *testing.T) {
	l := newLoaded(t)
	l.want(0.05, 96, 48)
	if got := l.report("a", 0.5); got != (PoolLoad{0.5, 10 * time.Second}) {
		t.Errorf("answered %+v", got)
	}
	l.want(0.5, 60, 30)
	l.do("after 4s")
	if got := l.report("b", 1); got.Load != 1 {
		t.Errorf("answered %+v", got)
	}
	l.want(1, 20, 10)
	l.report("a", 0) // the highest counts
	l.want(1, 20, 10)
	l.report("b", 0.25)
	l.want(0.25, 80, 40)
	l.do("after 5s")
	l.report("a", 0)
	l.do("after 5s") // b is too old
	l.want(0, 100, 50)
	l.do("after 4999999999ns")
	l.want(0, 100, 50)
	l.do("after 1ns") // and now a
	l.want(0.05, 96, 48)
	if len(l.told) != 5 || l.told[1].Reporter != "b" || l.told[1].Stamp == 0 {
		t.Errorf("others were told %+v", l.told)
	}
}

// TestLoadMintsNothing: a pool that shrinks and grows again has given what it has given.
func TestLoadMintsNothing(t *testing.T) {
	l := newLoaded(t)
	taken := int64(0)
	for i, load := range []float64{0, 1, 0.5, 0.9, 0, 0.1, 1, 0} {
		l.report("a", load)
		want := max(0, int64(math.Round(100*(1-0.8*load)))-taken)
		if got := l.room("high"); got != want {
			t.Fatalf("report %d, load %v, %d taken: room for %d, want %d", i, load, taken, got, want)
		}
		for range min(want, 15) {
			l.play("high=x => allowed_elastic 0/0")
			taken++
		}
	}
}

// TestLoadOfOthers: reports come late, twice, in any order, and about what this node does not have.
func TestLoadOfOthers(t *testing.T) {
	l := newLoaded(t)
	take := func(reporter string, load float64, stamp int64) {
		l.TakeLoad(LoadReport{Domain: "shop", Pool: "spare", Reporter: reporter, Load: load, Stamp: stamp})
	}
	take("a", 0.5, 7)
	take("a", 1, 6)
	take("a", 1, 7)
	l.want(0.5, 60, 30)
	l.do("after 5s")
	take("a", 1, 7) // known, so it does not count for longer either
	l.do("after 5s")
	l.want(0.05, 96, 48)
	take("a", 0.25, 8)
	l.want(0.25, 80, 40)
	for _, strange := range []float64{math.NaN(), -1, 1.5, math.Inf(1)} {
		take("b", strange, 9)
	}
	take(strings.Repeat("b", MaxText+1), 1, 9)
	l.TakeLoad(LoadReport{Domain: "shop", Pool: "steady", Load: 1, Stamp: 1})
	l.TakeLoad(LoadReport{Domain: "shop", Pool: "nothing", Load: 1, Stamp: 1})
	l.TakeLoad(LoadReport{Domain: "elsewhere", Pool: "spare", Load: 1, Stamp: 1})
	l.want(0.25, 80, 40)
	for i := range 2 * maxReporters {
		take(strings.Repeat("c", i+1), 0.25, 1)
	}
	if n := l.Stats().Pools[0].Reporters; n != maxReporters {
		t.Errorf("%d reporters are remembered, want %d", n, maxReporters)
	}
	if l.told != nil {
		t.Errorf("passed on: %v", l.told)
	}
	l.SetRules(nil)
	take("a", 1, 10)
}

// TestLoadOutlivesReload: new rules keep what was reported, and say how it counts.
func TestLoadOutlivesReload(t *testing.T) {
	l := newLoaded(t)
	l.report("a", 1)
	l.SetRules(parse(t, strings.Replace(loadRules, "20%", "40%", 1)))
	l.want(1, 40, 20)
	l.SetRules(parse(t, strings.Replace(loadRules, "expires: 10s", "expires: 2s", 1)))
	l.do("after 2s")
	l.want(0.05, 96, 48)
}

func TestReportLoadRejected(t *testing.T) {
	l := newLoaded(t)
	for _, c := range []struct {
		report LoadReport
		code   Code
		text   string
	}{
		{LoadReport{Domain: "shop", Pool: "spare", Load: 1.5}, Invalid, "load: 1.5; want 0 to 1"},
		{LoadReport{Domain: "shop", Pool: "spare", Load: -0.1}, Invalid, "load: -0.1; want 0 to 1"},
		{LoadReport{Domain: "shop", Pool: "spare", Load: math.NaN()}, Invalid, "load: NaN; want 0 to 1"},
		{LoadReport{Domain: "shop", Pool: "spare", Reporter: strings.Repeat("x", MaxText+1)}, Invalid, "reporter: 1025 bytes; want at most 1024"},
		{LoadReport{Domain: "shop", Pool: "x"}, NotFound, `pool: the domain "shop" has no pool "x"`},
		{LoadReport{Domain: "x", Pool: "spare"}, NotFound, `pool: the domain "x" has no pool "spare"`},
		{LoadReport{Domain: "shop", Pool: "steady"}, Rejected, `pool: pool "steady" follows no load; give it one in the rules`},
	} {
		if _, err := l.ReportLoad(t.Context(), c.report); codeOf(err) != c.code || err.Error() != c.text {
			t.Errorf("%v, want %v %s", err, c.code, c.text)
		}
	}
	if l.told != nil {
		t.Errorf("others were told %v", l.told)
	}
}
