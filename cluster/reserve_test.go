package cluster

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/member"
)

// TestReservationsWhateverHappens: reservations are made, spent and settled once, whichever nodes are asked, also again and at the same
// time: after their keys were handed over, and after a replica has taken them over from an owner that crashed.
func TestReservationsWhateverHappens(t *testing.T) {
	for _, sync := range []bool{false, true} {
		bubble(t, func(t *testing.T) { reservationsWhateverHappens(t, sync) })
	}
}

func reservationsWhateverHappens(t *testing.T, confirmed bool) {
	f := newFleet(t, "a", "b", "c", "d")
	f.within(5*time.Second, "replicas are complete", f.nodes["a"].Settled)
	keys := requests(60, hourly(100))
	// ask sends verb about every key's reservation to all nodes at once, and fails t unless each has got what it should, and left is
	// left.
	ask := func(what string, verb bucket.Verb, id uint64, units int64, want bucket.Reserved, left int64) {
		t.Helper()
		var all sync.WaitGroup
		for _, n := range f.nodes {
			all.Go(func() {
				list := make([]check.Request, len(keys))
				for i := range keys {
					list[i] = keys[i]
					list[i].Verb, list[i].Cost, list[i].Sync, list[i].Once = verb, units, confirmed, id
					list[i].Reservation = &bucket.Reservation{ID: id, Least: units, MaxOpen: 10, For: time.Hour}
				}
				for i, answer := range decide(context.Background(), n.Node, list...) {
					got := list[i].Reservation.Reserved
					if got.Expires = 0; want.Returned == 0 && !want.Repeated { // which of the nodes comes first is not known
						got.Repeated, got.Returned = false, 0
					}
					if answer.Err != nil || !answer.Allowed || got != want || answer.Remaining != left {
						t.Errorf("%s, sent to %s: reservation %d: %+v, %+v, want %+v", what, n.cfg.Name, i, answer, got, want)
					}
				}
			})
		}
		all.Wait()
	}
	ask("reserved", bucket.Reserve, 1, 40, bucket.Reserved{Units: 40}, 60)
	ask("reserved", bucket.Reserve, 2, 5, bucket.Reserved{Units: 5}, 55)
	ask("spent", bucket.Spend, 1, 10, bucket.Reserved{Units: 30}, 55)

	d := f.nodes["d"]
	f.state("d", member.Leaving)
	f.within(20*time.Second, "d has handed off", func(ctx context.Context) error { _, _, err := d.HandOff(ctx); return err })
	f.within(5*time.Second, "d is no voter", d.LeaveSet)
	f.kill("d")
	f.hide("d")
	f.allHeld(5 * time.Second)
	ask("spent again after a handoff", bucket.Spend, 1, 10, bucket.Reserved{Units: 30}, 55)
	ask("settled", bucket.Settle, 1, 2, bucket.Reserved{Units: 2}, 83)

	f.eventually(5*time.Second, "replicas are complete", func() bool {
		unprotected := 0
		for _, n := range f.nodes {
			unprotected += n.Stats().Partitions.Unprotected
		}
		return unprotected == 0
	})
	if !confirmed {
		time.Sleep(time.Second) // so that replicas have it
	}
	f.kill("c")
	f.hide("c")
	f.allHeld(10 * time.Second)
	ask("settled again after a crash", bucket.Settle, 1, 9, bucket.Reserved{Units: 2, Repeated: true}, 83)
	ask("settled after a crash", bucket.Settle, 2, 0, bucket.Reserved{}, 88)
}
