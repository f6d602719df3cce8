package shed

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

const target = 100 * time.Millisecond

func TestPressure(t *testing.T) {
	loads := func(waiting int, ms ...int) (list []Load) {
		for _, n := range ms {
			list = append(list, Load{Wait: time.Duration(n) * time.Millisecond, Waiting: waiting})
		}
		return list
	}
	for _, c := range []struct {
		name  string
		loads []Load
		want  []float64 // the part after each of them
	}{
		{"short waits", loads(1000, 0, 50, 100), []float64{0, 0, 0}},
		{"a burst passes", loads(1000, 500, 500, 90, 500, 500), []float64{0, 0, 0, 0, 0}},
		{"just too long", loads(1000, 101, 101, 101, 101), []float64{0, 0, 0.101, 0.192}},
		{"far too long", loads(1000, 900, 900, 900, 900), []float64{0, 0, 0.5, 0.75}},
		{"few callers that wait long", loads(crowd, 900, 900, 900, 900), []float64{0, 0, 0, 0}},
		{"few wait because most are rejected", append(loads(1000, 900, 900, 900), loads(10, 900)...), []float64{0, 0, 0.5, 0.75}},
		{"it goes down slowly", loads(1000, 900, 900, 900, 0, 0), []float64{0, 0, 0.5, 0.45, 0.405}},
		{"and needs no patience to go up again", loads(1000, 900, 900, 900, 0, 900), []float64{0, 0, 0.5, 0.45, 0.725}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p pressure
			for i, l := range c.loads {
				if got := p.observe(l, target); math.Abs(got-c.want[i]) > 0.001 {
					t.Errorf("after %v: %.3f, want %.3f", c.loads[:i+1], got, c.want[i])
				}
			}
		})
	}
}

func TestPressureEndsAndStaysInBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p pressure
		for _, wait := range rapid.SliceOfN(rapid.Int64Range(0, math.MaxInt64), 1, 1500).Draw(t, "waits") {
			l := Load{Wait: time.Duration(wait), Waiting: rapid.IntRange(0, 2*crowd).Draw(t, "waiting")}
			if part := p.observe(l, target); part < 0 || part > most {
				t.Fatalf("part is %v", part)
			}
		}
		for range 50 { // 2.5 s
			p.observe(Load{}, target)
		}
		if p != (pressure{}) {
			t.Fatalf("%+v long after waits are short", p)
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

func TestAdmitRefusesThatPart(t *testing.T) {
	g := gate(t, Config{MaxCalls: 1, MaxWait: target})
	for range patience {
		if !g.Admit() {
			t.Fatal("refused without need")
		}
		g.Observe(Load{5 * target, 1000})
	}
	refused, inARow, longest := 0, 0, 0
	for range 10_000 {
		if g.Admit() {
			inARow = 0
			continue
		}
		refused++
		inARow++
		longest = max(longest, inARow)
	}
	if refused < 4900 || refused > 5100 {
		t.Errorf("%d of 10,000 were refused, want half", refused)
	}
	if longest > 4 {
		t.Errorf("%d in a row were refused", longest)
	}
	if s := g.Stats(); s.Slow != uint64(refused) || s.Refusing != 0.5 || s.Wait != 5*target {
		t.Errorf("stats are %+v", s)
	}
}

func TestNoBoundOfWaits(t *testing.T) {
	g := gate(t, Config{MaxCalls: 1})
	for range 10 {
		g.Observe(Load{time.Hour, 1000})
	}
	if !g.Admit() {
		t.Error("refused although there is no bound")
	}
}

func TestEnterKeepsToTheBound(t *testing.T) {
	g := gate(t, Config{MaxCalls: 2})
	for i, want := range []bool{true, true, false} {
		if g.Enter() != want {
			t.Fatalf("call %d: let in is %v", i+1, !want)
		}
	}
	g.Leave()
	if !g.Enter() {
		t.Error("who leaves makes no room")
	}
	if s := g.Stats(); s.Calls != 2 || s.Full != 1 {
		t.Errorf("stats are %+v", s)
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
		if g.Admit() && g.Enter() {
			g.Leave()
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
