package quorum_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// founders has y and z say to x, which knows no set, that they know none and expect three.
func founders(l lone, now int64, from ...message.Peer) {
	for _, p := range from {
		l.say(now, p, &message.Heartbeat{Sent: now, Expect: 3, Founding: 1})
	}
}

// A process that has accepted a founding of which nothing is heard any more takes no part in it, says so when its disk has it, and takes
// that set only from a process that has quorum in it.
func TestPromiseToTakeNoPart(t *testing.T) {
	l := lone{t, quorum.New(quorum.Config{Self: x, Expect: 3, Disk: true}, 0)}
	l.MayFound(0, true, true)
	founders(l, 100*ms, y, z)
	founding := message.Set{ID: y.Boot, Version: 1, Members: []string{"x", "y", "z"}}
	accept := &message.Accept{Set: founding, Ballot: message.Ballot{Round: 1, Boot: y.Boot}}
	if said := l.say(110*ms, y, accept); len(said) != 0 {
		t.Errorf("said %s before the disk has it", describe(said...))
	}
	store := func(now int64) {
		t.Helper()
		r, ok := l.Unstored()
		if !ok {
			t.Fatal("nothing is to be stored")
		}
		l.Stored(now, r)
	}
	store(120 * ms)
	if said := l.say(210*ms, y, accept); len(said) != 1 || !said[0].(*message.Accepted).OK {
		t.Errorf("said %s, want that it has accepted", describe(said...))
	}
	other := &message.Accept{Set: message.Set{ID: z.Boot, Version: 1, Members: founding.Members}, Ballot: message.Ballot{Round: 1, Boot: z.Boot}}
	if said := l.say(220*ms, z, other); len(said) != 1 || said[0].(*message.Accepted).OK {
		t.Errorf("said %s to a second founder", describe(said...))
	}
	void := func(now int64) []string {
		t.Helper()
		founders(l, now, z)
		l.SetView(now, nil)
		l.SetView(now, []message.Peer{z})
		return beat(t, l, z).Void
	}
	l.Tick(3300 * ms)
	if v := void(3310 * ms); v != nil {
		t.Errorf("promises %v before the disk has it", v)
	}
	store(3320 * ms)
	if v := void(3330 * ms); !slices.Equal(v, []string{y.Boot}) {
		t.Errorf("promises %v", v)
	}
	l.say(3400*ms, y, &message.Heartbeat{Sent: 3400 * ms, Set: founding, NoQuorum: true})
	l.Tick(3410 * ms)
	if r, ok := l.Unstored(); ok {
		t.Errorf("takes %+v from who has no quorum in it", r.Set)
	}
	l.say(3500*ms, y, &message.Heartbeat{Sent: 3500 * ms, Set: founding})
	store(3510 * ms)
	l.say(3600*ms, y, &message.Heartbeat{Sent: 3600 * ms, Set: founding})
	if !l.Set().Equal(founding) {
		t.Errorf("knows %s, want what has quorum", show(l.Set()))
	}
}

// A process whose disk does not take the next version has no quorum until it does, also where it is counted alone.
func TestNoQuorumWithoutTheDisk(t *testing.T) {
	mine := set(1, "x")
	l := lone{t, quorum.New(quorum.Config{Self: x, Disk: true, Record: message.Record{Set: mine}}, 0)}
	l.MayFound(0, true, true)
	for now := 2500 * ms; now < 3000*ms; now += 100 * ms { // y wishes to join, and acknowledges
		l.Introduced(y)
		l.say(now, y, &message.Heartbeat{Sent: now, Set: mine, Wish: message.Join})
		l.say(now, y, &message.Ack{Sent: now, OK: true, Set: mine})
		l.Tick(now)
	}
	r, ok := l.Unstored()
	if !ok || show(r.Set) != "2: x y" || l.QuorumUntil() < 3000*ms {
		t.Fatalf("the disk is to have %+v; quorum until %d", r, l.QuorumUntil())
	}
	l.StoreFailed(3000 * ms)
	if l.QuorumUntil() >= 3000*ms || l.acks(3010*ms, y, message.Heartbeat{Sent: 3010 * ms, Set: mine}) {
		t.Error("goes on without its disk")
	}
	l.Stored(3020*ms, r)
	if show(l.Set()) != "2: x y" {
		t.Errorf("knows %s", show(l.Set()))
	}
}

// Of two founders that are in each other's way the one with the lower name goes on.
func TestTwoFounders(t *testing.T) {
	w := fresh(t, 1, 4)
	w.lost = func(e message.Envelope) bool {
		_, asks := e.Body.(*message.Accept)
		return asks && e.To.Name == "d"
	}
	w.start("a", "b", "c", "d")
	w.run(3 * time.Second) // each founds in its turn, in vain
	w.lost = nil
	w.until(1500*time.Millisecond, "one set", w.counted("a b c d"))
}
