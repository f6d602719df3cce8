package cluster

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

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

// TestForwardAllocs: a forwarded check costs no allocation but those of the context that bounds its wait.
func TestForwardAllocs(t *testing.T) {
	if race.Enabled {
		t.Skip("pools drop things under the race detector")
	}
	a := paired(t)
	b := &check.Batch{Requests: []check.Request{request(a, "b", 1, hourly(1<<40))}, Answers: make([]check.Answer, 1)}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	a.Decide(ctx, b)
	bounding := testing.AllocsPerRun(1000, func() {
		_, end := context.WithTimeout(ctx, time.Second/2)
		end()
	})
	if n := testing.AllocsPerRun(1000, func() { a.Decide(ctx, b) }); n > bounding {
		t.Errorf("%v allocations a forwarded check, want %v", n, bounding)
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
