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

	"github.com/sluice-project/sluice/client"
)

// A client of the SDK that was under load while a node was lost leaves no goroutine behind. It does not run beside other tests,
// whose goroutines it would find.
func TestSDKLeavesNothing(t *testing.T) {
	nodes := cluster(t, 3, rulesOf(t, shopRules))
	var target []string
	for _, n := range nodes {
		target = append(target, n.grpc)
	}
	before := goleak.IgnoreCurrent()
	c, err := client.Dial(t.Context(), strings.Join(target, ","), client.WithFailurePolicy(client.FailOpen))
	if err != nil {
		t.Fatal(err)
	}
	ctx, enough := context.WithCancel(t.Context())
	var callers sync.WaitGroup
	for i := range 16 {
		callers.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				_, err := c.Allow(ctx, "shop", client.KV("user", string(rune('a'+(i+n)%26))))
				if err != nil && ctx.Err() == nil {
					t.Error(err)
					return
				}
				if n == 500 && i == 0 {
					nodes[1].kill()
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
	if ok, err := c.Allow(t.Context(), "shop", client.KV("user", "somebody new")); !errors.Is(err, client.ErrClosed) {
		t.Errorf("a closed client answers %v, %v", ok, err)
	}
	goleak.VerifyNone(t, before)
}

// What is wrong with a check comes back as an error that names the field, and charges nothing.
func TestSDKRejects(t *testing.T) {
	t.Parallel()
	nodes := cluster(t, 3, rulesOf(t, shopRules))
	clients := map[*node]*client.Client{}
	for _, n := range nodes {
		c, err := client.Dial(t.Context(), n.grpc, client.WithoutRouting(), client.WithFailurePolicy(client.FailOpen))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		clients[n] = c
	}
	spoilt := func(spoil func(c *client.Check)) func(context.Context, *node, string) string {
		return func(ctx context.Context, n *node, key string) string {
			c := client.Check{Domain: "shop", Descriptor: []client.Entry{client.KV("user", key)}}
			spoil(&c)
			_, err := clients[n].Check(ctx, c)
			if _, ok := errors.AsType[*client.Error](err); !ok {
				return fmt.Sprintf("no *client.Error: %v", err)
			}
			return err.Error()
		}
	}
	limited := func(l client.Limit) func(context.Context, *node, string) string {
		return spoilt(func(c *client.Check) { c.Limits = []client.Limit{l} })
	}
	rejects(t, nodes, userLeft, userQuota, []wrong{
		{"no domain", spoilt(func(c *client.Check) { c.Domain = "" }), []string{"sluice: domain: "}},
		{"long domain", spoilt(func(c *client.Check) { c.Domain = strings.Repeat("d", long) }), []string{"sluice: domain: ", "1025"}},
		{"no descriptor", spoilt(func(c *client.Check) { c.Descriptor = nil }), []string{"sluice: descriptor: "}},
		{"65 entries", spoilt(func(c *client.Check) { c.Descriptor = repeat(65, c.Descriptor[0]) }), []string{"sluice: descriptor: ", "65"}},
		{"empty key", spoilt(func(c *client.Check) { c.Descriptor[0].Key = "" }), []string{"sluice: descriptor[0].key: "}},
		{"negative cost", spoilt(func(c *client.Check) { c.Cost = -1 }), []string{"sluice: cost: "}},
		{"17 limits", spoilt(func(c *client.Check) { c.Limits = repeat(17, client.Limit{Count: 5, Period: time.Second}) }), []string{"sluice: limits: ", "17"}},
		{"unknown algorithm", limited(client.Limit{Algorithm: 99, Count: 5, Period: time.Second}), []string{"sluice: limits[0].algorithm: "}},
		{"no period", limited(client.Limit{Count: 5}), []string{"sluice: limits[0].period: "}},
		{"one of several", func(ctx context.Context, n *node, key string) string {
			_, err := clients[n].CheckAll(ctx, []client.Check{
				{Domain: "shop", Descriptor: []client.Entry{client.KV("user", key)}}, {Domain: "shop"},
			})
			return fmt.Sprint(err)
		}, []string{"sluice: checks[1].descriptor: "}},
		{"a debt of nothing", func(ctx context.Context, n *node, key string) string {
			_, err := clients[n].Charge(ctx, client.Check{Domain: "shop", Descriptor: []client.Entry{client.KV("user", key)}, Cost: -5})
			return fmt.Sprint(err)
		}, []string{"sluice: cost: "}},
	})
}
