package e2e

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-project/sluice/client"
)

// A client of the SDK that was under load while a node was lost leaves no goroutine behind.
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
