package quorum_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// fresh is a test cluster of processes of which each founds with expect, under the law that one set has quorum at a time.
func fresh(t testing.TB, seed uint64, expect int) *testCluster {
	w := newTestCluster(t, seed)
	w.config.Expect = expect
	w.law.one = true
	return w
}

func (w *testCluster) disk(names ...string) {
	for _, name := range names {
		w.disks[name] = new(message.Record)
	}
}

// sets returns the IDs of the sets that running processes know.
func (w *testCluster) sets() (ids []string) {
	for _, p := range w.running() {
		if id := p.m.Set().ID; id != "" && !slices.Contains(ids, id) {
			ids = append(ids, id)
		}
	}
	return ids
}

// TestTooFewFoundNothing is review finding B2: a process that restarts out of reach of the others founds no set of its own.
func TestTooFewFoundNothing(t *testing.T) {
	t.Run("restarted behind a cut", func(t *testing.T) {
		w := fresh(t, 1, 3)
		w.start("a", "b", "c")
		w.until(time.Second, "quorum", func() bool { return w.agreed() && w.withQuorum()() })
		w.split("a", "b c")
		w.run(2 * time.Second)
		w.restart("a", message.Set{})
		w.run(10 * time.Minute)
		w.told("a")
		w.heal()
		w.until(5*time.Second, "a is back", w.counted("a b c"))
	})
	t.Run("two of three", func(t *testing.T) {
		w := fresh(t, 1, 3)
		w.start("a", "b")
		w.run(10 * time.Minute)
		w.told("a")
		w.told("b")
		w.start("c")
		w.until(4*time.Second, "all are counted", w.counted("a b c"))
	})
	t.Run("one that expects none", func(t *testing.T) {
		w := fresh(t, 1, 2)
		w.start("b", "c")
		w.config.Expect = 0
		w.boot("a", 0, message.Set{})
		w.until(2*time.Second, "all are counted", w.counted("a b c"))
		w.told("b", "1: b c", "2: a b c")
	})
	t.Run("those who expect others", func(t *testing.T) {
		w := fresh(t, 1, 2)
		w.start("a")
		w.config.Expect = 3
		w.start("b", "c")
		w.run(time.Minute)
		for _, name := range []string{"a", "b", "c"} {
			w.told(name)
		}
	})
}

// Two founders of five that each reach three, of which one is the same, never both succeed.
func TestFoundersShareAProcess(t *testing.T) {
	w := fresh(t, 1, 3)
	w.split("a b", "d e")
	w.start("a", "b", "c", "d", "e")
	w.until(8*time.Second, "one set", func() bool { return len(w.sets()) == 1 })
	w.run(time.Minute)
	if ids := w.sets(); len(ids) != 1 {
		w.failf("sets %v", ids)
	}
	w.heal()
	w.until(8*time.Second, "all are counted", w.counted("a b c d e"))
}

// A founder that is lost before its set was in force delays the others for some seconds, whether it comes back or not.
func TestFounderIsGone(t *testing.T) {
	for _, c := range []struct {
		name  string
		disk  bool
		again bool
	}{{"for good", false, false}, {"and comes back", false, true}, {"for good, with disks", true, false}, {"and comes back, with disks", true, true}} {
		t.Run(c.name, func(t *testing.T) {
			w := fresh(t, 1, 3)
			if c.disk {
				w.disk("a", "b", "c", "d")
			}
			accepted := 0
			w.lost = func(e message.Envelope) bool {
				if b, ok := e.Body.(*message.Accepted); ok && b.OK && e.To.Name == "a" {
					accepted++
					return true
				}
				return false
			}
			w.start("a", "b", "c")
			w.until(2*time.Second, "both have accepted", func() bool { return accepted >= 2 })
			w.crash("a")
			w.run(time.Second)
			w.lost = nil
			if c.again {
				w.start("a")
				w.until(8*time.Second, "all are counted", w.counted("a b c"))
				return
			}
			w.start("d")
			w.until(12*time.Second, "all are counted", w.counted("b c d"))
		})
	}
}

// The founder alone knows that its set is in force when it is isolated; the others found another, and it joins them.
func TestFounderIsCutOff(t *testing.T) {
	w := fresh(t, 1, 3)
	w.lost = func(e message.Envelope) bool {
		_, asks := e.Body.(*message.Accept)
		return e.From.Name == "a" && !asks && !w.all["a"].m.Set().Zero()
	}
	w.start("a", "b", "c")
	w.until(2*time.Second, "in force at a", func() bool { return !w.all["a"].m.Set().Zero() })
	w.split("a", "b c d e")
	w.lost = nil
	w.start("d")
	w.until(15*time.Second, "b, c and d found a set", func() bool {
		return slices.Equal(w.all["b"].m.Set().Members, []string{"b", "c", "d"}) && w.all["b"].has()
	})
	w.heal()
	w.until(10*time.Second, "all are counted", w.counted("a b c d"))
}

