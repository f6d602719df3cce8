package quorum_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// A process whose disk is full at its first start takes no part in founding, and the others say so.
// They found without it if they are enough. It takes part when there is space.
func TestFullDiskAtTheFirstStart(t *testing.T) {
	for full, others := range map[string][]string{
		"a": {"b", "c"}, // the founder
		"b": {"a", "c"}, // accepts
		"c": {"a", "b"}, // is not needed
	} {
		t.Run(full, func(t *testing.T) {
			w := fullDisk(t, 2, full)
			w.until(4*time.Second, "the others found a set", func() bool {
				return w.all[others[0]].has() && w.all[others[1]].has()
			})
			if s := w.all[others[0]].m.Set(); !slices.Equal(s.Members, others) {
				w.failf("they have %s", show(s))
			}
			w.run(2 * time.Second)
			if p := w.all[full]; !p.m.Set().Zero() || p.has() {
				w.failf("%s knows %s, and its disk does not", full, show(p.m.Set()))
			}
			w.full[full] = false
			w.until(5*time.Second, "it joins", w.counted("a b c"))
		})
	}
	t.Run("too few", func(t *testing.T) {
		w := fullDisk(t, 3, "a")
		w.run(5 * time.Second)
		for _, name := range []string{"b", "c"} {
			p := w.all[name]
			got := p.m.Waiting(p.clock())
			if !slices.Equal(got.CannotStore, []string{"a"}) || len(got.Have) != 2 || !got.Accepted.Zero() {
				w.failf("%s waits for %+v", name, got)
			}
		}
		if r := *w.disks["a"]; !r.Equal(message.Record{}) {
			w.failf("a's disk has %+v", r)
		}
		w.full["a"] = false
		w.until(5*time.Second, "one set", w.counted("a b c"))
		w.until(time.Second, "quorum", w.withQuorum())
		if s := w.all["b"].m.Set(); s.Version != 1 || s.ID != w.all["a"].id.Boot {
			w.failf("want the set that a founds: %+v", s)
		}
	})
}

func fullDisk(t *testing.T, expect int, full string) *testCluster {
	w := newTestCluster(t, 1)
	w.config.Expect = expect
	w.full[full] = true
	w.disk("a", "b", "c")
	w.start("a", "b", "c")
	return w
}

// A process whose disk fails once, for a version that no process asks for any more, has quorum
// again when its disk takes anything.
func TestDiskFailsOnce(t *testing.T) {
	w := newTestCluster(t, 1)
	w.disk("a", "b", "c")
	w.start("a", "b", "c")
	w.until(3*time.Second, "quorum", w.withQuorum())
	w.full["a"], w.full["b"], w.full["c"] = true, true, true
	w.boot("d", 0, message.Set{})
	w.run(time.Second)
	w.crash("d")
	if w.all["a"].has() {
		w.failf("a has quorum without its disk")
	}
	w.run(5 * time.Second)
	clear(w.full)
	w.until(3*time.Second, "quorum", w.withQuorum())
}
