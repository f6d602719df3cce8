package quorum_test

import (
	"math"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

func TestAcknowledgement(t *testing.T) {
	mine := set(3, "y", "z")
	for _, c := range []struct {
		name    string
		awaited uint64
		h       message.Heartbeat
		ok      bool
		knows   string
	}{
		{"the same set", 0, message.Heartbeat{Set: mine}, true, "3: y z"},
		{"no set", 0, message.Heartbeat{}, false, "3: y z"},
		{"an older set", 0, message.Heartbeat{Set: set(2, "y")}, false, "3: y z"},
		{"a newer set", 0, message.Heartbeat{Set: set(7, "a", "y")}, true, "7: a y"},
		{"a smaller set of another cluster ID", 0, message.Heartbeat{Set: message.Set{ID: "z", Version: 9, Members: []string{"y"}}}, false, "3: y z"},
		{"a larger one", 0, message.Heartbeat{Set: message.Set{ID: "a", Version: 3, Members: []string{"a", "b", "c"}}}, true, "3: a b c"},
		{"an equal one", 0, message.Heartbeat{Set: message.Set{ID: "n", Version: 1, Members: []string{"a", "b"}}}, true, "1: a b"},
		{"a set that cannot be", 0, message.Heartbeat{Set: set(4, "z", "y", "a")}, false, "3: y z"},
		{"unseen pending grants", 2, message.Heartbeat{Set: mine, Seen: 1}, false, "3: y z"},
		{"seen pending grants", 2, message.Heartbeat{Set: mine, Seen: 2}, true, "3: y z"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLone(t, mine)
			l.AwaitSeen(c.awaited)
			c.h.Sent = 77
			if l.acks(100*ms, y, c.h) {
				t.Error("acknowledged, and y has not introduced itself")
			}
			l.Introduced(y)
			if ok := l.acks(200*ms, y, c.h); ok != c.ok {
				t.Errorf("OK is %v, want %v", ok, c.ok)
			}
			if got := show(l.Set()); got != c.knows {
				t.Errorf("knows %s, want %s", got, c.knows)
			}
			want := []message.Acked{{Boot: y.Boot}}
			if got := l.Acked(860*ms, c.awaited+1); c.ok && !slices.Equal(got, want) || !c.ok && got != nil {
				t.Errorf("acknowledged %v", got)
			}
			if got := l.Acked(861*ms, c.awaited+1); got != nil {
				t.Errorf("acknowledged %v too long ago", got)
			}
			// A new run of y must introduce itself again, and the old one is not answered.
			if l.acks(300*ms, later, c.h) {
				t.Error("acknowledged the next run of y, which has not introduced itself")
			}
			if said := l.say(310*ms, y, &c.h); said != nil {
				t.Errorf("said %v to an old run", said)
			}
			if got := l.Acked(310*ms, c.awaited+1); c.ok && len(got) != 1 {
				t.Errorf("acknowledged %v, want the old run too", got)
			}
		})
	}
}

func TestHeartbeats(t *testing.T) {
	l := newLone(t, set(2, "y", "z"))
	l.SetView(0, []message.Peer{y, {Name: "q", Boot: "1-q"}})
	if h := l.to(y); len(h) != 1 {
		t.Errorf("said %v to who appears in the view", h)
	}
	l.Wish(10*ms, message.Join)
	if h := l.to(y); len(h) != 1 || h[0].(*message.Heartbeat).Wish != message.Join {
		t.Errorf("said %v of a new wish", h)
	}
	l.Wish(20*ms, message.Join)
	l.Tick(100 * ms)
	if h := l.to(y); len(h) != 0 {
		t.Errorf("said %v too early", h)
	}
	l.Saw(y, 5)
	l.Saw(y, 4)
	l.Tick(110 * ms)
	if h := l.to(y); len(h) != 1 || h[0].(*message.Heartbeat).Seen != 5 || h[0].(*message.Heartbeat).Sent != 110*ms {
		t.Errorf("said %v, want a heartbeat of now that has seen 5", h)
	}
	// It left the view, but a member gets heartbeats while it was heard recently.
	l.say(200*ms, y, &message.Heartbeat{Sent: 1})
	l.SetView(300*ms, nil)
	for _, c := range []struct {
		now  int64
		beat bool
	}{{300 * ms, true}, {10_200 * ms, true}, {10_201 * ms, false}} {
		l.Take()
		l.Tick(c.now)
		if h := l.to(y); (len(h) == 1) != c.beat {
			t.Errorf("at %d said %v", c.now/ms, h)
		}
	}
	if l.Heard(y) != math.MinInt64 {
		t.Error("y is still known")
	}
}

