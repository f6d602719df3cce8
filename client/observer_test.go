package client

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// diary is an Observer that keeps what it is told.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (o *diary) Decided(_ context.Context, e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	line := e.Verb + " " + e.Domain + " " + e.Outcome()
	if e.Err == nil {
		line += " " + e.Decision.Source.String()
	}
	if e.Took <= 0 {
		line += ", in no time"
	}
	o.lines = append(o.lines, line)
}

// TestObserver: it is told of every answer, whichever call got it.
func TestObserver(t *testing.T) {
	f := newCluster(t, "n1")
	f.set(func(n *fakeNode, c *sluicev1.Check) *sluicev1.Decision {
		d := decision(n, c.GetCost() < 5)
		if !d.Allowed {
			d.DeniedForNs, d.RetryAfterNs = int64(time.Hour), new(int64(time.Hour))
		}
		return d
	})
	o := &diary{}
	c := f.dial(WithObserver(o))
	ctx := t.Context()
	large, bad := user, user
	large.Cost, bad.Domain = 5, ""
	c.Allow(ctx, "shop", user.Descriptor...)
	c.Check(ctx, large)
	c.Check(ctx, large)
	c.Read(ctx, user)
	c.Charge(ctx, user)
	c.Refund(ctx, user)
	c.CheckAll(ctx, []Check{user, large})
	c.CheckAll(ctx, []Check{user, bad})
	c.Check(ctx, bad)
	c.Reset(ctx, "shop", user.Descriptor...)
	f.nodes[0].server.Stop()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	c.Check(ended, user)
	c.Reset(ended, "shop", user.Descriptor...)
	want := []string{
		"check shop allowed owned", "check shop denied owned", "check shop denied deny_cache", "read shop allowed owned",
		"charge shop allowed owned", "refund shop allowed owned", "check shop allowed owned", "check shop denied owned",
		"check shop invalid", "check  invalid", "reset shop allowed owned", "check shop error", "reset shop error",
	}
	if !slices.Equal(o.lines, want) {
		t.Errorf("told\n%q\nwant\n%q", o.lines, want)
	}
	s := c.Stats()
	if s.Allowed[SourceOwned] != 5 || s.Denied[SourceOwned] != 2 || s.Denied[SourceDenyCache] != 1 || s.Invalid != 2 || s.Failed != 2 {
		t.Errorf("%+v", s)
	}
}
