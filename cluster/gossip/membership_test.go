package gossip

import (
	"fmt"
	"testing"
	"time"
)

// What a node says about itself is known within a second, also when its first
// message is lost in the burst of a common start. Said once only, it takes longer
// in one start of ten.
func TestStatesSpreadQuickly(t *testing.T) {
	const starts = 180
	slow := 0
	for range starts {
		simulate(t, func(w *simulation) {
			w.grow(1, 7)
			if w.agree(quiet) > time.Second {
				slow++
			}
		})
	}
	if slow > starts/60 {
		t.Errorf("views were equal within a second in all but %d starts of %d, want all but %d", slow, starts, starts/60)
	}
}

func TestGrowAndShrink(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.cluster(3)
		w.grow(4, 7)
		w.agree(quiet)
		for i := 4; i <= 7; i++ {
			w.leave(fmt.Sprintf("pod-%d", i))
		}
		w.agree(quiet)
	})
}

// TestCrash: members probe each other in a random order, so now and then a dead one is found late: two rounds and the longest suspicion at most.
func TestCrash(t *testing.T) {
	for _, n := range []int{2, 3, 5, 7, 12} {
		t.Run(fmt.Sprintf("nodes=%d", n), func(t *testing.T) {
			const crashes = 10
			late := 0
			for range crashes {
				simulate(t, func(w *simulation) {
					w.cluster(n)
					time.Sleep(3 * time.Second)
					w.crash(fmt.Sprintf("pod-%d", n))
					took := w.agree(trustAfter(n))
					w.Logf("views equal after %v", took)
					if took > quiet {
						late++
					}
				})
			}
			if late > crashes/5 {
				t.Errorf("%d of %d crashes were seen after more than %v", late, crashes, quiet)
			}
		})
	}
}
