package quorum_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

// TestClocks: each process measures the clock offset of the others, with an error of half the difference of the delays in both
// directions, even when most messages are late or lost, and compares its clock with the majority.
func TestClocks(t *testing.T) {
	const tolerance = 500 * ms
	for _, c := range []struct {
		name  string
		ahead map[string]time.Duration
		agree bool
		want  map[string]time.Duration // how far each is ahead of those that agree
	}{
		{"all agree", map[string]time.Duration{"a": 0, "b": 0, "c": 0}, true, map[string]time.Duration{"a": 0, "b": 0, "c": 0}},
		{"within the tolerance", map[string]time.Duration{"a": 0, "b": 200 * time.Millisecond, "c": 450 * time.Millisecond}, true,
			map[string]time.Duration{"a": -200 * time.Millisecond, "b": 0, "c": 250 * time.Millisecond}},
		{"one ahead", map[string]time.Duration{"a": 0, "b": 2 * time.Second, "c": 0}, true, map[string]time.Duration{"a": 0, "b": 2 * time.Second, "c": 0}},
		{"one an hour behind", map[string]time.Duration{"a": 100 * time.Millisecond, "b": 0, "c": -time.Hour}, true,
			map[string]time.Duration{"a": 50 * time.Millisecond, "b": -50 * time.Millisecond, "c": -time.Hour - 50*time.Millisecond}},
		{"no two agree", map[string]time.Duration{"a": 0, "b": 2 * time.Second, "c": 10 * time.Second}, false, nil},
		{"one of two", map[string]time.Duration{"a": 0, "b": 2 * time.Second}, false, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newTestCluster(t, 1)
			w.loss, w.slow, w.late = 0.1, 0.5, 200*ms
			for name := range c.ahead {
				w.start(name)
			}
			for name, ahead := range c.ahead {
				w.all[name].start, w.all[name].rate = 1e15+int64(ahead), 1
			}
			w.run(5 * time.Second)
			for name, p := range w.all {
				got := p.m.Clocks(p.clock(), tolerance)
				if !got.Known || got.Agree != c.agree {
					t.Errorf("%s: %+v, want to agree: %v", name, got, c.agree)
				}
				if off := time.Duration(got.Ahead) - c.want[name]; off > 2*time.Millisecond || off < -2*time.Millisecond {
					t.Errorf("%s: %v ahead, want %v", name, time.Duration(got.Ahead), c.want[name])
				}
				for other := range c.ahead {
					ahead, known := p.m.Ahead(p.clock(), other, tolerance)
					if off := time.Duration(ahead) - (c.ahead[other] - c.ahead[name]); !known || off > 2*time.Millisecond || off < -2*time.Millisecond {
						t.Errorf("%s: %s is %v ahead (%v), want %v", name, other, time.Duration(ahead), known, c.ahead[other]-c.ahead[name])
					}
				}
			}
		})
	}
	t.Run("not heard for long", func(t *testing.T) {
		w := newTestCluster(t, 1)
		w.start("a", "b", "c")
		w.run(2 * time.Second)
		w.crash("b")
		w.crash("c")
		w.run(30 * time.Second)
		if got := w.all["a"].m.Clocks(w.all["a"].clock(), tolerance); got != (quorum.Clocks{}) {
			t.Errorf("of clocks not heard for half a minute: %+v", got)
		}
	})
}

// A process that gets no processor reads the others' messages late, or sends its own late. It
// compares no clocks by these: it would find its own delay. The first messages that were not late
// show that the clocks agree.
func TestClocksOfAStarvedProcess(t *testing.T) {
	const tolerance = 500 * ms
	for _, c := range []struct {
		name          string
		read, written int64 // delays of messages to x, and from x
		agree         bool
	}{
		{"reads late", 1400 * ms, ms, false},
		{"sends late", ms, 1400 * ms, false},
		{"both", 700 * ms, 20 * ms, false},
		{"a slow network", 240 * ms, 250 * ms, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLone(t, set(1, "x", "y", "z"))
			exchange := func(now int64, p message.Peer, read, written int64) {
				l.say(now, p, &message.Heartbeat{Sent: now - read, Set: l.Set()})
				l.say(now, p, &message.Ack{Sent: now - read - written, Got: now - read, Set: l.Set()})
			}
			for now := 3000 * ms; now < 5000*ms; now += 100 * ms {
				exchange(now, y, c.read, c.written)
				exchange(now, z, c.read/2, c.written/2)
			}
			off := func(c quorum.Clocks) int64 { return max(c.Ahead, -c.Ahead) }
			got := l.Clocks(5000*ms, tolerance)
			if got.Known && !got.Agree || c.agree && !got.Known || off(got) > tolerance {
				t.Errorf("of equal clocks: %+v", got)
			}
			if ahead, known := l.Ahead(5000*ms, "y", tolerance); known != c.agree {
				t.Errorf("y is %v ahead: %v", time.Duration(ahead), known)
			}
			exchange(5000*ms, y, ms, ms)
			got = l.Clocks(5000*ms, tolerance)
			if !got.Known || !got.Agree || off(got) > tolerance/2 {
				t.Errorf("of equal clocks, y's message was read at once: %+v", got)
			}
		})
	}
}
