package quorum_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// alone runs a, which founds a set of one, and keeps a copy of its disk from then.
func alone(t *testing.T) (w *testCluster, old message.Record) {
	w = newTestCluster(t, 1)
	w.config.Expect = 1
	w.disks["a"] = new(message.Record)
	w.boot("a", 0, message.Set{})
	w.until(time.Second, "quorum", w.withQuorum())
	return w, *w.disks["a"]
}

// restore ends a and starts it again with an old disk and join targets.
func (w *testCluster) restore(old message.Record, targets ...string) *process {
	w.crash("a")
	w.run(5 * time.Second)
	*w.disks["a"] = old
	a := w.boot("a", 100*ms, message.Set{})
	a.targets = targets
	return a
}

// A directory from when a was alone proves nothing: others have joined since, and a majority of
// them decides without a.
func TestRestoredFromWhenItWasAlone(t *testing.T) {
	for _, expect := range []int{0, 1, 2, 3} {
		t.Run(fmt.Sprint("expect ", expect), func(t *testing.T) {
			w, old := alone(t)
			for _, name := range []string{"b", "c"} {
				w.boot(name, 0, message.Set{})
				w.until(time.Second, name+" joins", w.all[name].m.In)
			}
			w.config.Expect = expect
			w.split("a", "b c")
			a := w.restore(old, "b", "c")
			promised := false
			w.lost = func(e message.Envelope) bool {
				ack, ok := e.Body.(*message.Ack)
				promised = promised || ok && ack.OK && e.From == a.id
				return false
			}
			w.run(time.Minute)
			if a.has() || promised || a.m.Promises(a.clock()) || a.m.NoneDecides(a.clock()) {
				w.failf("a acts on a set of before the others joined")
			}
			if !w.withQuorum("b", "c")() {
				w.failf("b and c are a majority")
			}
			if s := a.m.Set(); !a.m.Unproven() || !s.Equal(old.Set) {
				w.failf("a knows %s", show(s))
			}
			w.heal()
			w.until(5*time.Second, "a knows the later version", w.counted("a b c"))
			began := w.now
			w.boot("d", 0, message.Set{}) // something to vote on
			for w.now < began+1900*ms {
				w.run(10 * time.Millisecond)
				if promised {
					w.failf("a promised something after %v, and an earlier run of it was a voter",
						time.Duration(w.now-began))
				}
			}
			w.until(time.Second, "quorum", w.withQuorum())
		})
	}
}

// The others hear from a before it hears from them: it must not decide in between.
func TestRestoredAndNotToldYet(t *testing.T) {
	w, old := alone(t)
	w.boot("b", 0, message.Set{})
	w.boot("c", 0, message.Set{})
	w.until(time.Second, "both join", w.counted("a b c"))
	for _, way := range []string{"b", "c"} {
		w.cut(way, "a") // for less than gossip needs to notice
	}
	w.crash("a")
	*w.disks["a"] = old
	w.run(100 * time.Millisecond)
	a := w.boot("a", 0, message.Set{})
	for range 80 {
		w.run(10 * time.Millisecond)
		if a.has() {
			w.failf("a decides without having heard those in its view")
		}
	}
	w.heal()
	w.until(3*time.Second, "quorum", w.withQuorum())
}

// A process that was alone, and still is, decides again when its join targets have answered, or
// with as many others as found a set, whatever these know, or when the operator says so.
func TestStillAlone(t *testing.T) {
	for _, c := range []struct {
		name    string
		expect  int
		targets string
		others  []string
		decides bool
	}{
		{"no join targets", 1, "", nil, true},
		{"no join targets, of three", 3, "", nil, true},
		{"a target is down", 1, "b", nil, false},
		{"a target is down, another has no set", 1, "b", []string{"c"}, true},
		{"it only joins, a target is down, another has no set", 0, "b", []string{"c"}, true},
		{"a target is down, and three found a set", 3, "b", []string{"c"}, false},
		{"a target is down, and three are there", 3, "b", []string{"c", "d"}, true},
		{"the target has no set, and three found one", 3, "c", []string{"c"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, old := alone(t)
			var targets []string
			if c.targets != "" {
				targets = []string{c.targets}
			}
			w.config.Expect = c.expect
			a := w.restore(old, targets...)
			for _, name := range c.others {
				w.boot(name, 0, message.Set{})
			}
			w.run(3 * time.Second)
			if a.has() != c.decides || a.m.Unproven() == c.decides {
				w.failf("want it to decide: %v", c.decides)
			}
			if s := a.m.Set(); c.decides && s.ID != old.Set.ID {
				w.failf("it has another set: %+v", s)
			}
			if c.decides {
				w.until(3*time.Second, "the others join", w.withQuorum())
				return
			}
			if err := a.m.Bootstrap(a.clock()); err != nil {
				t.Fatal(err)
			}
			w.until(time.Second, "the operator's set", a.has)
			if s := a.m.Set(); s.ID == old.Set.ID {
				w.failf("by hand it goes on with the old set")
			}
		})
	}
}
