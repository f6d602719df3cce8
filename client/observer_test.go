package sluice

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// diary is an Observer that keeps what it is told.
type diary struct {
	mu    sync.Mutex
	lines []string
}

func (o *diary) Decided(_ context.Context, e Event) {
	o.mu.Lock()
	defer o.mu.Unlock()
	line := e.Verb.String() + " " + e.Domain + " " + string(e.Outcome())
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
	o, other := &diary{}, &diary{}
	c := f.dial(WithObserver(o), WithObserver(other))
	ctx := t.Context()
	large, bad := user, user
	large.Amount, bad.Domain = 5, ""
	c.Key("shop", "user", "42").Allow(ctx)
	c.Check(ctx, large)
	c.Check(ctx, large)
	c.Check(ctx, as(limit.VerbRead, user))
	c.Check(ctx, as(limit.VerbCharge, user))
	c.Check(ctx, as(limit.VerbRefund, user))
	c.CheckAll(ctx, user, large)
	c.CheckAll(ctx, user, bad)
	c.Check(ctx, bad)
	c.Key("shop", "user", "42").Reset(ctx)
	f.nodes[0].server.Stop()
	ended, cancel := context.WithCancel(ctx)
	cancel()
	c.Check(ended, user)
	c.Key("shop", "user", "42").Reset(ended)
	want := []string{
		"check shop allowed owned", "check shop denied owned", "check shop denied deny_cache", "read shop allowed owned",
		"charge shop allowed owned", "refund shop allowed owned", "check shop allowed owned", "check shop denied owned",
		"check shop invalid", "check  invalid", "reset shop allowed owned", "check shop error", "reset shop error",
	}
	if !slices.Equal(o.lines, other.lines) {
		t.Errorf("the second observer was told\n%q", other.lines)
	}
	if !slices.Equal(o.lines, want) {
		t.Errorf("told\n%q\nwant\n%q", o.lines, want)
	}
	s := c.Stats()
	if s.Allowed[limit.SourceOwned] != 6 || s.Denied[limit.SourceOwned] != 2 || s.Denied[limit.SourceDenyCache] != 1 || s.Invalid != 2 || s.Failed != 2 {
		t.Errorf("%+v", s)
	}
}
