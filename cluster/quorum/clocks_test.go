package quorum_test

import (
	"testing"
	"time"

	"github.com/sluice-project/sluice/cluster/quorum"
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
					ahead, known := p.m.Ahead(p.clock(), other)
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
