package cluster

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestBackAtOnce: a node that crashes and is back after 0.1 s may claim nothing for some seconds, as it does not know what its earlier run
// has promised. It is counted at once, but others own its partitions until then: keys wait for as long as after any crash.
func TestBackAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t, "a", "b", "c")
		f.kill("a")
		time.Sleep(100 * time.Millisecond)
		n := f.start("a")
		served := make(chan struct{})
		go func() {
			defer close(served)
			f.serve(n)
		}()
		time.Sleep(1300 * time.Millisecond)
		if count := f.owners(); count["b"]+count["c"] != 31 {
			t.Errorf("1.3 s later partitions are owned by %v, want all 31 by b and c", count)
		}
		<-served
		f.within(10*time.Second, "a is settled", n.Settled)
		if count := f.owners(); count["a"] == 0 {
			t.Errorf("in the end partitions are owned by %v, want some by a", count)
		}
	})
}
