package sluice

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// TestHurryAsksAnother: a check whose deadline is near is asked of another node once the owner has
// answered nothing for half of the time, and the other node learns how much is left. Then it is
// asked first.
func TestHurryAsksAnother(t *testing.T) {
	inBubble(t, "n1 n2", func(t *testing.T, f *fakeCluster) {
		c := f.dial(WithTimeout(time.Minute), WithDenyCache(0), WithFailurePolicy(FailClosed()))
		f.known(c)
		d, err := c.Check(t.Context(), user)
		do(t, err)
		owner, other := f.nodes[0], f.nodes[1]
		if d.Owner != owner.name {
			owner, other = other, owner
		}
		var told atomic.Int64
		f.mu.Lock()
		f.hold = func(_ *fakeNode, r *sluicev1.CheckRequest) { told.Store(r.TimeoutNs) }
		f.mu.Unlock()
		f.stop(owner)
		time.Sleep(time.Millisecond) // it is silent since its last answer
		const wait = 4 * time.Second
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		defer cancel()
		if d, err = c.Check(ctx, user); err != nil || d.Source != limit.SourceOwned || d.Owner != other.name {
			t.Errorf("%+v, %v", d, err)
		}
		if n := time.Duration(told.Load()); n <= 0 || n > wait/2 {
			t.Errorf("the other node was told %v of %v", n, wait)
		}
		if s := streamOf(c, owner); s == nil || s.node.avoided.Load() == 0 {
			t.Error("the node that does not answer is not avoided")
		}
		if s := streamOf(c, other); s == nil || s.node.avoided.Load() != 0 {
			t.Error("the node that answers is avoided")
		}
	})
}

// TestHurryFrames: checks share a frame only with those that wait about as long, and the frame has
// the least time.
func TestHurryFrames(t *testing.T) {
	none, short, alike, long := &call{}, &call{wait: 9 * time.Second}, &call{wait: 16 * time.Second}, &call{wait: 90 * time.Second}
	for _, c := range []struct {
		first, second *call
		want          bool
	}{{none, none, true}, {none, short, false}, {short, none, false}, {short, alike, true}, {short, long, false}} {
		f := newFrame(&lane{})
		f.add(c.first)
		if got := f.has(c.second); got != c.want {
			t.Errorf("%v with %v: %v", c.first.wait, c.second.wait, got)
		}
	}
	f := newFrame(&lane{})
	f.add(alike)
	least := f.until
	f.add(short)
	if !f.until.Before(least) {
		t.Error("the frame has not the time of the check that has the least")
	}
}

// TestHurryAwait: a caller that comes late to its call waits for what is left of its time, and an
// answer that is there is taken.
func TestHurryAwait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &Client{}
		c.patience.Store(int64(time.Minute))
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		began := time.Now()
		time.Sleep(10 * time.Millisecond) // as CheckEach does, for another call
		if err := c.await(ctx, newCall(), &node{client: c}, c.hurry(ctx), false); err != errGaveUp || time.Since(began) != 19*time.Millisecond {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		time.Sleep(10 * time.Millisecond)
		for range 20 {
			x := newCall()
			x.complete(nil)
			if err := c.await(ctx, x, &node{client: c}, c.hurry(ctx), true); err != nil {
				t.Errorf("an answered call: %v", err)
			}
		}
	})
}

// TestHurryAlone: where there is no other node, the silent one is not asked twice, which would
// spend twice.
func TestHurryAlone(t *testing.T) {
	inBubble(t, "n1", func(t *testing.T, f *fakeCluster) {
		c := f.dial(WithTimeout(time.Minute), WithDenyCache(0), WithFailurePolicy(FailClosed()))
		f.known(c)
		f.stop(f.nodes[0])
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		before := c.Stats().Retries
		if d, err := c.Check(ctx, user); err != nil || d.Source != limit.SourceFailClosed {
			t.Errorf("%+v, %v", d, err)
		}
		if n := c.Stats().Retries; n != before {
			t.Errorf("%d retries, want %d", n, before)
		}
	})
}

// TestHurryAvoidsLast: the node that has just let a check wait is asked again only if there is no
// other.
func TestHurryAvoidsLast(t *testing.T) {
	inBubble(t, "n1 n2 n3", func(t *testing.T, f *fakeCluster) {
		c := f.dial(WithTimeout(time.Minute))
		f.known(c)
		var all []*node
		waitFor(t, "streams to all", func() bool {
			all = c.fleet.Load().nodes
			return len(all) == 3 && !slices.ContainsFunc(all, func(n *node) bool { return n.current.Load() == nil })
		})
		for _, n := range all {
			n.avoid()
		}
		for range 2 * len(all) {
			if s := c.inTurn(all, all[2]); s == nil || s.node == all[2] {
				t.Error("asked again")
			}
		}
	})
}
