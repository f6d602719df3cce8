package quorum_test

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// told asserts the versions that name has known, in order.
func (w *testCluster) told(name string, want ...string) {
	w.t.Helper()
	if got := w.all[name].story; !slices.Equal(got, want) {
		w.failf("%s knew %q, want %q", name, got, want)
	}
}

// settle starts names and runs until they are voters and have quorum.
func settle(t *testing.T, names string) *testCluster {
	t.Helper()
	w := newTestCluster(t, 1)
	w.start(strings.Fields(names)...)
	w.until(5*time.Second, names+" counted", w.counted(names))
	w.until(time.Second, "quorum", w.withQuorum())
	w.run(time.Second)
	return w
}

func TestFounding(t *testing.T) {
	t.Run("one", func(t *testing.T) {
		w := newTestCluster(t, 1)
		w.start("a")
		w.run(200 * time.Millisecond)
		w.told("a", "1: a")
		a := w.all["a"].m
		if a.QuorumUntil() != math.MaxInt64 || !a.In() || !a.Promises(w.all["a"].clock()) || a.Set().ID != w.all["a"].id.Boot {
			w.failf("alone, a has no lasting right, or not in its own set")
		}
	})
	for _, names := range []string{"c a b", "a b c d e"} {
		t.Run(names, func(t *testing.T) {
			w := newTestCluster(t, 1)
			all := strings.Fields(names)
			w.start(all...)
			slices.Sort(all)
			w.until(2*time.Second, "counted", w.counted(strings.Join(all, " ")))
			w.until(100*time.Millisecond, "quorum", w.withQuorum())
			w.told("a", "1: "+strings.Join(all, " "))
		})
	}
	t.Run("not before join targets were asked", func(t *testing.T) {
		w := newTestCluster(t, 1)
		w.config.Expect = 2
		w.boot("a", 3000*ms, message.Set{})
		w.boot("b", 0, message.Set{})
		w.run(2900 * time.Millisecond)
		w.told("b") // a founds, as soon as it may
		w.until(time.Second, "counted", w.counted("a b"))
		w.told("b", "1: a b")
	})
	t.Run("a silent member is waited for", func(t *testing.T) {
		w := newTestCluster(t, 1)
		w.config.Expect = 2
		w.start("a", "b", "c")
		w.all["a"].asleep = math.MaxInt64
		w.run(5 * time.Second)
		w.told("b")
		w.run(300 * time.Millisecond)
		w.told("b", "1: b c")
	})
	t.Run("who founds alone waits for as long as gossip shows somebody silent", func(t *testing.T) {
		w := newTestCluster(t, 1)
		w.config.Expect = 1
		w.start("a", "b")
		w.all["a"].asleep = math.MaxInt64
		w.run(30 * time.Second)
		w.told("b")
		w.crash("a")
		w.run(200 * time.Millisecond)
		w.told("b", "1: b")
	})
}

func TestJoin(t *testing.T) {
	w := settle(t, "b c d")
	w.start("a") // the lowest name: it may found, but hears of the set first
	w.until(time.Second, "counted", w.counted("a b c d"))
	w.told("a", "1: b c d", "2: a b c d")
	if !w.withQuorum()() {
		w.failf("a join cost quorum")
	}
	if a := w.all["a"]; !a.m.Promises(a.clock()) {
		w.failf("a was seen to join and promises nothing")
	}
}

// A new voter that hears but is not heard would cost the only member its majority.
func TestJoinerThatCannotBeReached(t *testing.T) {
	w := settle(t, "a")
	w.cut("a", "b")
	w.start("b")
	w.run(900 * time.Millisecond)
	w.told("a", "1: a")
	if !w.all["a"].has() {
		w.failf("a lost quorum")
	}
	w.heal()
	w.until(time.Second, "counted", w.counted("a b"))
}

