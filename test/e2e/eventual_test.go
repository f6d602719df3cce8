package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
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