// TestSteadyPair: between two idle processes, a heartbeat is answered by one heartbeat, and the acknowledgement may wait for
// it. A message with news is sent at once.
func TestSteadyPair(t *testing.T) {
	mine := set(3, "x", "y")
	l := newLone(t, mine)
	const begin = 3000 * ms // the grace of its restart is over
	l.SetView(begin, []message.Peer{y})
	l.Introduced(y)
	l.Take()
	heard := func(now int64, h message.Heartbeat) (patient, beats bool) {
		t.Helper()
		h.Sent = now
		l.Step(now, message.Envelope{From: y, To: x, ClusterID: mine.ID, Body: &h})
		acks := 0
		for _, e := range l.Take() {
			switch b := e.Body.(type) {
			case *message.Ack:
				acks++
				patient = e.Patient
			case *message.Heartbeat:
				beats = true
				if e.Patient || b.Sent != now {
					t.Errorf("at %d it says %+v", now/ms, e)
				}
			}
		}
		if acks != 1 {
			t.Errorf("at %d it gives %d acknowledgements", now/ms, acks)
		}
		return patient, beats
	}
	for _, c := range []struct {
		name           string
		at             int64
		h              message.Heartbeat
		awaitSeen      uint64
		patient, beats bool
	}{
		{"the first one says OK", 40 * ms, message.Heartbeat{Set: mine}, 0, false, false},
		{"it says so again, and is beaten back", 60 * ms, message.Heartbeat{Set: mine}, 0, true, true},
		{"but not before half a period has passed", 109 * ms, message.Heartbeat{Set: mine}, 0, true, false},
		{"afterwards it is", 110 * ms, message.Heartbeat{Set: mine}, 0, true, true},
		{"it is not OK", 200 * ms, message.Heartbeat{Set: set(2, "x")}, 0, false, true},
		{"still not", 300 * ms, message.Heartbeat{Set: set(2, "x")}, 0, false, true},
		{"OK, once more", 400 * ms, message.Heartbeat{Set: mine}, 0, false, true},
		{"there are pending grants", 500 * ms, message.Heartbeat{Set: mine, Seen: 2}, 2, false, true},
		{"the pending grants are told", 600 * ms, message.Heartbeat{Set: mine, Seen: 2}, 2, true, true},
		{"another version", 700 * ms, message.Heartbeat{Set: set(4, "x", "y"), Seen: 2}, 2, false, true},
	} {
		l.AwaitSeen(c.awaitSeen)
		if patient, beats := heard(begin+c.at, c.h); patient != c.patient || beats != c.beats {
			t.Errorf("%s: patient %v and a heartbeat %v, want %v and %v", c.name, patient, beats, c.patient, c.beats)
		}
	}
}

func TestAwaited(t *testing.T) {
	l := newLone(t, set(2, "y", "z"))
	l.say(0, y, &message.Heartbeat{Sent: 1, Seen: 3, Wish: message.Leave})
	l.say(0, z, &message.Heartbeat{Sent: 1})
	if d := l.Awaited(); d != nil {
		t.Errorf("waits for %v without pending grants", d)
	}
	l.AwaitSeen(3)
	if d := l.Awaited(); !slices.Equal(d, []quorum.AwaitedPeer{{Peer: z}}) {
		t.Errorf("waits for %v", d)
	}
	l.say(10*ms, y, &message.Heartbeat{Sent: 0, Seen: 2}) // overtaken
	l.AwaitSeen(4)
	if d := l.Awaited(); !slices.Equal(d, []quorum.AwaitedPeer{{Peer: y, Seen: 3}, {Peer: z}}) || l.Wishes(y) != message.Leave {
		t.Errorf("waits for %v, and y wishes %v", d, l.Wishes(y))
	}
	l.Tick(2000 * ms)
	if d := l.Awaited(); d != nil || l.Lives(2000*ms, y) || !l.Lives(2000*ms, x) {
		t.Errorf("waits for the dead %v", d)
	}
}

func TestNotForThisProcess(t *testing.T) {
	l := newLone(t, set(2, "y", "z"))
	h := &message.Heartbeat{Sent: 1, Set: set(5, "y")}
	for _, e := range []message.Envelope{
		{From: y, To: message.Peer{Name: "x", Boot: "0-x"}, Body: h},
		{From: y, To: z, Body: h},
		{From: message.Peer{Name: "y"}, To: x, Body: h},
		{From: message.Peer{Boot: "1-y"}, To: x, Body: h},
		{From: message.Peer{Name: "x", Boot: "0-x"}, To: x, Body: h},
		{From: y, To: x, Body: &message.OwnedPartitions{Full: true}},
	} {
		l.Step(0, e)
		if out := l.Take(); out != nil || l.Set().Version != 2 || l.Lives(0, e.From) {
			t.Errorf("%v: said %v", e, out)
		}
	}
}

func TestForgetByHand(t *testing.T) {
	l := newLone(t, set(2, "x", "y", "z"))
	l.say(time.Hour.Nanoseconds(), y, &message.Heartbeat{Sent: 1})
	now := time.Hour.Nanoseconds() + 100*ms
	for name, want := range map[string]error{"x": member.ErrThisNode, "y": member.ErrAlive, "w": member.ErrNotVoter} {
		if err := l.Forget(now, name); err != want {
			t.Errorf("got %v, want %v", err, want)
		}
	}
	l.Take()
	if err := l.Forget(now, "z"); err != nil || show(l.Set()) != "3: x y" {
		t.Errorf("%v, and knows %s", err, show(l.Set()))
	}
	if h := l.to(y); len(h) != 1 || show(h[0].(*message.Heartbeat).Set) != "3: x y" {
		t.Errorf("told y %v", h)
	}
	for _, s := range []message.Set{{}, set(1, "y")} {
		if err := newLone(t, s).Forget(0, "y"); err == nil {
			t.Errorf("y forgotten of %s", show(s))
		}
	}
}