func TestOrderedLeave(t *testing.T) {
	for _, name := range []string{"a", "b", "c"} {
		w := settle(t, "a b c")
		p := w.all[name]
		p.leaving = true
		w.until(300*time.Millisecond, name+" counted out", func() bool { return !p.m.In() })
		w.crash(name)
		w.run(100 * time.Millisecond)
		rest := strings.Join(slices.DeleteFunc([]string{"a", "b", "c"}, func(n string) bool { return n == name }), " ")
		if !w.counted(rest)() || !w.withQuorum()() {
			w.failf("%s left, and the rest does not go on", name)
		}
	}
}

// Of two members, the leaving one learns of the change from the remaining one, never the other way round: otherwise a lost
// message could leave the remaining one in a set with a gone member.
func TestLeaveOfTheLowestOfTwo(t *testing.T) {
	w := settle(t, "a b")
	w.all["a"].leaving = true
	for w.all["a"].m.In() {
		w.run(time.Millisecond)
		if !w.all["a"].m.In() && w.all["b"].m.Set().Version != 2 {
			w.failf("a knows before b")
		}
	}
	w.crash("a")
	if !w.all["b"].has() {
		w.failf("b has no right")
	}
}

func TestAllLeaveButOne(t *testing.T) {
	w := settle(t, "a b c d")
	for _, name := range []string{"a", "b", "d"} {
		w.all[name].leaving = true
	}
	w.until(3*time.Second, "c alone", w.counted("c"))
	w.run(time.Second)
	if c := w.all["c"]; c.m.QuorumUntil() != math.MaxInt64 {
		w.failf("c alone has no lasting right")
	}
}

func TestAllLeave(t *testing.T) {
	w := settle(t, "a b c")
	for _, p := range w.running() {
		p.leaving = true
	}
	w.until(3*time.Second, "one is left", func() bool { return len(w.all["a"].m.Set().Members) == 1 && w.agreed() })
	w.run(time.Second)
	w.told("a", "1: a b c", "2: a c", "3: a")
}

func TestCrashAndForget(t *testing.T) {
	w := settle(t, "a b c")
	w.crash("a")
	w.run(time.Second)
	if !w.withQuorum()() {
		w.failf("two of three have no right")
	}
	w.run(10*time.Minute - 2*time.Second)
	if !w.counted("a b c")() {
		w.failf("a is forgotten too early")
	}
	w.until(2*time.Second, "a forgotten", w.counted("b c"))
	if !w.withQuorum()() {
		w.failf("forgetting cost quorum")
	}
}

// A member that was isolated until the others removed it comes back as a newcomer, and is not in grace: it has forgotten
// nothing.
func TestForgottenComesBack(t *testing.T) {
	w := settle(t, "a b c")
	w.split("c", "a b")
	w.until(11*time.Minute, "c forgotten", func() bool { return len(w.all["a"].m.Set().Members) == 2 })
	if w.all["c"].has() {
		w.failf("c has quorum")
	}
	w.heal()
	w.until(2*time.Second, "counted", w.counted("a b c"))
	w.told("c", "1: a b c", "2: a b", "3: a b c")
}

func TestTwoClusterIDsMeet(t *testing.T) {
	w := newTestCluster(t, 1)
	w.split("a b c", "x y")
	w.run(2 * time.Second) // gossip does not even know them
	w.start("a", "b", "c")
	w.config.Expect = 2
	w.start("x", "y")
	w.until(8*time.Second, "two sets", func() bool {
		return show(w.all["c"].m.Set()) == "1: a b c" && show(w.all["x"].m.Set()) == "1: x y"
	})
	w.until(time.Second, "quorum", w.withQuorum())
	w.heal()
	w.until(5*time.Second, "one set", w.counted("a b c x y"))
	w.until(time.Second, "quorum", w.withQuorum())
	for name, want := range map[string]uint64{"a": 0, "b": 0, "c": 0, "x": 1, "y": 1} {
		if got := w.all[name].m.Dissolved(); got != want {
			t.Errorf("%s gave up its set %d times, want %d", name, got, want)
		}
	}
}
