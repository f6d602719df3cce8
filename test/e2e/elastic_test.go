package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// Own limits of 5, and a pool of 200 of which low leaves half. Windows begin with their first charge, so that none
// ends while the test runs.
const elasticRules = `
domain: shop
pools:
  spare:
    limit: {count: 200, period: 24h, align: first_hit}
    reserves: {high: 0, low: 50%}
    load: {shrink_to: 20%, expires: 1h}
descriptors:
  - key: high
    rate_limit: {count: 5, period: 24h, align: first_hit}
    elastic: {pool: spare, priority: high}
  - key: low
    rate_limit: {count: 5, period: 24h, align: first_hit}
    elastic: {pool: spare, priority: low}
`

// spending is what callers were admitted.
type spending struct {
	sync.Mutex
	own     map[string]int64
	elastic int64
}

// spend has callers ask random nodes for random ones of 8 keys, some of them two at once, all or nothing, until every
// caller has been denied patience times in a row.
func spend(t *testing.T, nodes []*process.Node, key string) *spending {
	t.Helper()
	const callers, keys, patience = 16, 8, 60
	s := &spending{own: map[string]int64{}}
	var group sync.WaitGroup
	for i := range callers {
		rng := rand.New(rand.NewPCG(uint64(i), 7))
		group.Go(func() {
			for denied := 0; denied < patience; {
				req := &sluicev1.CheckRequest{AllOrNothing: rng.IntN(2) == 0}
				for range 1 + rng.IntN(2) {
					req.Checks = append(req.Checks, &sluicev1.Check{Domain: "shop", Descriptor_: []*sluicev1.Entry{
						{Key: key, Value: fmt.Sprint(rng.IntN(keys))},
					}})
				}
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				res, err := nodes[rng.IntN(len(nodes))].API().Check(ctx, req)
				cancel()
				if err != nil {
					t.Error(err)
					return
				}
				denied++
				for j, d := range res.Decisions {
					if !d.Allowed {
						continue
					}
					denied = 0
					s.Lock()
					if d.Verdict == sluicev1.Verdict_VERDICT_ALLOWED_ELASTIC {
						s.elastic++
					} else {
						s.own[key+req.Checks[j].Descriptor_[0].Value]++
					}
					s.Unlock()
				}
			}
		})
	}
	group.Wait()
	// What is left of the own limits, if the random choice has left any.
	for i := range keys {
		for {
			res, err := nodes[i%len(nodes)].API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{
				{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: key, Value: fmt.Sprint(i)}}},
			}})
			if err != nil {
				t.Fatal(err)
			}
			d := res.Decisions[0]
			if !d.Allowed {
				break
			}
			if d.Verdict == sluicev1.Verdict_VERDICT_ALLOWED_ELASTIC {
				s.elastic++
			} else {
				s.own[key+fmt.Sprint(i)]++
			}
		}
	}
	for name, n := range s.own {
		if n != 5 {
			t.Errorf("%s was admitted %d by its own limit, want 5", name, n)
		}
	}
	if len(s.own) != keys {
		t.Errorf("%d keys were admitted by their own limits, want %d", len(s.own), keys)
	}
	return s
}

// TestElastic: over three nodes a pool gives exactly what it has, low priorities nothing of the reserve,
// and own limits hold whatever the pool has left. A load that one node is told shrinks it on all, and mints nothing.
func TestElastic(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, process.RulesOf(t, elasticRules))
	if low := spend(t, nodes, "low"); low.elastic != 100 {
		t.Errorf("low was given %d, want 100", low.elastic)
	}
	report := func(n *process.Node, load string) {
		t.Helper()
		req, err := http.NewRequest(http.MethodPut, "http://"+n.HTTP+"/v1/pools/shop/spare/load", strings.NewReader(`{"load": `+load+`}`))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("report: %s", resp.Status)
		}
		for _, n := range nodes {
			process.Eventually(t, 10*time.Second, n.Name+" knows the load", func() error {
				_, body, err := process.Get("http://" + n.HTTP + "/metrics")
				if err == nil && !strings.Contains(body, `sluice_pool_load{domain="shop",pool="spare"} `+load+"\n") {
					err = fmt.Errorf("no load of %s in its metrics", load)
				}
				return err
			})
		}
	}
	report(nodes[0], "0.5") // 120 of 200, and 100 are taken
	report(nodes[1], "1")   // 40
	report(nodes[2], "0.5")
	high := spend(t, nodes, "high")
	if high.elastic != 20 {
		t.Errorf("at load 0.5 high was given %d, want 20", high.elastic)
	}
	report(nodes[0], "0")
	for _, key := range []string{"high", "low"} {
		for _, n := range nodes {
			res, err := n.API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{
				{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: key, Value: "0"}}, Verb: sluicev1.Verb_VERB_READ, Cost: new(int64(80))},
				{Domain: "shop", Descriptor_: []*sluicev1.Entry{{Key: key, Value: "0"}}, Verb: sluicev1.Verb_VERB_READ, Cost: new(int64(81))},
			}})
			if err != nil {
				t.Fatal(err)
			}
			if got, more := res.Decisions[0].Allowed, res.Decisions[1].Allowed; got != (key == "high") || more {
				t.Errorf("%s: %s may take 80: %v, 81: %v; want the 80 that are left for high", n.Name, key, got, more)
			}
		}
	}
}
