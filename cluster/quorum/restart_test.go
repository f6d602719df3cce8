package quorum_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// restart starts name again at once.
func (w *testCluster) restart(name string, snapshot message.Set) *process {
	w.crash(name)
	w.run(time.Millisecond)
	return w.boot(name, 100*ms, snapshot)
}

func TestRestartWithinASecond(t *testing.T) {
	for _, name := range []string{"a", "b"} {
		for _, from := range []string{"messages", "a snapshot"} {
			t.Run(name+" from "+from, func(t *testing.T) {
				w := settle(t, "a b c")
				began := w.now
				var snapshot message.Set
				if from == "a snapshot" {
					snapshot = w.all[name].m.Set()
				}
				var p *process
				promised := false
				w.lost = func(e message.Envelope) bool {
					if p == nil || e.From != p.id {
						return false
					}
					switch b := e.Body.(type) {
					case *message.Ack:
						promised = promised || b.OK
					case *message.Promise:
						promised = promised || b.OK
					case *message.Accepted:
						promised = promised || b.OK
					}
					return false
				}
				p = w.restart(name, snapshot)
				w.until(100*time.Millisecond, "in the set", p.m.In)
				w.start("d") // something to vote on
				w.run(time.Duration(began + 2000*ms - w.now))
				if promised || p.m.Promises(p.clock()) {
					w.failf("%s promised something in its grace", name)
				}
				if !w.withQuorum()() || !w.counted("a b c d")() {
					w.failf("the others are a majority without %s", name)
				}
				w.run(200 * time.Millisecond)
				if !promised || !p.m.Promises(p.clock()) {
					w.failf("%s is past its grace and promises nothing", name)
				}
				w.all["c"].leaving = true
				w.until(time.Second, "c counted out", w.counted("a b d"))
				if p.m.Set().Version != 3 || p.m.Dissolved() != 0 {
					w.failf("want the set of before with d and without c")
				}
			})
		}
	}
}

// In its grace a process does not count itself either: of two, neither has quorum until the restarted one makes promises again.
func TestRestartOfOneOfTwo(t *testing.T) {
	w := settle(t, "a b")
	b := w.restart("b", message.Set{})
	w.run(700 * time.Millisecond)
	if w.withQuorum("a")() || b.has() {
		w.failf("one of two has quorum")
	}
	w.run(1200 * time.Millisecond)
	if w.withQuorum("a")() || b.has() {
		w.failf("one of two has quorum")
	}
	w.until(300*time.Millisecond, "quorum", w.withQuorum())
}

func TestAllRestartFromSnapshots(t *testing.T) {
	w := settle(t, "a b")
	w.start("c")
	w.until(time.Second, "c counted", w.counted("a b c"))
	old := w.all["a"].m.Set()
	for _, name := range []string{"a", "b", "c"} {
		w.crash(name)
	}
	w.run(time.Minute)
	// c's snapshot is of a time before it knew of itself.
	snapshots := map[string]message.Set{"a": old, "b": old, "c": {ID: old.ID, Version: 1, Members: []string{"a", "b"}}}
	for _, name := range []string{"c", "b", "a"} {
		w.boot(name, 0, snapshots[name])
	}
	w.run(1900 * time.Millisecond)
	if w.withQuorum("a")() {
		w.failf("no grace after a restart of all")
	}
	w.until(300*time.Millisecond, "quorum", w.withQuorum())
	if s := w.all["c"].m.Set(); key(s) != key(old) {
		w.failf("c knows %s, want the old set", show(s))
	}
	w.all["b"].leaving = true
	w.until(300*time.Millisecond, "b counted out", func() bool { return !w.all["b"].m.In() })
}

// A lone voter needs no grace to decide and promise. But it has forgotten which processes got quorum from it, so the set
// changes only after the grace.
func TestRestartOfTheOnlyMember(t *testing.T) {
	w := settle(t, "a")
	z := w.boot("z", 0, message.Set{})
	z.leaving = true // it does not wish to be counted
	w.until(time.Second, "quorum", w.withQuorum())
	w.split("z", "a w y")
	a := w.restart("a", w.all["a"].m.Set())
	w.start("w", "y")
	if !a.has() || !a.m.Promises(a.clock()) {
		w.failf("a waits for nobody")
	}
	w.run(500 * time.Millisecond)
	if !z.has() || !a.has() {
		w.failf("z lost quorum too early for this test, or a did")
	}
	w.until(3*time.Second, "counted", func() bool { return show(a.m.Set()) == "3: a w y" })
}

