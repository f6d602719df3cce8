package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

const (
	eventualLimit  = 600
	eventualWindow = 5 * time.Second
	eventualRules  = `
domain: shop
descriptors:
  - key: tenant
    consistency: eventual
    rate_limit: {count: 600, period: 5s}
`
)

// nearby is what callers of a key in eventual mode were told, by the window in which they were told it.
type nearby struct {
	sync.Mutex
	admitted, local, asked map[int64]int64
	stalest                time.Duration
	failed                 error
}

// askNearby has callers ask random nodes for one key until ctx ends, each every pace.
func askNearby(ctx context.Context, nodes []*process.Node, callers int, pace time.Duration) *nearby {
	r := &nearby{admitted: map[int64]int64{}, local: map[int64]int64{}, asked: map[int64]int64{}}
	req := &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
		Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: "tenant", Value: "one"}},
	}}}
	var group sync.WaitGroup
	for i := range callers {
		rng := rand.New(rand.NewPCG(uint64(i), 11))
		group.Go(func() {
			tick := time.NewTicker(pace)
			defer tick.Stop()
			for {
				select {
				case <-ctx.Done():
					return
				case <-tick.C:
				}
				res, err := nodes[rng.IntN(len(nodes))].API().Check(context.Background(), req)
				window := time.Now().UnixNano() / int64(eventualWindow)
				r.Lock()
				if err != nil || res.Decisions[0].Error != nil {
					r.failed = fmt.Errorf("%v, %v", err, res)
				} else {
					r.take(window, res.Decisions[0])
				}
				r.Unlock()
			}
		})
	}
	group.Wait()
	return r
}

func (r *nearby) take(window int64, d *sluicev1.Decision) {
	r.asked[window]++
	if d.Source == sluicev1.Source_SOURCE_EVENTUAL {
		r.local[window]++
		r.stalest = max(r.stalest, time.Duration(d.StalenessNs))
	}
	if d.Allowed {
		r.admitted[window]++
	}
}

// TestEventualMode: real processes decide one key by themselves, use its limit up, and stay below the formula beyond it.
func TestEventualMode(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 5} {
		t.Run(fmt.Sprintf("%d nodes", n), func(t *testing.T) {
			if n != 3 {
				process.OnlyLong(t)
			}
			nodes := process.Cluster(t, n, process.RulesOf(t, eventualRules))
			first := time.Now().Truncate(eventualWindow).Add(eventualWindow)
			ctx, cancel := context.WithDeadline(t.Context(), first.Add(2*eventualWindow))
			defer cancel()
			time.Sleep(time.Until(first)) // callers come with the window, whose length is the clock's
			r := askNearby(ctx, nodes, 32, 20*time.Millisecond)
			if r.failed != nil {
				t.Fatal(r.failed)
			}
			for i := range int64(2) {
				w := first.UnixNano()/int64(eventualWindow) + i
				// Each node's demand, and a half more because it comes in bunches; the delay as the answers tell it.
				rate := 1.5 * float64(r.asked[w]) / eventualWindow.Seconds() / float64(n)
				bound := int64(float64(n-1)*rate*(200*time.Millisecond+3*r.stalest/2).Seconds()) + int64(n)
				excess := r.admitted[w] - eventualLimit
				t.Logf("asked %d, by the nodes themselves %d, excess %d, formula %d, stalest %v", r.asked[w], r.local[w], excess, bound, r.stalest)
				if r.asked[w] < 2*eventualLimit {
					t.Skip("the machine is too busy to ask for twice the limit")
				}
				// Answers of the first moments of a window may have been given in the last ones of that before it.
				if excess < -eventualLimit/50 || excess > bound {
					t.Errorf("%d admitted of %d", r.admitted[w], eventualLimit)
				}
				if r.local[w] < r.asked[w]*3/4 {
					t.Errorf("%d of %d checks were decided by the nodes themselves", r.local[w], r.asked[w])
				}
			}
		})
	}
}
