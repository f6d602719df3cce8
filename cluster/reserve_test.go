package cluster

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
)

// TestTrap10: reservations are made, spent and settled once, whichever nodes are asked, also again and at the same
// time: after their keys were handed over, and after a replica has taken them over from an owner that crashed.
func TestTrap10(t *testing.T) {
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

// TestTrap15: units that are reserved stay so on both sides of a network partition until the deadline. The side without a quorum
// neither reserves nor spends any.
func TestTrap15(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, "a", "b", "c")
		f.within(5*time.Second, "replicas are complete", f.nodes["a"].Settled)
		keys := requests(60, hourly(100))
		// ask sends verb about every key's reservation to a node, and returns how many were allowed, and late.
		ask := func(name string, verb bucket.Verb, id uint64, units int64) (allowed, late int) {
			list := make([]check.Request, len(keys))
			for i := range keys {
				list[i] = keys[i]
				list[i].Verb, list[i].Cost, list[i].Sync = verb, units, true
				list[i].Reservation = &bucket.Reservation{ID: id, Least: max(1, units), MaxOpen: 10, For: 3 * time.Minute, Release: true}
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for i, a := range decide(ctx, f.nodes[name].Node, list...) {
				if a.Err == nil && a.Allowed && !list[i].Reservation.Reserved.Unknown {
					allowed++
				}
				if list[i].Reservation.Reserved.Late {
					late++
				}
			}
			return allowed, late
		}
		wants := func(what, name string, verb bucket.Verb, id uint64, units int64, want int) {
			t.Helper()
			if got, _ := ask(name, verb, id, units); got != want {
				t.Errorf("%s: %d of %d keys", what, got, want)
			}
		}
		began := time.Now()
		wants("reserved", "c", bucket.Reserve, 1, 60, len(keys))
		f.alone("c")
		wants("reserved by the minority", "c", bucket.Reserve, 2, 1, 0)
		wants("spent by the minority", "c", bucket.Spend, 1, 1, 0)
		wants("reserved by the majority beside it", "a", bucket.Reserve, 3, 41, 0)
		time.Sleep(3*time.Minute - time.Since(began) - time.Second)
		wants("reserved by the majority before its deadline", "b", bucket.Reserve, 3, 41, 0)
		time.Sleep(2 * time.Second)
		wants("spent by the minority after its deadline", "c", bucket.Spend, 1, 1, 0)
		wants("reserved by the majority after its deadline", "b", bucket.Reserve, 3, 41, len(keys))
		f.heal()
		if allowed, late := ask("c", bucket.Settle, 1, 5); allowed != len(keys) || late != len(keys) {
			t.Errorf("%d settled, %d of them late", allowed, late)
		}
		for i, a := range decide(t.Context(), f.nodes["a"].Node, keys...) {
			if want := int64(100 - 41 - 5 - 1); a.Err != nil || a.Remaining != want {
				t.Errorf("key %d: %+v, want %d left", i, a, want)
			}
		}
	})
}
