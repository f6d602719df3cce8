package quorum_test

import (
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// The set is x, y, z, a and b: with itself x needs two others.
func TestQuorumUntil(t *testing.T) {
	l := newLone(t, set(3, "a", "b", "x", "y", "z"))
	a, q := message.Peer{Name: "a", Boot: "1-a"}, message.Peer{Name: "q", Boot: "1-q"}
	begin := 3000 * ms // x is past its grace
	l.Tick(begin)
	for _, c := range []struct {
		name string
		from message.Peer
		sent int64
		ok   bool
		want int64
	}{
		{"one is too few", y, 100, true, math.MinInt64},
		{"a rejection", z, 300, false, math.MinInt64},
		{"two", z, 200, true, 100},
		{"the second newest counts", a, 150, true, 150},
		{"an older one of the same", a, 120, true, 150},
		{"a newer one", y, 400, true, 200},
		{"not counted", q, 500, true, 200},
		{"not sent yet", z, 5000, true, 200},
		{"the next run of a name", later, 0, false, 200},
		{"has not got its predecessor's acknowledgement back", a, 160, true, 200},
		{"is as good", later, 450, true, 200},
		{"and another", z, 500, true, 450},
	} {
		l.say(begin+1000*ms, c.from, &message.Ack{Sent: begin + c.sent*ms, OK: c.ok, Set: l.Set()})
		want := c.want
		if want != math.MinInt64 {
			want = begin + want*ms + 600*ms
		}
		if got := l.QuorumUntil(); got != want {
			t.Errorf("%s: quorum until %v, want %v", c.name, got, want)
		}
	}
}

// Acknowledgements of one cluster ID give no quorum in another.
func TestQuorumEndsWithTheClusterID(t *testing.T) {
	l := newLone(t, set(2, "x", "y", "z"))
	l.Tick(3000 * ms)
	ack := func(now int64, p message.Peer, sent int64) {
		l.say(now, p, &message.Ack{Sent: sent, OK: true, Set: l.Set()})
	}
	ack(3100*ms, y, 3090*ms)
	ack(3100*ms, z, 3090*ms)
	if l.QuorumUntil() != 3690*ms {
		t.Fatalf("quorum until %d", l.QuorumUntil())
	}
	l.say(3110*ms, z, &message.Heartbeat{Sent: 1, Set: message.Set{ID: "o", Version: 4, Members: []string{"w", "y", "z"}}})
	if l.QuorumUntil() != math.MinInt64 {
		t.Errorf("quorum until %d", l.QuorumUntil())
	}
	ack(3120*ms, y, 3109*ms)
	ack(3120*ms, z, 3109*ms)
	if l.QuorumUntil() != math.MinInt64 || l.Dissolved() != 1 || l.In() {
		t.Errorf("quorum until %d, in %v, dissolved %d", l.QuorumUntil(), l.In(), l.Dissolved())
	}
	ack(3130*ms, y, 3125*ms)
	ack(3130*ms, z, 3126*ms)
	if l.QuorumUntil() != 3725*ms {
		t.Errorf("quorum until %d", l.QuorumUntil())
	}
}

// TestGrace: when x, which finds itself a voter, makes promises.
func TestGrace(t *testing.T) {
	for _, c := range []struct {
		name  string
		first message.Set
		wish  message.Wish
		then  message.Set
		want  bool
	}{
		{"counted in the first set", set(3, "x", "y"), message.Join, set(3, "x", "y"), false},
		{"counted alone", set(3, "x"), message.Join, set(3, "x"), true},
		{"not counted", set(3, "y"), message.Join, set(3, "y"), true},
		{"seen to join", set(3, "y"), message.Join, set(4, "x", "y"), true},
		{"seen to join by another's wish", set(3, "y"), message.Stay, set(4, "x", "y"), false},
		{"perhaps counted before", set(3, "y"), message.Join, set(5, "x", "y", "z"), false},
		{"known before in another cluster ID", message.Set{ID: "a", Version: 2, Members: []string{"x", "y"}}, message.Stay, set(3, "x", "y"), false},
		{"counted on", set(3, "x"), message.Stay, set(4, "x", "y"), false},
	} {
		l := newLone(t, message.Set{})
		if l.Promises(0) {
			t.Error("promises without a set")
		}
		l.Wish(0, c.wish)
		l.Introduced(y)
		l.say(10*ms, y, &message.Heartbeat{Sent: 1, Set: c.first})
		ok := l.acks(20*ms, y, message.Heartbeat{Sent: 2, Set: c.then})
		if ok != c.want || l.Promises(20*ms) != c.want {
			t.Errorf("%s: acknowledges %v and promises %v, want %v", c.name, ok, l.Promises(20*ms), c.want)
		}
		if !l.acks(2020*ms, y, message.Heartbeat{Sent: 3, Set: c.then}) || !l.Promises(2020*ms) {
			t.Errorf("%s: no promise after 2 s", c.name)
		}
	}
	if m := quorum.New(quorum.Config{Self: x, Record: message.Record{Set: set(2, "x", "y")}}, 0); m.Promises(1999*ms) || !m.Promises(2000*ms) {
		t.Error("want a grace of 2 s from a snapshot's set")
	}
}

// TestLapses: a process counts a lapse when it regains quorum after so long that an acknowledging voter may have restarted
// without its promises (a grace less its ackTTL), and one has. A lone voter depends on no other.
func TestLapses(t *testing.T) {
	for _, c := range []struct {
		name, members string
		cut           time.Duration // from the last acknowledgement
		restarts      bool
		want          uint64
	}{
		{"quorum for a minute", "a b c", 0, false, 0},
		{"without for 1.2 s", "a b c", 1800 * time.Millisecond, true, 0},
		{"without for 1.5 s", "a b c", 2100 * time.Millisecond, true, 1},
		{"without for 5 s, and the others remember", "a b c", 5 * time.Second, false, 0},
		{"alone", "a", 5 * time.Second, false, 0},
	} {
		w := settle(t, c.members)
		a := w.all["a"]
		if n := a.m.Lapses(); n != 0 {
			t.Fatalf("%s: %d lapses at the start", c.name, n)
		}
		if c.cut == 0 {
			w.run(time.Minute)
		} else {
			w.run(3 * time.Second) // all have heard each other for more than a grace
			w.split("a", "b c")
			if c.restarts {
				w.crash("b")
				w.start("b")
			}
			w.run(c.cut)
			w.heal()
			w.run(time.Second)
		}
		if n := a.m.Lapses(); n != c.want || !a.has() {
			t.Errorf("%s: %d lapses, want %d; has quorum: %v", c.name, n, c.want, a.has())
		}
	}
}
