package node

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/limit"
)

const leaseRules = `domain: shop
descriptors:
  - key: user
    limits: [{name: hourly, count: 50_000, period: 1h}]
  - key: queue
    limits: [{algorithm: leaky_queue, count: 100_000, period: 1s, burst: 1000}]
`

// leasePause is a pause of the process in which a lease may end.
const leasePause = 30 * time.Millisecond

// ready returns a client of n that knows its nodes.
func (r *running) ready(t testing.TB, options ...sluice.Option) *sluice.Client {
	t.Helper()
	options = append([]sluice.Option{sluice.WithTimeout(time.Minute)}, options...)
	c, err := sluice.New(r.listen.grpc.Addr().String(), options...)
	do(t, err)
	t.Cleanup(func() { c.Close() })
	do(t, c.Ready(t.Context()))
	return c
}

// TestClientLeases: a client decides checks of a hot key by itself, and never admits more than the limit. On a slow machine it admits
// less: leases end before they are spent.
func TestClientLeases(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	writeRule(t, s.Rules, leaseRules)
	n := startNode(t, s)
	t.Run("one client", func(t *testing.T) {
		c := n.ready(t)
		key, allowed := c.Key("shop", "user", "one"), 0
		for range 60_000 {
			ok, err := key.Allow(t.Context())
			do(t, err)
			if ok {
				allowed++
			}
		}
		leased := c.Stats().Allowed[limit.SourceLease]
		if allowed > 50_000 || allowed < 10_000 || leased < 5_000 || leased > uint64(allowed) {
			t.Errorf("%d allowed, %d of them by leases", allowed, leased)
		}
	})
	t.Run("many clients, with keys made for each check", func(t *testing.T) {
		var allowed, leased atomic.Int64
		var all sync.WaitGroup
		for range 5 {
			c := n.ready(t)
			for range 2 {
				all.Go(func() {
					for last := time.Now(); time.Since(last) < 500*time.Millisecond; { // what others have leased comes back
						d, err := c.Key("shop", "user", "many").Check(t.Context(), 1)
						if err != nil {
							t.Error(err)
							return
						}
						if d.Allowed {
							allowed.Add(1)
							last = time.Now()
						} else {
							time.Sleep(time.Millisecond) // a caller that comes again soon
						}
						if d.Source == limit.SourceLease {
							leased.Add(1)
							if !d.Allowed || d.Rule != "hourly" || d.LimitName != "hourly" || d.Limit != 50_000 || d.Remaining >= 50_000 || d.Remaining < 0 {
								t.Errorf("%+v", d)
							}
						}
					}
				})
			}
		}
		if all.Wait(); allowed.Load() > 50_000 || allowed.Load() < 10_000 || leased.Load() < 5_000 {
			t.Errorf("%d allowed, %d of them by leases", allowed.Load(), leased.Load())
		}
	})
	t.Run("given back", func(t *testing.T) {
		paused := longestPause(t)
		c := n.ready(t)
		key, other := c.Key("shop", "user", "back"), n.ready(t, sluice.WithoutLeases()).Key("shop", "user", "back")
		const spent = 10_000
		for range spent {
			if ok, err := key.Allow(t.Context()); err != nil || !ok {
				t.Fatal(ok, err)
			}
		}
		if c.Stats().Allowed[limit.SourceLease] == 0 {
			t.Error("nothing was leased")
		}
		c.Close()
		d, err := other.Read(t.Context(), 1)
		if p := paused(); err == nil && d.Remaining < 50_000-spent && p > leasePause {
			t.Logf("%d left: this process got no processor for %v, so that a lease has ended with what was left of it", d.Remaining, p)
		} else if err != nil || d.Remaining != 50_000-spent {
			t.Errorf("%d left, %v", d.Remaining, err)
		}
	})
	t.Run("held", func(t *testing.T) {
		c := n.ready(t)
		key := c.Key("shop", "user", "held")
		held, err := c.Hold(t.Context(), key, 10*time.Minute)
		if err != nil || !held.Allowed {
			t.Fatal(held, err)
		}
		if d, err := key.Check(t.Context(), 1); err != nil || d.Allowed || d.RetryAfter < 9*time.Minute {
			t.Errorf("%+v, %v", d, err)
		}
		h, err := c.Held(t.Context(), key)
		if err != nil || h.Count != 1 || h.Units != 50_000 || len(h.Holdings) != 1 || h.Holdings[0].Use != "reservation" || h.Holdings[0].ExpiresAfter < 9*time.Minute {
			t.Errorf("held: %+v, %v", h, err)
		}
		if _, err := held.Settle(t.Context(), 0); err != nil {
			t.Error(err)
		}
		if h, err := c.Held(t.Context(), key); err != nil || h.Count != 0 {
			t.Errorf("nothing is held: %+v, %v", h, err)
		}
		if _, err := c.Held(t.Context(), sluice.Key{}); !errors.Is(err, sluice.ErrInvalid) {
			t.Errorf("without a key: %v", err)
		}
		if d, err := n.ready(t).Key("shop", "user", "held").Check(t.Context(), 1); err != nil || !d.Allowed || d.Remaining != 49_999 {
			t.Errorf("afterwards: %+v, %v", d, err)
		}
		if _, err := c.Hold(t.Context(), key, 0); !errors.Is(err, sluice.ErrInvalid) {
			t.Errorf("for no time: %v", err)
		}
	})
	t.Run("not leased", func(t *testing.T) {
		c := n.ready(t)
		for _, key := range []sluice.Key{c.Key("shop", "queue", "a"), c.Key("shop", "nothing", "a")} {
			for range 2_000 {
				if ok, err := key.Allow(t.Context()); err != nil || !ok {
					t.Fatal(ok, err)
				}
			}
		}
		if n := c.Stats().Allowed[limit.SourceLease]; n != 0 {
			t.Errorf("%d checks by leases", n)
		}
	})
}

// BenchmarkClientLease: checks of a hot key, by a client of a real node.
func BenchmarkClientLease(b *testing.B) {
	t := new(testing.T)
	s := testConfig(t)
	writeRule(t, s.Rules, "domain: shop\ndescriptors:\n  - key: user\n    limits: [{count: 1_000_000_000_000, period: 1h}]\n")
	n := startNode(t, s)
	key := n.ready(b).Key("shop", "user", "hot")
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		key.Allow(b.Context())
	}
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if ok, err := key.Allow(b.Context()); err != nil || !ok {
			b.Fatal(ok, err)
		}
	}
}
