package quorum_test

import (
	"slices"
	"testing"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// x knows version 3 of y and z, and is not a voter. It adopts a later version only from a process that reports no more pending
// grants than x has seen, and whose set is confirmed.
func TestVersionsCarryPendingGrants(t *testing.T) {
	three, four := set(3, "y", "z"), set(4, "w", "y", "z")
	for _, c := range []struct {
		name string
		body message.Body
		saw  uint64
		want string
	}{
		{"no pending grants", &message.Heartbeat{Set: four}, 0, "4: w y z"},
		{"unseen pending grants", &message.Heartbeat{Set: four, GrantsSeq: 7}, 6, "3: y z"},
		{"seen pending grants", &message.Heartbeat{Set: four, GrantsSeq: 7}, 7, "4: w y z"},
		{"unconfirmed", &message.Heartbeat{Set: four, Unconfirmed: true}, 0, "3: y z"},
		{"an answer with unseen pending grants", &message.Ack{Set: four, GrantsSeq: 7}, 6, "3: y z"},
		{"an answer with seen pending grants", &message.Ack{Set: four, GrantsSeq: 7}, 7, "4: w y z"},
		{"an answer on an unconfirmed set", &message.Ack{Set: four, Unconfirmed: true}, 0, "3: y z"},
	} {
		l := newLone(t, three)
		l.Saw(y, c.saw)
		l.say(100*ms, y, c.body)
		if got := show(l.Set()); got != c.want {
			t.Errorf("%s: knows %s, want %s", c.name, got, c.want)
		}
	}
}

// x has no set. It adopts one in order to read the pending grants. Until it has, it acknowledges no heartbeat and reports its
// set as unconfirmed.
func TestUnconfirmed(t *testing.T) {
	mine := set(3, "y", "z")
	l := newLone(t, message.Set{})
	l.Introduced(y)
	l.Introduced(z)
	if l.acks(100*ms, y, message.Heartbeat{Set: mine, GrantsSeq: 2}) {
		t.Error("acknowledged on an unconfirmed set")
	}
	if got := show(l.Set()); got != "3: y z" {
		t.Fatalf("knows %s", got)
	}
	l.Take()
	l.Tick(300 * ms)
	if h := beat(t, l, z); !h.Unconfirmed {
		t.Errorf("told z %+v, want that it is unconfirmed", h)
	}
	if l.acks(310*ms, z, message.Heartbeat{Set: mine, Unconfirmed: true}) {
		t.Error("acknowledged on a set that another process knows unconfirmed")
	}
	if l.acks(320*ms, z, message.Heartbeat{Set: set(2, "z")}) {
		t.Error("acknowledged after word of who knows less")
	}
	l.Saw(y, 2)
	if !l.acks(330*ms, y, message.Heartbeat{Set: mine, GrantsSeq: 2}) {
		t.Error("not acknowledged after the pending grants was seen")
	}
	l.Take()
	l.Tick(500 * ms)
	if h := beat(t, l, z); h.Unconfirmed {
		t.Errorf("told z %+v, want that it knows", h)
	}
}

// The members of x's unconfirmed set have crashed and start again: x adopts their new set, but not before the last of them has,
// and not because of a process that was never a voter.
func TestUnconfirmedOfTheLost(t *testing.T) {
	old, young := set(3, "y", "z"), message.Set{ID: "a", Version: 1, Members: []string{"y"}}
	l := newLone(t, message.Set{})
	l.say(100*ms, y, &message.Heartbeat{Sent: 1, Set: old, GrantsSeq: 2})
	l.say(110*ms, z, &message.Heartbeat{Sent: 1, Set: old, GrantsSeq: 2})
	q := message.Peer{Name: "q", Boot: "1-q"}
	for _, c := range []struct {
		name  string
		at    int64
		from  message.Peer
		h     message.Heartbeat
		knows string
	}{
		{"somebody else's set", 120 * ms, q, message.Heartbeat{Set: message.Set{ID: "a", Version: 1, Members: []string{"q"}}}, "m"},
		{"y has begun anew, z has not", 200 * ms, later, message.Heartbeat{Set: young}, "m"},
		{"what y has is unconfirmed too", 900 * ms, later, message.Heartbeat{Set: young, Unconfirmed: true}, "m"},
		{"z is silent for so long that it counts as dead", 900 * ms, later, message.Heartbeat{Set: young}, "a"},
		{"z is back after all, and its set ranks higher", 1000 * ms, z, message.Heartbeat{Set: old, GrantsSeq: 2}, "m"},
	} {
		c.h.Sent = c.at
		l.say(c.at, c.from, &c.h)
		if got := l.Set().ID; got != c.knows {
			t.Errorf("%s: cluster ID %s, want %s", c.name, got, c.knows)
		}
	}
	// A process with a confirmed set gives up nothing.
	l = newLone(t, old)
	l.say(100*ms, later, &message.Heartbeat{Sent: 100 * ms, Set: young})
	if got := l.Set().ID; got != "m" {
		t.Errorf("gave its set up for %s", got)
	}
}

// Pending grants seen in one cluster ID do not count in another.
func TestPendingGrantsOfAnotherClusterID(t *testing.T) {
	l := newLone(t, set(3, "y", "z"))
	l.Introduced(y)
	l.Saw(y, 5)
	other := message.Set{ID: "o", Version: 1, Members: []string{"a", "b", "y"}}
	if l.acks(100*ms, y, message.Heartbeat{Set: other, GrantsSeq: 5}) {
		t.Error("acknowledged with pending grants of another cluster ID")
	}
	if got := show(l.Set()); got != "1: a b y" {
		t.Errorf("knows %s", got)
	}
}

// A member accepts a version only from a proposer that has seen its pending grants.
func TestAcceptorsPendingGrants(t *testing.T) {
	for _, c := range []struct {
		seen uint64
		want bool
	}{{2, false}, {3, true}} {
		l := voter(t)
		l.AwaitSeen(3)
		l.say(2100*ms, z, &message.Heartbeat{Sent: 9, Set: l.Set(), Seen: c.seen})
		b := message.Ballot{Round: 1, Boot: "1-z"}
		said := l.say(2110*ms, z, &message.Accept{Set: set(4, "w", "x", "y", "z"), Ballot: b})
		want := &message.Accepted{Version: 4, Ballot: b, OK: c.want}
		if len(said) != 1 || describe(said[0]) != describe(want) {
			t.Errorf("of a proposer that has seen %d: said %s, want %s", c.seen, describe(said...), describe(want))
		}
	}
}

// A process that reports isolation does not count as live, though it is heard. A process that hears no other voter reports
// isolation.
func TestIsolated(t *testing.T) {
	l := newLone(t, set(3, "x", "y", "z"))
	mine := l.Set()
	l.say(100*ms, y, &message.Heartbeat{Sent: 1, Set: mine})
	l.say(100*ms, z, &message.Heartbeat{Sent: 1, Set: mine, Isolated: true})
	if got := l.Living(110 * ms); !slices.Equal(got, []message.Peer{y}) {
		t.Errorf("living are %v, want y", got)
	}
	if l.Heard(z) >= 0 {
		t.Error("z counts as heard of")
	}
	l.AwaitSeen(1)
	if d := l.Awaited(); !slices.Equal(d, []quorum.AwaitedPeer{{Peer: y}}) {
		t.Errorf("waits for %v", d)
	}
	if err := l.Forget(120*ms, "z"); err == nil {
		t.Error("forgot a process that runs")
	}
	for _, c := range []struct {
		now      int64
		isolated bool
	}{{800 * ms, false}, {901 * ms, true}} {
		l.Take()
		l.Tick(c.now)
		if h := beat(t, l, y); h.Isolated != c.isolated {
			t.Errorf("at %d told y %+v, want isolated %v", c.now/ms, h, c.isolated)
		}
	}
	l.say(950*ms, z, &message.Heartbeat{Sent: 9, Set: mine})
	l.Take()
	l.Tick(1010 * ms)
	if h := beat(t, l, y); h.Isolated {
		t.Errorf("told y %+v, and has heard z", h)
	}
	if got := l.Living(1010 * ms); !slices.Equal(got, []message.Peer{z}) {
		t.Errorf("living are %v, want z", got)
	}
}

// beat returns the heartbeat among l's messages to p.
func beat(t *testing.T, l lone, p message.Peer) *message.Heartbeat {
	t.Helper()
	for _, b := range l.to(p) {
		if h, ok := b.(*message.Heartbeat); ok {
			return h
		}
	}
	t.Fatalf("no heartbeat to %v", p)
	return nil
}
