package cluster

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/race"
)

// crowd has count callers ask r of n at once, and returns their answers, in the order of the decisions.
func crowd(ctx context.Context, n *Node, count int, r check.Request) []check.Answer {
	answers := make([]check.Answer, count)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() { answers[i] = decide(ctx, n, r)[0] })
	}
	all.Wait()
	slices.SortFunc(answers, func(a, b check.Answer) int {
		if a.Allowed != b.Allowed {
			return map[bool]int{true: -1, false: 1}[a.Allowed]
		}
		return int(b.Remaining - a.Remaining)
	})
	return answers
}

// TestAllocs: a check costs no allocation, and one that is forwarded those of the context that bounds its wait.
func TestAllocs(t *testing.T) {
	if race.Enabled {
		t.Skip("pools drop things under the race detector")
	}
	a := paired(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	bounding := testing.AllocsPerRun(1000, func() {
		_, end := context.WithTimeout(ctx, time.Second/2)
		end()
	})
	owned, forwarded, remembered := request(a, "a", 1, hourly(1<<40)), request(a, "b", 1, hourly(1<<40)), request(a, "b", 2, hourly(0))
	now := a.cfg.Clock()
	a.denials.Remember(now, now, &remembered.Request, &bucket.Decision{}, "b", time.Hour)
	for _, c := range []struct {
		name     string
		r        check.Request
		want     float64
		forwards bool
	}{{"owned", owned, 0, false}, {"forwarded", forwarded, bounding, true}, {"denied from memory", remembered, 0, false}} {
		b := &check.Batch{Requests: []check.Request{c.r}, Answers: make([]check.Answer, 1)}
		a.Decide(ctx, b)
		before := a.Stats().Forwards
		if n := testing.AllocsPerRun(1000, func() { a.Decide(ctx, b) }); n > c.want || a.Stats().Forwards > before != c.forwards {
			t.Errorf("%s: %v allocations, want %v; %d forwards", c.name, n, c.want, a.Stats().Forwards-before)
		}
	}
}

// paired returns node a of two, between which there is no network.
func paired(t *testing.T) *Node {
	w, peers := newTestCluster(t), direct{}
	for _, name := range []string{"a", "b"} {
		peers[name+":7462"] = w.add(name, func(c *Config) { c.Peers = peers })
	}
	w.agree(1)
	return w.nodes["a"]
}