// As before, but no other process comes: the three that accepted have to start again.
func TestFounderComesBackTooLate(t *testing.T) {
	w := fresh(t, 1, 3)
	w.start("a", "b", "c")
	w.lost = func(e message.Envelope) bool { return e.From.Name == "a" && !w.all["a"].m.Set().Zero() }
	w.until(2*time.Second, "in force at a", func() bool { return !w.all["a"].m.Set().Zero() })
	w.run(6 * time.Second)
	w.told("b")
	w.lost = nil
	w.until(10*time.Second, "all are counted", w.counted("a b c"))
}

// TestStaleLargerSet is review finding B5: a set from an old disk, larger than that of a healthy cluster, takes its quorum.
func TestStaleLargerSet(t *testing.T) {
	w := settle(t, "b c")
	id := w.all["b"].m.Set().ID
	w.boot("a", 0, message.Set{ID: "z-other", Version: 3, Members: []string{"a", "x", "y"}})
	for range 100 {
		w.run(100 * time.Millisecond)
		if !w.withQuorum("b", "c")() || w.all["b"].m.Set().ID != id {
			w.failf("the healthy cluster has lost its quorum or its set")
		}
	}
	w.until(time.Second, "a has joined it", w.counted("a b c"))
}

// A set from disk that has its quorum again is adopted by processes that know none, but not before.
func TestSetFromDiskOfAOutsider(t *testing.T) {
	w := fresh(t, 1, 2)
	old := message.Set{ID: "z-other", Version: 3, Members: []string{"a", "x", "y"}}
	w.boot("a", 0, old)
	w.start("b", "c")
	w.run(time.Minute)
	w.told("b") // nor does it found one: a may be about to have its quorum again
	w.boot("x", 0, old)
	w.until(10*time.Second, "b and c have taken it", w.agreed)
}

// TestSetOnDiskIsCurrent is review finding B6: a process has acknowledged and voted only at versions that are on its disk.
func TestSetOnDiskIsCurrent(t *testing.T) {
	t.Run("alone once", func(t *testing.T) {
		w := fresh(t, 1, 1)
		w.disk("a", "b", "c")
		w.start("a")
		w.until(time.Second, "a has founded", w.counted("a"))
		w.start("b", "c")
		w.until(3*time.Second, "all are counted", w.counted("a b c"))
		w.split("a", "b c")
		w.restart("a", message.Set{})
		w.run(time.Minute)
		if w.all["a"].has() || !w.withQuorum("b", "c")() {
			w.failf("a has quorum alone, or the others have lost theirs")
		}
	})
	t.Run("a crash before the disk has it", func(t *testing.T) {
		w := fresh(t, 1, 2)
		w.disk("a", "b", "c")
		w.start("a", "b")
		w.until(time.Second, "counted", w.counted("a b"))
		w.run(time.Second)
		w.fsync = 1e12 // nothing is written any more
		told := false
		w.lost = func(e message.Envelope) bool {
			switch b := e.Body.(type) {
			case *message.Heartbeat:
				told = told || b.Set.Version > 1
			case *message.Ack:
				told = told || b.Set.Version > 1
			}
			return false
		}
		w.start("c")
		w.run(3 * time.Second)
		if told || w.all["a"].m.Set().Version != 1 {
			w.failf("a version was told that no disk has")
		}
		for _, name := range []string{"a", "b", "c"} {
			w.crash(name)
		}
		w.run(time.Second)
		w.fsync = 3 * ms
		for _, name := range []string{"a", "b", "c"} {
			w.boot(name, 0, message.Set{})
		}
		w.until(8*time.Second, "all are counted", w.counted("a b c"))
	})
	t.Run("an acceptance", func(t *testing.T) {
		// b accepts a's founding and is killed: its next run must not found with d and e, as long as a may have its set in force.
		w := fresh(t, 1, 3)
		w.disk("a", "b", "c", "d", "e")
		w.start("a", "b", "c")
		w.until(2*time.Second, "in force at a", func() bool { return !w.all["a"].m.Set().Zero() })
		w.crash("b")
		w.split("a c", "b d e")
		w.start("b", "d", "e")
		w.run(time.Minute)
		if ids := w.sets(); len(ids) != 1 {
			w.failf("sets %v", ids)
		}
	})
}

// A process that cannot write its set gives up quorum, and gets it back when the disk works again.
func TestDiskThatFails(t *testing.T) {
	w := fresh(t, 1, 3)
	w.disk("a", "b", "c")
	w.start("a", "b", "c")
	w.until(2*time.Second, "counted", func() bool { return w.agreed() && w.withQuorum()() })
	w.full["a"] = true
	w.start("d")
	w.until(2*time.Second, "the others go on", func() bool { return show(w.all["b"].m.Set()) == "2: a b c d" })
	w.run(time.Second)
	if a := w.all["a"]; a.has() || a.m.Set().Version != 1 {
		w.failf("a goes on without its disk")
	}
	if !w.withQuorum("b", "c", "d")() {
		w.failf("the others have lost quorum")
	}
	w.full["a"] = false
	w.until(2*time.Second, "a is back", func() bool { return w.agreed() && w.withQuorum()() })
}

