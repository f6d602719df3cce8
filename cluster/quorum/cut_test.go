package quorum_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// In a one-way cut, processes that get no acknowledgements have no quorum; the others keep theirs.
func TestOneWayCut(t *testing.T) {
	for _, c := range []struct {
		name     string
		from, to []string
		quorum   map[string]bool
	}{
		{"c is heard by nobody", []string{"c"}, []string{"a", "b"}, map[string]bool{"a": true, "b": true, "c": false}},
		{"c hears nobody", []string{"a", "b"}, []string{"c"}, map[string]bool{"a": true, "b": true, "c": false}},
		{"a and b miss each other, c hears both", []string{"a"}, []string{"b"}, map[string]bool{"a": true, "b": true, "c": true}},
		{"a hears nobody and is heard by c alone", []string{"b", "c"}, []string{"a"}, map[string]bool{"a": false, "b": true, "c": true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := settle(t, "a b c")
			for _, from := range c.from {
				for _, to := range c.to {
					w.cut(from, to)
				}
			}
			w.run(5 * time.Second)
			for name, want := range c.quorum {
				if w.all[name].has() != want {
					t.Errorf("%s has quorum: %v, want %v", name, !want, want)
				}
			}
			w.heal()
			w.until(2*time.Second, "quorum", w.withQuorum())
			if !w.counted("a b c")() || w.all["a"].m.Set().Version != 1 {
				t.Error("the cut changed the set")
			}
		})
	}
}

func TestMinorityNeverChangesTheSet(t *testing.T) {
	w := settle(t, "a b c d e")
	w.split("a b", "c d e")
	w.start("f") // on the side of a and b
	w.split("f", "c d e")
	w.all["b"].leaving = true
	w.run(5 * time.Second)
	if v := w.all["a"].m.Set().Version; v != 1 || w.withQuorum("a")() || w.withQuorum("f")() {
		w.failf("two of five are at version %d", v)
	}
	if !w.withQuorum("c", "d", "e")() {
		w.failf("three of five have no right")
	}
	w.all["e"].leaving = true
	w.until(time.Second, "a majority changes it", func() bool { return show(w.all["c"].m.Set()) == "2: a b c d" })
	// From now on two are half: a minority, like the other two.
	w.crash("e")
	w.run(time.Second)
	if w.withQuorum("c")() || w.withQuorum("a")() {
		w.failf("half of four has quorum")
	}
	w.heal()
	w.until(3*time.Second, "all is well", w.counted("a c d f"))
}

// a and b do not hear each other, so both consider themselves the coordinator. They also see different newcomers.
func TestTwoProposers(t *testing.T) {
	for seed := range uint64(20) {
		w := settle(t, "a b c d e")
		w.delay, w.slow, w.late = 1+int64(seed)*3*ms, 0.5, 50*ms
		w.cut("a", "b")
		w.cut("b", "a")
		w.start("f", "g")
		w.split("f", "b")
		w.split("g", "a")
		w.run(1100 * time.Millisecond)
		w.until(10*time.Second, "both are counted", w.counted("a b c d e f g"))
	}
}

// z is not a voter but has quorum by a's acknowledgement. Even if every member knows a version, the next one must wait as long
// as z may have quorum.
func TestSpacingCoversWhoIsNotCounted(t *testing.T) {
	w := settle(t, "a")
	z := w.boot("z", 0, message.Set{})
	z.leaving = true // it does not wish to be counted
	w.until(time.Second, "quorum", w.withQuorum())
	w.split("z", "a b c")
	w.start("b", "c")
	w.until(200*time.Millisecond, "b counted", func() bool { return show(w.all["b"].m.Set()) == "2: a b" })
	for z.has() {
		w.run(10 * time.Millisecond)
		if w.all["a"].m.Set().Version > 2 {
			w.failf("z has quorum in 1: a")
		}
	}
	w.until(200*time.Millisecond, "c counted", func() bool { return show(w.all["b"].m.Set()) == "3: a b c" })
}

// Whether a version is agreed must not depend on which process remembers it: a has learned that d is a voter, with b's vote,
// and is isolated before it can report it. b restarts, and could now help c to add e instead. Or it is the proposer that
// restarts, and the voter that is isolated.
func TestRestartedVoterAsksFirst(t *testing.T) {
	for _, restarts := range []string{"a", "b"} {
		w := settle(t, "a b c")
		w.split("c", "d")
		w.lost = func(e message.Envelope) bool {
			tells := e.From.Name == "a" || restarts == "a"
			switch b := e.Body.(type) {
			case *message.Prepare, *message.Accept:
				return e.To.Name == "c"
			case *message.Heartbeat:
				return tells && b.Set.Version == 2
			case *message.Ack:
				return tells && b.Set.Version == 2
			}
			return false
		}
		w.start("d")
		w.until(time.Second, "a knows", func() bool { return show(w.all["a"].m.Set()) == "2: a b c d" })
		w.lost = nil
		w.crash(restarts)
		if restarts == "a" {
			w.crash("d")
			w.start("a", "e")
			w.run(100 * time.Millisecond)
			w.split("b", "a c e")
			w.run(10 * time.Second)
		} else {
			w.split("a d", "b c e")
			w.start("b", "e")
			w.run(10 * time.Second)
			if !w.withQuorum("b", "c")() {
				w.failf("b and c are two of the three they know, and have no right")
			}
		}
		w.heal()
		w.until(5*time.Second, "all are counted", w.counted("a b c d e"))
	}
}
