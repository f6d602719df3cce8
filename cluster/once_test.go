package cluster

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
)

// throughChanges calls a function for four nodes, for those that are left after one has handed off its keys, and after replicas have taken
// keys over from an owner that crashed. Replicas have what was not confirmed by then.
func throughChanges(t *testing.T, confirmed bool, at ...func(*fleet)) {
	running(t, "a b c d", func(t *testing.T, f *fleet) {
		f.within(5*time.Second, "replicas are complete", f.nodes["a"].Settled)
		at[0](f)
		f.leave("d")
		f.allHeld(5 * time.Second)
		at[1](f)
		f.protected()
		if !confirmed {
			time.Sleep(time.Second)
		}
		f.crash("c")
		f.allHeld(10 * time.Second)
		at[2](f)
	})
}

// atAll has all nodes decide a copy of keys at once, each key as change makes it, and calls verify for each answer.
func (f *fleet) atAll(keys []check.Request, change func(*check.Request), verify func(node string, r *check.Request, a check.Answer)) {
	var all sync.WaitGroup
	for name, n := range f.nodes {
		all.Go(func() {
			list := make([]check.Request, len(keys))
			for i := range keys {
				list[i] = keys[i]
				change(&list[i])
			}
			for i, a := range decide(context.Background(), n.Node, list...) {
				verify(name, &list[i], a)
			}
		})
	}
	all.Wait()
}

// TestOnceWhateverHappens: charges with Once are made once, on whichever nodes they are sent again: at the same time, after their
// keys were handed over, and after a replica has taken them over from an owner that crashed.
func TestOnceWhateverHappens(t *testing.T) {
	for _, confirmed := range []bool{false, true} {
		again := func(what string, once uint64, left int64) func(*fleet) {
			return func(f *fleet) {
				f.atAll(requests(60, hourly(100)), func(r *check.Request) {
					r.Verb, r.Once, r.Sync = bucket.Charge, once+r.Key.Lo%2, confirmed
				}, func(node string, r *check.Request, a check.Answer) {
					if a.Err != nil || !a.Allowed || a.Remaining != left {
						f.t.Errorf("%s, sent to %s: charge of %v: %+v", what, node, r.Key, a)
					}
				})
			}
		}
		throughChanges(t, confirmed, again("at once", 1, 99), again("after a handoff", 1, 99), func(f *fleet) {
			again("after a crash", 1, 99)(f)
			again("under other keys", 3, 98)(f)
		})
	}
}

// TestTrap10: reservations are made, spent and settled once, whichever nodes are asked, also again and at the same
// time: after their keys were handed over, and after a replica has taken them over from an owner that crashed.
func TestTrap10(t *testing.T) {
	for _, confirmed := range []bool{false, true} {
		ask := func(f *fleet, what string, verb bucket.Verb, id uint64, units int64, want bucket.Reserved, left int64) {
			f.atAll(requests(60, hourly(100)), func(r *check.Request) {
				r.Verb, r.Cost, r.Sync, r.Once = verb, units, confirmed, id
				r.Reservation = &bucket.Reservation{ID: id, Least: units, MaxOpen: 10, For: time.Hour}
			}, func(node string, r *check.Request, a check.Answer) {
				got := r.Reservation.Reserved
				if got.Expires = 0; want.Returned == 0 && !want.Repeated { // which of the nodes comes first is not known
					got.Repeated, got.Returned = false, 0
				}
				if a.Err != nil || !a.Allowed || got != want || a.Remaining != left {
					f.t.Errorf("%s, sent to %s: reservation of %v: %+v, %+v, want %+v", what, node, r.Key, a, got, want)
				}
			})
		}
		throughChanges(t, confirmed, func(f *fleet) {
			ask(f, "reserved", bucket.Reserve, 1, 40, bucket.Reserved{Units: 40}, 60)
			ask(f, "reserved", bucket.Reserve, 2, 5, bucket.Reserved{Units: 5}, 55)
			ask(f, "spent", bucket.Spend, 1, 10, bucket.Reserved{Units: 30}, 55)
		}, func(f *fleet) {
			ask(f, "spent again after a handoff", bucket.Spend, 1, 10, bucket.Reserved{Units: 30}, 55)
			ask(f, "settled", bucket.Settle, 1, 2, bucket.Reserved{Units: 2}, 83)
		}, func(f *fleet) {
			ask(f, "settled again after a crash", bucket.Settle, 1, 9, bucket.Reserved{Units: 2, Repeated: true}, 83)
			ask(f, "settled after a crash", bucket.Settle, 2, 0, bucket.Reserved{}, 88)
		})
	}
}

// TestOnceUnconfirmed: a charge of a sync rule that no replica has confirmed is not answered when it is sent again either.
func TestOnceUnconfirmed(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		a := f.nodes["a"]
		f.within(5*time.Second, "replicas are complete", a.Settled)
		for _, owner := range []string{"a", "b"} {
			r := request(a.Node, owner, 1, hourly(100))
			r.Verb, r.Once, r.Sync = bucket.Charge, 1, true
			f.loses(losing[*message.Receipt])
			for range 2 {
				wantErr(t, "unconfirmed", decide(t.Context(), a.Node, r)[0], check.ErrNoOwner)
			}
			f.loses(nil)
			f.eventually(10*time.Second, "it is confirmed", func() bool { return decide(t.Context(), a.Node, r)[0].Err == nil })
			if answer := decide(t.Context(), a.Node, r)[0]; answer.Remaining != 99 {
				t.Errorf("owner %s: %+v", owner, answer)
			}
		}
	})
}
