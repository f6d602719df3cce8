package cluster

import (
	"context"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// TestTrap15: units that are reserved stay so on both sides of a network partition until the deadline. The side without a quorum
// neither reserves nor spends any.
func TestTrap15(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
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
