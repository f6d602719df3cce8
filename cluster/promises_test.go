package cluster

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// TestPublishedBeforeSent: whenever a node sends anything, its checks already go by what that message says: until when it
// has quorum, and who owns each partition. So no promise leaves that a check does not keep.
func TestPublishedBeforeSent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var sent, early atomic.Int64
		f := newFleet(t)
		f.loses(func(from, to string, e message.Envelope) bool {
			for _, n := range f.mu.addrs { // it is called with f.mu held, by the runner of from
				if n.cfg.Name != from || n.cfg.Boot != e.From.Boot {
					continue
				}
				sent.Add(1)
				r := n.runner
				if n.quorumUntil.Load() != r.quorum.QuorumUntil() || r.routes != r.handoff.Routes() {
					early.Add(1)
				}
			}
			return false
		})
		for _, name := range []string{"a", "b", "c"} {
			f.join(name)
		}
		f.cut("ab", "c")
		time.Sleep(3 * time.Second) // c is cut off, and what it owned is claimed
		f.cut()
		f.eventually(10*time.Second, "c has its own again", func() bool { return f.nodes["c"].Stats().Partitions.Owned > 5 })
		f.state("b", member.Leaving)
		f.within(10*time.Second, "b is not counted", f.nodes["b"].LeaveSet)
		if sent.Load() < 200 || early.Load() > 0 {
			t.Errorf("%d of %d messages were sent before checks knew what they say", early.Load(), sent.Load())
		}
	})
}

// TestConfirmedInALostTerm: a charge that was made before another node took the partition over is not confirmed, though the
// partition is owned here again by the time that anybody looks, and all that was charged since has a replica.
func TestConfirmedInALostTerm(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		a := f.nodes["a"]
		r := request(a.Node, "a", 1, hourly(1000))
		f.cut("a", "bc")
		p := r.Key.Shard(31)
		lost := change{partition: p, localTerm: a.localTerm(r.Key)}
		_, lost.seq, _ = a.table.Try(a.clock(), &r.Request, nil)
		f.eventually(5*time.Second, "another owns it", func() bool {
			return decide(t.Context(), f.nodes["b"].Node, r)[0].Source <= check.Forwarded
		})
		for range 10 {
			decide(t.Context(), f.nodes["b"].Node, r)
		}
		f.cut()
		f.eventually(10*time.Second, "a owns it again", func() bool { return decide(t.Context(), a.Node, r)[0].Source == check.Owned })
		f.within(5*time.Second, "a is settled", a.Settled)
		if got := a.runner.handoff.Confirmed(p); got < lost.seq || got == math.MaxUint64 {
			t.Fatalf("change %d is confirmed, want one after %d", got, lost.seq)
		}
		if a.awaitConfirmed(t.Context(), lost) {
			t.Error("the charge of the lost term is confirmed")
		}
	})
}

// TestRestMeanwhile: a check that has seen that it may decide, and is about to, when Rest is called: it charges nothing
// after Rest has returned, since the last snapshot would lack it.
func TestRestMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var armed atomic.Bool
		var a *runningNode
		f := newFleet(t)
		a = f.join("a", func(c *Config) {
			clock := c.Clock
			c.Clock = func() int64 {
				if armed.CompareAndSwap(true, false) { // the check reads the time, after it has seen that it may decide
					if err := a.Rest(context.Background()); err != nil {
						t.Error(err)
					}
				}
				return clock()
			}
			c.CheckTimeout = 100 * time.Millisecond
		})
		r := request(a.Node, "a", 1, hourly(10))
		decide(t.Context(), a.Node, r)
		synctest.Wait() // nobody else reads the time
		armed.Store(true)
		got := decide(t.Context(), a.Node, r)[0]
		if armed.Load() || got.Source == check.Owned {
			t.Errorf("answered %+v after the rest", got)
		}
		p := r.Key.Shard(31)
		a.table.Open(p, 0)
		wantSpent(t, "before the rest", a.Node, r, 1)
	})
}