func TestBootstrapByHand(t *testing.T) {
	t.Run("without a set", func(t *testing.T) {
		w := fresh(t, 1, 3)
		w.start("a", "b")
		w.run(time.Second)
		if err := w.all["b"].m.Bootstrap(w.all["b"].clock()); err != nil {
			t.Fatal(err)
		}
		w.until(3*time.Second, "both are counted", w.counted("a b"))
	})
	for _, disk := range []bool{false, true} {
		t.Run(fmt.Sprint("after a loss, with a disk ", disk), func(t *testing.T) {
			w := fresh(t, 1, 5)
			names := strings.Fields("a b c d e")
			if disk {
				w.disk(names...)
			}
			w.start(names...)
			w.until(3*time.Second, "counted", w.counted("a b c d e"))
			b := w.all["b"]
			w.until(time.Second, "quorum", b.has)
			if err := b.m.Bootstrap(b.clock()); err != member.ErrHasQuorum {
				t.Errorf("got %v", err)
			}
			for _, name := range []string{"a", "d", "e"} {
				w.crash(name)
			}
			w.run(5 * time.Second)
			if err := b.m.Bootstrap(b.clock()); err != nil {
				t.Fatal(err)
			}
			w.until(8*time.Second, "c has joined b", func() bool { return w.counted("b c")() && w.withQuorum()() })
		})
	}
}

// TestRandomFoundings has five processes found a set, three at a time, through cuts, losses, pauses and crashes. With disks they may
// come back; without, a process that has started again may have forgotten what it has accepted, so none does.
func TestRandomFoundings(t *testing.T) {
	for _, disks := range []bool{false, true} {
		t.Run(fmt.Sprint("disks ", disks), func(t *testing.T) {
			t.Parallel()
			for seed := *firstSeed; seed < *firstSeed+*seeds; seed++ {
				t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { foundings(t, seed, disks) })
			}
		})
	}
}

func foundings(t *testing.T, seed uint64, disks bool) {
	w := fresh(t, seed, 3)
	w.slow, w.late, w.delay = 0.03, 1500*ms, 1+w.rng.Int64N(10*ms)
	w.loss, w.double = w.rng.Float64()*0.3, w.rng.Float64()*0.2
	names := []string{"a", "b", "c", "d", "e"}
	if disks {
		w.disk(names...)
		w.fsync = 1 + w.rng.Int64N(200*ms)
	}
	for _, name := range names {
		w.boot(name, w.rng.Int64N(1500*ms), message.Set{})
	}
	crashes := 0
	for end := w.now + 12_000*ms; w.now < end; w.run(time.Duration(20*ms + w.rng.Int64N(600*ms))) {
		ps := w.running()
		p, q := ps[w.rng.IntN(len(ps))], ps[w.rng.IntN(len(ps))]
		switch w.rng.IntN(8) {
		case 0, 1:
			w.cut(p.id.Name, q.id.Name)
		case 2:
			i := 1 + w.rng.IntN(4)
			order := w.rng.Perm(5)
			var side [2]string
			for j, at := range order {
				side[min(j/i, 1)] += " " + names[at]
			}
			w.heal()
			w.split(side[0], side[1])
		case 3, 4:
			w.heal()
		case 5:
			p.asleep = w.now + w.rng.Int64N(5000*ms)
		case 6, 7:
			if !disks && crashes == 1 {
				continue
			}
			crashes++
			w.crash(p.id.Name)
			if disks {
				w.run(time.Duration(1 + w.rng.Int64N(1000*ms)))
				w.boot(p.id.Name, w.rng.Int64N(1000*ms), message.Set{})
			} else {
				delete(w.all, p.id.Name)
			}
		}
	}
	for _, p := range w.running() {
		w.run(time.Duration(max(p.asleep-w.now, 0)))
	}
	w.heal()
	w.loss, w.double, w.late = 0, 0, 1
	w.until(25*time.Second, "all agree and have quorum", func() bool { return w.agreed() && w.withQuorum()() })
}

// A process that gets messages for an earlier boot ID from a process that knows a set is missed there: it founds none.
func TestMissedByOthers(t *testing.T) {
	l := newLone(t, message.Set{})
	say := func(now int64, set message.Set) {
		l.Step(now, message.Envelope{From: y, To: message.Peer{Name: "x", Boot: "0-x"}, Body: &message.Heartbeat{Sent: now, Set: set}})
	}
	say(0, set(3, "x", "y"))
	l.MayFound(10*ms, true, true)
	l.Tick(9_900 * ms)
	if !l.Set().Zero() {
		t.Error("founds a set while others miss it")
	}
	say(10_500*ms, message.Set{}) // a process that knows none misses no other
	l.Tick(11_000 * ms)
	if l.Set().Zero() {
		t.Error("founds none when nobody misses it any more")
	}
}
