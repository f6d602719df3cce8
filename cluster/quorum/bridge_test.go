package quorum_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestBridge: of a, b and c, h reaches only a. a hears h, has quorum, and no longer considers h live, but still listens to it
// and learns soon when h has quorum again.
func TestBridge(t *testing.T) {
	w := settle(t, "a b c h")
	a, h := w.all["a"], w.all["h"]
	w.split("h", "b c")
	took := w.until(1200*time.Millisecond, "h stands in nobody's way", func() bool { return !a.m.Lives(a.clock(), h.id) })
	if h.has() || took < 800*time.Millisecond {
		w.failf("h is outvoted after %v; it has quorum: %v", took, h.has())
	}
	if heard := a.m.Heard(h.id); heard > 0 {
		w.failf("a claims of h wait, it was heard at %d", heard)
	}
	if !a.m.Listens(a.clock(), h.id) || !slices.Contains(a.m.Outvoted(a.clock()), h.id) || slices.Contains(a.m.Living(a.clock()), h.id) {
		w.failf("h is not listed as one that listens and lacks quorum")
	}
	if !h.m.Lives(h.clock(), a.id) {
		w.failf("h takes a, which has quorum, for outvoted")
	}
	w.heal()
	w.until(time.Second, "h lives", func() bool { return h.has() && a.m.Lives(a.clock(), h.id) })
}

// TestOutsiderIsNotOutvoted: a node that lacks quorum only because the sole voter does not acknowledge it before it is
// introduced counts as live: it may have the only replica of what the voter owned before its restart.
func TestOutsiderIsNotOutvoted(t *testing.T) {
	only := set(3, "x")
	l := newLone(t, only)
	l.SetView(0, []message.Peer{y})
	lives := func(from, until int64) bool {
		for at := from; at < until; at += 100 * ms {
			l.say(at, y, &message.Heartbeat{Sent: at, Set: only, NoQuorum: true})
			l.Tick(at)
		}
		return l.Lives(until, y)
	}
	if !lives(100*ms, 2000*ms) {
		t.Error("a node that is not introduced is outvoted")
	}
	l.Introduced(y)
	if lives(2000*ms, 4000*ms) {
		t.Error("a node that lacks quorum is not outvoted")
	}
}

// TestQuorumWhenVotersJoin: a process that loses quorum because a voter was added reports that only after 100 ms, since the new
// voter acknowledges it soon. When it has quorum again, it says so at once.
func TestQuorumWhenVotersJoin(t *testing.T) {
	three, four := set(1, "x", "y", "z"), set(2, "w", "x", "y", "z")
	l := newLone(t, three)
	l.SetView(0, []message.Peer{y, z})
	ack := func(at int64, from message.Peer, s message.Set) {
		l.say(at, from, &message.Ack{Sent: at, OK: true, Set: s})
	}
	for at := 100 * ms; at <= 3000*ms; at += 100 * ms {
		l.Tick(at)
		ack(at, y, three)
	}
	says := func(at int64, to message.Peer, lacks bool) {
		t.Helper()
		if h := beat(t, l, to); h.NoQuorum != lacks {
			t.Errorf("at %d ms x says to %s that it lacks quorum: %v, want %v", at/ms, to.Name, h.NoQuorum, lacks)
		}
	}
	l.Take()
	l.Step(3010*ms, message.Envelope{From: y, To: x, ClusterID: three.ID, Body: &message.Heartbeat{Sent: 1, Set: four}})
	if l.Set().Version != 2 || l.QuorumUntil() > 3010*ms {
		t.Fatalf("x knows %v and has quorum until %d", l.Set(), l.QuorumUntil())
	}
	says(3010*ms, z, false)
	ack(3020*ms, y, four)
	for at, lacks := range map[int64]bool{3100 * ms: false, 3110 * ms: false, 3111 * ms: true} {
		if l.LacksQuorum(at) != lacks {
			t.Errorf("at %d ms x lacks quorum: %v, want %v", at/ms, !lacks, lacks)
		}
	}
	l.Take()
	l.Tick(3120 * ms)
	says(3120*ms, y, true)
	l.Take()
	l.Step(3130*ms, message.Envelope{From: z, To: x, ClusterID: three.ID, Body: &message.Ack{Sent: 3120 * ms, OK: true, Set: four}})
	says(3130*ms, y, false)
}

// TestFlappingIsNotOutvoted: a voter that loses quorum only briefly, and voters that lose it all together, are never outvoted.
func TestFlappingIsNotOutvoted(t *testing.T) {
	for _, c := range []struct {
		name, group, others string
		cut, healed         time.Duration
	}{
		{"one, for moments", "h", "b c", 800 * time.Millisecond, 400 * time.Millisecond},
		{"two and two", "h a", "b c", 3 * time.Second, 2 * time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := settle(t, "a b c h")
			lost := 0
			watch := func(d time.Duration) {
				for end := w.now + int64(d); w.now < end; w.run(5 * time.Millisecond) {
					if !w.all["h"].has() {
						lost++
					}
					for _, p := range w.running() {
						if out := p.m.Outvoted(p.clock()); len(out) > 0 {
							w.failf("%s takes %v for outvoted", p.id.Name, out)
						}
					}
				}
			}
			for range 6 {
				w.split(c.group, c.others)
				watch(c.cut)
				w.heal()
				watch(c.healed)
			}
			if lost == 0 {
				t.Error("h has always had quorum")
			}
		})
	}
}

// TestRest: no claim waits for a process that rests before it ends; its acknowledgements still count.
func TestRest(t *testing.T) {
	w := settle(t, "a b c")
	a, c := w.all["a"], w.all["c"]
	c.m.Rest()
	w.until(200*time.Millisecond, "c does not live", func() bool { return !a.m.Lives(a.clock(), c.id) })
	w.crash("b")
	w.run(3 * time.Second)
	if !a.has() {
		w.failf("a has no quorum by c's acknowledgements")
	}
	if a.m.Lives(a.clock(), c.id) {
		w.failf("c lives again")
	}
}