// A restarted member without responses gets its vote back when the silent member would be removed from the set.
func TestVoteComesBack(t *testing.T) {
	w := settle(t, "a b c")
	w.crash("c")
	w.restart("b", message.Set{})
	w.start("d")
	w.run(9 * time.Minute)
	if w.all["a"].m.Set().Version != 1 || !w.withQuorum()() {
		w.failf("want the old set, and quorum")
	}
	w.until(2*time.Minute, "d counted, c not", w.counted("a b d"))
}

// A vote of an ended run does not count: the next run does not know of it.
func TestRestartVoidsVotes(t *testing.T) {
	for _, restarts := range []bool{false, true} {
		w := settle(t, "a b c d e")
		a := w.all["a"]
		id := func(name string) message.Peer { return w.all[name].id }
		say := func(from message.Peer, b message.Body) []message.Envelope {
			a.m.Step(a.clock(), message.Envelope{From: from, To: a.id, ClusterID: a.m.Set().ID, Body: b})
			return a.m.Take()
		}
		say(id("e"), &message.Heartbeat{Sent: a.clock(), Set: a.m.Set(), Wish: message.Leave})
		a.m.Tick(a.clock())
		var ballot message.Ballot
		for _, e := range a.m.Take() {
			if b, ok := e.Body.(*message.Prepare); ok {
				ballot = b.Ballot
			}
		}
		vote := &message.Promise{Version: 2, Ballot: ballot, OK: true}
		say(id("b"), vote)
		if restarts {
			say(message.Peer{Name: "b", Boot: "99999999-b"}, &message.Heartbeat{Sent: 1})
		}
		accepts := 0
		for _, e := range say(id("c"), vote) {
			if _, ok := e.Body.(*message.Accept); ok {
				accepts++
			}
		}
		if want := map[bool]int{false: 4, true: 0}[restarts]; accepts != want {
			t.Errorf("b restarted: %v; %d Accepts, want %d", restarts, accepts, want)
		}
	}
}

// Two sets of one version, forgotten by hand on both sides of a network partition, meet.
func TestForgetOnBothSides(t *testing.T) {
	w := settle(t, "a b c d")
	w.law.byHand = true
	w.split("a b", "c d")
	w.run(2 * time.Second)
	for _, f := range []struct{ on, name string }{{"a", "c"}, {"a", "d"}, {"c", "a"}, {"c", "b"}} {
		if err := w.all[f.on].m.Forget(w.all[f.on].clock(), f.name); err != nil {
			t.Fatal(err)
		}
	}
	w.until(time.Second, "quorum", w.withQuorum())
	w.heal()
	w.until(5*time.Second, "all counted", w.counted("a b c d"))
	w.until(time.Second, "quorum", w.withQuorum())
}

// A process that has seen another founds no set for five seconds, even if the other leaves its view: it may itself be isolated.
func TestFoundsLateWhenCutOff(t *testing.T) {
	for _, c := range []struct {
		name   string
		seen   bool
		founds int64
	}{{"nobody was seen", false, 10 * ms}, {"y was", true, 5010 * ms}} {
		l := newLone(t, message.Set{})
		if c.seen {
			l.SetView(5*ms, []message.Peer{y})
		}
		l.MayFound(10*ms, true, true)
		now := 10 * ms
		for ; l.Set().Zero() && now < 10_000*ms; now += 25 * ms {
			if now == 610*ms {
				l.SetView(now, nil)
			}
			l.Tick(now)
		}
		if now -= 25 * ms; now < c.founds-25*ms || now > c.founds+25*ms {
			t.Errorf("%s: it founds a set at %d ms, want %d", c.name, now/ms, c.founds/ms)
		}
	}
}
