package cluster

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// TestOnceWhateverHappens: charges with Once are made once, on whichever nodes they are sent again: at the same time, after their
// keys were handed over, and after a replica has taken them over from an owner that crashed.
func TestOnceWhateverHappens(t *testing.T) {
	for _, sync := range []bool{false, true} {
		bubble(t, func(t *testing.T) { onceWhateverHappens(t, sync) })
	}
}

func onceWhateverHappens(t *testing.T, confirmed bool) {
	f := newFleet(t, "a", "b", "c", "d")
	f.within(5*time.Second, "replicas are complete", f.nodes["a"].Settled)
	charges := requests(60, hourly(100))
	for i := range charges {
		charges[i].Verb, charges[i].Once, charges[i].Sync = bucket.Charge, uint64(1+i%2), confirmed
	}
	again := func(what string, left int64) {
		t.Helper()
		var all sync.WaitGroup
		for _, n := range f.nodes {
			all.Go(func() {
				for i, answer := range decide(context.Background(), n.Node, charges...) {
					if answer.Err != nil || !answer.Allowed || answer.Remaining != left {
						t.Errorf("%s, sent to %s: charge %d: %+v", what, n.cfg.Name, i, answer)
					}
				}
			})
		}
		all.Wait()
	}
	again("at once", 99)

	d := f.nodes["d"]
	f.state("d", member.Leaving)
	f.within(20*time.Second, "d has handed off", func(ctx context.Context) error { _, _, err := d.HandOff(ctx); return err })
	f.within(5*time.Second, "d is no voter", d.LeaveSet)
	f.kill("d")
	f.hide("d")
	f.allHeld(5 * time.Second)
	again("after a handoff", 99)

	f.eventually(5*time.Second, "replicas are complete", func() bool {
		unprotected := 0
		for _, n := range f.nodes {
			unprotected += n.Stats().Partitions.Unprotected
		}
		return unprotected == 0
	})
	f.kill("c")
	f.hide("c")
	f.allHeld(10 * time.Second)
	again("after a crash", 99)

	for i := range charges {
		charges[i].Once += 2
	}
	again("under other keys", 98)
}

// TestOnceUnconfirmed: a charge of a sync rule that no replica has confirmed is not answered when it is sent again either.
func TestOnceUnconfirmed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t, "a", "b", "c")
		a := f.nodes["a"]
		f.within(5*time.Second, "replicas are complete", a.Settled)
		for _, owner := range []string{"a", "b"} {
			r := request(a.Node, owner, 1, hourly(100))
			r.Verb, r.Once, r.Sync = bucket.Charge, 1, true
			f.loses(func(_, _ string, e message.Envelope) bool {
				_, receipt := e.Body.(*message.Receipt)
				return receipt
			})
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
