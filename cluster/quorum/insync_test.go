package quorum_test

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/message"
)

// TestInSyncKnown: a majority of x, y and z knows what x and one other voter know. A process that
// is no voter does not count, a restarted voter knows nothing, and one of an older version counts
// as if it knew all.
func TestInSyncKnown(t *testing.T) {
	l := newLone(t, set(3, "x", "y", "z"))
	l.Tick(3000 * ms)
	q, sent := message.Peer{Name: "q", Boot: "1-q"}, int64(0)
	for _, c := range []struct {
		name         string
		from         message.Peer
		inSync, want uint64
	}{
		{"no voter", q, 9 + 1, 0},
		{"one knows it", y, 4 + 1, 4},
		{"the other one less", z, 2 + 1, 4},
		{"the other one more", z, 7 + 1, 7},
		{"the first one more", y, 8 + 1, 8},
		{"the run after y", later, 0 + 1, 7},
		{"it learns it", later, 9 + 1, 9},
		{"an older version", z, 0, 1<<64 - 1},
	} {
		sent++
		l.say(3100*ms, c.from, &message.Heartbeat{Sent: sent, Set: l.Set(), InSync: c.inSync})
		if got := l.InSyncKnown(); got != c.want {
			t.Errorf("%s: %d is known, want %d", c.name, got, c.want)
		}
	}
}

// TestSawInSync: a process that has learned of a change of in-sync replicas says so at once if
// decisions wait for it, and once.
func TestSawInSync(t *testing.T) {
	l := newLone(t, set(3, "x", "y", "z"))
	l.Tick(3000 * ms)
	l.Take()
	for _, n := range []uint64{5, 5, 3, 7} {
		l.SawInSync(y, n, n != 7)
	}
	out := l.Take()
	if len(out) != 1 || out[0].To != y || out[0].Body.(*message.Heartbeat).InSync != 5+1 {
		t.Errorf("said %+v, want one heartbeat to y", out)
	}
}
