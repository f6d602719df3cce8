package shed

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	_ "github.com/sluicecluster/sluice/test/seeded"
)

const target = 100 * time.Millisecond

func TestPressure(t *testing.T) {
	// Of 100 calls done a tick, 200 may wait no longer than the target.
	type load struct {
		Load
		came uint64
	}
	loads := func(n int, l load) []load { return slices.Repeat([]load{l}, n) }
	long, short := Load{2 * target, 400}, Load{}
	for _, c := range []struct {
		name  string
		loads []load
		want  []float64 // the part after each of them
	}{
		{"no wait", loads(4, load{Load{target, 1000}, 0}), []float64{0, 0, 0, 0}},
		{"a burst passes", slices.Concat(loads(2, load{long, 0}), loads(1, load{short, 0}), loads(2, load{long, 0})), []float64{0, 0, 0, 0, 0}},
		{"too long", loads(3, load{long, 0}), []float64{0, 0, first}},
		{"few callers that wait long", loads(4, load{Load{time.Hour, crowd}, 0}), []float64{0, 0, 0, 0}},
		{"many that are served soon", loads(4, load{Load{2 * target, 200}, 0}), []float64{0, 0, 0, 0}},
		{"all that it can do is in use", append(loads(3, load{long, 0}), load{Load{2 * target, 200}, 500}), []float64{0, 0, first, 0.8}},
		{"and more waits than may", append(loads(3, load{long, 0}), load{Load{2 * target, 240}, 500}), []float64{0, 0, first, 0.84}},
		{"it goes down slowly", append(loads(3, load{long, 0}), loads(2, load{short, 100})...), []float64{0, 0, first, 0.45, 0.405}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := pressure{done: 100}
			for i, l := range c.loads {
				if got := p.observe(l.Load, l.came, 100, target); math.Abs(got-c.want[i]) > 0.001 {
					t.Errorf("after %v: %.3f, want %.3f", c.loads[:i+1], got, c.want[i])
				}
			}
		})
	}
}

func TestPressureEndsAndStaysInBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p pressure
		for range rapid.IntRange(1, 1500).Draw(t, "ticks") {
			l := Load{Wait: time.Duration(rapid.Int64Range(0, math.MaxInt64).Draw(t, "wait")), Waiting: rapid.IntRange(0, 2*crowd).Draw(t, "waiting")}
			came, done := rapid.Uint32Range(0, 1000).Draw(t, "came"), rapid.Uint32Range(0, 1000).Draw(t, "done")
			if part := p.observe(l, uint64(came), uint64(done), target); !(part >= 0 && part <= most) {
				t.Fatalf("part is %v", part)
			}
		}
		for range 60 { // 3 s
			p.observe(Load{}, 0, 0, target)
		}
		if p.part != 0 {
			t.Fatalf("%v is rejected long after waits are short", p.part)
		}
	})
}

func gate(t *testing.T, c Config) *Gate {
	t.Helper()
	g, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestAdmitRejectsThatPart(t *testing.T) {
	g := gate(t, Config{MaxCalls: 1, MaxWait: target})
	for range patience {
		if !g.Admit() {
			t.Fatal("rejected without need")
		}
		g.Observe(Load{5 * target, 1000})
	}
	rejected, inARow, longest := 0, 0, 0
	for range 10_000 {
		if g.Admit() {
			inARow = 0
			continue
		}
		rejected++
		inARow++
		longest = max(longest, inARow)
	}
	if rejected < 4900 || rejected > 5100 {
		t.Errorf("%d of 10,000 were rejected, want half", rejected)
	}
	if longest > 4 {
		t.Errorf("%d in a row were rejected", longest)
	}
	if s := g.Stats(); s.Slow != uint64(rejected) || s.Rejecting != 0.5 || s.Load != (Load{5 * target, 1000}) {
		t.Errorf("stats are %+v", s)
	}
}

func TestNoBoundOfWaits(t *testing.T) {
	g := gate(t, Config{MaxCalls: 1})
	for range 10 {
		g.Observe(Load{time.Hour, 1000})
	}
	if !g.Admit() {
		t.Error("rejected although there is no bound")
	}
}

func TestEnterKeepsToTheBound(t *testing.T) {
	g := gate(t, Config{MaxCalls: 2})
	for i, want := range []bool{true, true, false} {
		if g.Enter(1) != want {
			t.Fatalf("call %d: let in is %v", i+1, !want)
		}
	}
	g.Leave(1)
	if !g.Enter(1) {
		t.Error("who leaves makes no room")
	}
	if s := g.Stats(); s.Calls != 2 || s.Full != 1 {
		t.Errorf("stats are %+v", s)
	}
}

// TestEnterCountsChecks: a call takes places by its checks, and one that is alone gets in.
func TestEnterCountsChecks(t *testing.T) {
	g := gate(t, Config{MaxCalls: 10})
	for _, c := range []struct {
		checks int
		want   bool
	}{{8 * ChecksPerCall, true}, {2*ChecksPerCall + 1, false}, {ChecksPerCall + 1, true}, {1, false}} {
		if g.Enter(c.checks) != c.want {
			t.Fatalf("%d checks: let in is %v", c.checks, !c.want)
		}
	}
	if s := g.Stats(); s.Calls != 2 || s.Full != 2 {
		t.Errorf("stats are %+v", s)
	}
	g.Leave(8 * ChecksPerCall)
	g.Leave(ChecksPerCall + 1)
	if !g.Enter(100*ChecksPerCall) || g.Enter(1) {
		t.Error("a large call alone gets in, and none beside it")
	}
	// 64 callers with the largest batches fit into the default.
	g = gate(t, Config{MaxCalls: 16_384})
	for i := range 64 {
		if !g.Enter(10_000) {
			t.Fatalf("the call of caller %d is rejected", i)
		}
	}
}

func TestConfig(t *testing.T) {
	for field, c := range map[string]Config{"MaxCalls": {}, "MaxWait": {MaxCalls: 1, MaxWait: -1}} {
		if _, err := New(c); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

func TestAdmitAllocatesNothing(t *testing.T) {
	g := gate(t, Config{MaxCalls: 1, MaxWait: target})
	if n := testing.AllocsPerRun(100, func() {
		if g.Admit() && g.Enter(1) {
			g.Leave(1)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
