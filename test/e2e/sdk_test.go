package e2e

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/test/process"
)

// A client of the SDK that was under load while a node was lost leaves no goroutine behind. It does not run beside other tests,
// whose goroutines it would find.
func TestSDKLeavesNothing(t *testing.T) {
	nodes := process.Cluster(t, 3, process.RulesOf(t, shopRules))
	var target []string
	for _, n := range nodes {
		target = append(target, n.GRPC)
	}
	before := goleak.IgnoreCurrent()
	c, err := sluice.New(strings.Join(target, ","), sluice.WithFailurePolicy(sluice.FailOpen()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, enough := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_, err := c.Key("shop", "user", string(rune('a'+(i+n)%26))).Allow(ctx)
				if err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
				if n == 500 && i == 0 {
					nodes[1].Kill()
				}
				if n == 2000 {
					enough()
				}
			}
		})
	}
	callers.Wait()
	enough()
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if ok, err := c.Key("shop", "user", "somebody new").Allow(t.Context()); !errors.Is(err, sluice.ErrClosed) {
		t.Errorf("a closed client answers %v, %v", ok, err)
	}
	goleak.VerifyNone(t, before)
}

// What is wrong with a check comes back as an error that names the field, and charges nothing.
func TestSDKRejects(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, process.RulesOf(t, shopRules))
	clients := map[*process.Node]*sluice.Client{}
	for _, n := range nodes {
		c, err := sluice.New(n.GRPC, sluice.WithoutRouting(), sluice.WithFailurePolicy(sluice.FailOpen()))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients[n] = c
	}
	spoilt := func(spoil func(c *sluice.Check)) func(context.Context, *process.Node, string) string {
		return func(ctx context.Context, n *process.Node, key string) string {
			c := sluice.Check{Domain: "shop", Descriptor: []sluice.Entry{{Key: "user", Value: key}}, Amount: 1}
			spoil(&c)
			_, err := clients[n].Check(ctx, c)
			if _, ok := errors.AsType[*sluice.Error](err); !ok {
				return fmt.Sprintf("no *sluice.Error: %v", err)
			}
			return err.Error()
		}
	}
	limited := func(l sluice.Limit) func(context.Context, *process.Node, string) string {
		return spoilt(func(c *sluice.Check) { c.Limits = []sluice.Limit{l} })
	}
	rejects(t, nodes, userLeft, userQuota, []wrong{
		{"no domain", spoilt(func(c *sluice.Check) { c.Domain = "" }), []string{"sluice: domain: "}},
		{"long domain", spoilt(func(c *sluice.Check) { c.Domain = strings.Repeat("d", long) }), []string{"sluice: domain: ", "1025"}},
		{"no descriptor", spoilt(func(c *sluice.Check) { c.Descriptor = nil }), []string{"sluice: descriptor: "}},
		{"65 entries", spoilt(func(c *sluice.Check) { c.Descriptor = repeat(65, c.Descriptor[0]) }), []string{"sluice: descriptor: ", "65"}},
		{"empty key", spoilt(func(c *sluice.Check) { c.Descriptor[0].Key = "" }), []string{"sluice: descriptor[0].key: "}},
		{"negative amount", spoilt(func(c *sluice.Check) { c.Amount = -1 }), []string{"sluice: amount: "}},
		{"17 limits", spoilt(func(c *sluice.Check) { c.Limits = repeat(17, sluice.Limit{Count: 5, Period: time.Second}) }), []string{"sluice: limits: ", "17"}},
		{"unknown algorithm", limited(sluice.Limit{Algorithm: 99, Count: 5, Period: time.Second}), []string{"sluice: limits[0].algorithm: "}},
		{"no period", limited(sluice.Limit{Count: 5}), []string{"sluice: limits[0].period: "}},
		{"one of several", func(ctx context.Context, n *process.Node, key string) string {
			_, err := clients[n].CheckAll(ctx, clients[n].Key("shop", "user", key).Spend(1), sluice.Check{Domain: "shop"})
			return fmt.Sprint(err)
		}, []string{"sluice: checks[1].descriptor: "}},
		{"a debt of nothing", func(ctx context.Context, n *process.Node, key string) string {
			_, err := clients[n].Key("shop", "user", key).Charge(ctx, -5)
			return fmt.Sprint(err)
		}, []string{"sluice: amount: "}},
	})
}
