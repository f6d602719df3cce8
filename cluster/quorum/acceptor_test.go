package quorum_test

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/message"
)

// voter is x in the set 3: x y z, past its grace, and with its vote back.
func voter(t *testing.T) lone {
	t.Helper()
	l := newLone(t, set(3, "x", "y", "z"))
	l.Introduced(y)
	for _, p := range []message.Peer{y, z} {
		l.say(0, p, &message.Heartbeat{Sent: 1, Set: l.Set()})
	}
	l.Tick(2000 * ms)
	asked := 0
	for _, e := range l.Take() {
		if b, ok := e.Body.(*message.Prepare); ok && b.ID == "m" && b.Version == 4 && b.Ballot.Round == 0 {
			asked++
		}
	}
	if asked != 2 {
		t.Fatalf("asked %d members what it may have voted for, want 2", asked)
	}
	for _, p := range []message.Peer{y, z} {
		if said := l.say(2000*ms, p, &message.Prepare{ID: "m", Version: 4}); said[0].(*message.Promise).OK {
			t.Fatal("voted before all had told")
		}
		l.say(2000*ms, p, &message.Promise{Version: 4})
	}
	return l
}

func TestAcceptor(t *testing.T) {
	l := voter(t)
	low, mid, high := message.Ballot{Round: 1, Boot: "1-z"}, message.Ballot{Round: 2, Boot: "1-y"}, message.Ballot{Round: 2, Boot: "1-z"}
	four := set(4, "w", "x", "y", "z")
	promise := func(b message.Ballot, ok bool, accepted message.Set, under message.Ballot) *message.Promise {
		return &message.Promise{Version: 4, Ballot: b, OK: ok, Accepted: accepted, Under: under}
	}
	for _, c := range []struct {
		name string
		b    message.Body
		want message.Body
	}{
		{"a first ballot", &message.Prepare{ID: "m", Version: 4, Ballot: mid}, promise(mid, true, message.Set{}, message.Ballot{})},
		{"the same again", &message.Prepare{ID: "m", Version: 4, Ballot: mid}, promise(mid, true, message.Set{}, message.Ballot{})},
		{"a lower one", &message.Prepare{ID: "m", Version: 4, Ballot: low}, promise(mid, false, message.Set{}, message.Ballot{})},
		{"its proposal", &message.Accept{Set: four, Ballot: low}, &message.Accepted{Version: 4, Ballot: mid}},
		{"two names at once", &message.Accept{Set: set(4, "v", "w", "x", "y", "z"), Ballot: mid}, nil},
		{"one name for another", &message.Accept{Set: set(4, "w", "x", "y"), Ballot: mid}, nil},
		{"a version too far", &message.Accept{Set: set(5, "w", "x", "y", "z"), Ballot: mid}, nil},
		{"another cluster ID", &message.Prepare{ID: "n", Version: 4, Ballot: high}, nil},
		{"the promised ballot's proposal", &message.Accept{Set: four, Ballot: mid}, &message.Accepted{Version: 4, Ballot: mid, OK: true}},
		{"a higher ballot", &message.Prepare{ID: "m", Version: 4, Ballot: high}, promise(high, true, four, mid)},
		{"the lower one's proposal", &message.Accept{Set: four, Ballot: mid}, &message.Accepted{Version: 4, Ballot: high}},
		{"a version of before", &message.Prepare{ID: "m", Version: 3, Ballot: high}, &message.Heartbeat{Sent: 2100 * ms, Set: l.Set(), AckTTL: 600 * ms, NoQuorum: true, InSync: 1}},
	} {
		said := l.say(2100*ms, z, c.b)
		if c.want == nil {
			if said != nil {
				t.Errorf("%s: said %+v, want nothing", c.name, said[0])
			}
			continue
		}
		if len(said) != 1 || describe(said[0]) != describe(c.want) {
			t.Errorf("%s: said %s, want %s", c.name, describe(said...), describe(c.want))
		}
	}
}

// x has acknowledged y at version 3. It accepts the version after 4 only when y has shown that it knows 4, or has no quorum any
// more.
func TestSpacing(t *testing.T) {
	four, five := set(4, "w", "x", "y", "z"), set(5, "v", "w", "x", "y", "z")
	for _, c := range []struct {
		name  string
		shows message.Set
		by    message.Peer
		at    int64
		want  bool
	}{
		{"y has shown nothing", message.Set{}, y, 2100 * ms, false},
		{"y is late", set(3, "x", "y", "z"), y, 2100 * ms, false},
		{"y knows", four, y, 2100 * ms, true},
		{"the next run of y knows", four, later, 2100 * ms, false},
		{"quorum is over just not", message.Set{}, y, 2660 * ms, false},
		{"quorum is over", message.Set{}, y, 2661 * ms, true},
	} {
		l := voter(t)
		if !l.acks(2000*ms, y, message.Heartbeat{Sent: 2, Set: l.Set()}) {
			t.Fatal("not acknowledged")
		}
		l.say(2010*ms, z, &message.Heartbeat{Sent: 2, Set: four})
		if !c.shows.Zero() {
			l.say(2020*ms, c.by, &message.Ack{Sent: 1, Set: c.shows})
		}
		b := message.Ballot{Round: 1, Boot: "1-z"}
		said := l.say(c.at, z, &message.Accept{Set: five, Ballot: b})
		if want := (&message.Accepted{Version: 5, Ballot: b, OK: c.want}); len(said) != 1 || describe(said[0]) != describe(want) {
			t.Errorf("%s: said %s, want %s", c.name, describe(said...), describe(want))
		}
	}
}

// TestUnfinished: the coordinator brings a ballot of which it has accepted the proposal to an end, though it would change nothing itself: a
// later ballot would have that proposal, at a time when the member that it removes may be needed.
func TestUnfinished(t *testing.T) {
	l := voter(t)
	four := set(4, "x", "y")
	if said := l.say(2100*ms, y, &message.Accept{Set: four, Ballot: message.Ballot{Round: 2, Boot: "1-y"}}); len(said) != 1 || !said[0].(*message.Accepted).OK {
		t.Fatalf("said %s", describe(said...))
	}
	for _, p := range []message.Peer{y, z} {
		l.say(2200*ms, p, &message.Heartbeat{Sent: 2, Set: l.Set()})
	}
	l.Take()
	l.Tick(2200 * ms)
	asked := 0
	var ballot message.Ballot
	for _, e := range l.Take() {
		if b, ok := e.Body.(*message.Prepare); ok && b.Version == 4 {
			asked, ballot = asked+1, b.Ballot
		}
	}
	if asked != 2 {
		t.Fatalf("%d members were asked for a promise, want 2", asked)
	}
	said := l.say(2250*ms, z, &message.Promise{Version: 4, Ballot: ballot, OK: true})
	if len(said) == 0 || !said[0].(*message.Accept).Set.Equal(four) {
		t.Errorf("said %s, want that the others accept %v", describe(said...), four)
	}
}
