package e2e

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/load"
	"github.com/sluicecluster/sluice/internal/load/api"
	"github.com/sluicecluster/sluice/test/process"
)

// Windows begin with the first hit, so that the time of day does not matter.
const shopRules = `domain: shop
authorize:
  descriptors:
    - - {key: user, from: header, name: X-User}
descriptors:
  - key: user
    limits: [{algorithm: fixed_window, align: first_hit, count: 20, period: 24h}]
`

// visitor asks the nodes through one API.
type visitor struct {
	name  string
	ask   load.Caller
	nodes int
}

// visitors returns one for every API that is given by its name. Callers ask one call at a
// time, so each goroutine needs visitors of its own.
func visitors(t *testing.T, nodes []*process.Node, limits []api.Limit, apis ...string) (all []*visitor) {
	t.Helper()
	for _, name := range apis {
		kind, err := api.Find(name)
		if err != nil {
			t.Fatal(err)
		}
		c := api.Config{Domain: "shop", Key: "user", Header: "X-user", Limits: limits, Timeout: 10 * time.Second}
		for _, n := range nodes {
			if kind.HTTP {
				c.Addrs = append(c.Addrs, n.HTTP)
			} else {
				c.Addrs = append(c.Addrs, n.GRPC)
			}
		}
		opened, err := kind.Open(c, 1)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { opened.Close() })
		all = append(all, &visitor{name, opened.NewCaller(1), opened.Nodes()})
	}
	return all
}

// allowed asks for one unit of key at node, of those that the API chooses from.
func (v *visitor) allowed(ctx context.Context, node int, key string) (bool, error) {
	var seen load.Counts
	if err := v.ask.Call(ctx, node%v.nodes, []string{key}, &seen); err != nil {
		return false, err
	}
	if seen.Failed > 0 {
		return false, seen.FirstError
	}
	return seen.Decided().Allowed == 1, nil
}

// spendInTurns asks with each visitor at each node in turn until quota is spent and then once more
// at each. The first quota asks are admitted, whoever makes them, and no other.
func spendInTurns(t *testing.T, all []*visitor, nodes, quota int, key string) {
	t.Helper()
	asked := 0
	ask := func(v *visitor, node int) {
		ok, err := v.allowed(t.Context(), node, key)
		if want := asked < quota; err != nil || ok != want {
			t.Errorf("ask %d of %s, through %s at node %d: allowed %v, %v; want %v", asked+1, key, v.name, node+1, ok, err, want)
		}
		asked++
	}
	for asked < quota && !t.Failed() {
		for _, v := range all {
			ask(v, asked%nodes)
		}
	}
	for _, v := range all {
		for node := range nodes {
			ask(v, node)
		}
	}
}

// spendAtOnce has several callers ask through random APIs at random nodes, far more often
// than quota. Exactly quota asks are admitted.
func spendAtOnce(t *testing.T, open func() []*visitor, nodes, quota int, key string) {
	t.Helper()
	var callers sync.WaitGroup
	var mu sync.Mutex
	total, admitted := 0, map[string]int{} // by API
	for i := range 8 {
		all, random := open(), rand.New(rand.NewPCG(5, uint64(i)))
		callers.Go(func() {
			for range quota / 2 {
				v := all[random.IntN(len(all))]
				ok, err := v.allowed(t.Context(), random.IntN(nodes), key)
				if err != nil {
					t.Errorf("%s: %v", v.name, err)
				}
				if ok {
					mu.Lock()
					total++
					admitted[v.name]++
					mu.Unlock()
				}
			}
		})
	}
	callers.Wait()
	if total != quota {
		t.Errorf("%s: %d were admitted at once, want %d", key, total, quota)
	}
	t.Logf("%s: admitted %v", key, admitted)
}

// TestAPIs: one key is limited once, whichever APIs and nodes its checks come through. What a rule counts, what
// checks with limits of their own count, and what gubernator's API counts are three counters.
func TestAPIs(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, process.RulesOf(t, shopRules))
	for _, c := range []struct {
		name   string
		quota  int
		limits []api.Limit
		apis   []string
	}{
		{"a rule", 20, nil, []string{"grpc", "stream", "sdk", "http", "envoy", "authorize"}},
		{"limits of checks", 30, []api.Limit{{Count: 30, Period: 24 * time.Hour}}, []string{"grpc", "stream", "sdk", "http", "envoy"}},
		{"gubernator", 25, []api.Limit{{Count: 25, Period: 24 * time.Hour}}, []string{"gubernator"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			open := func() []*visitor { return visitors(t, nodes, c.limits, c.apis...) }
			spendInTurns(t, open(), 3, c.quota, "ann")
			for i := range 5 {
				spendAtOnce(t, open, 3, c.quota, fmt.Sprint("bob-", i))
			}
		})
	}
}
