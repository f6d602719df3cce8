//go:build linux

package faults

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// voterWatch asks every node again and again whether it has quorum, and in which cluster.
type voterWatch struct {
	running sync.WaitGroup
	stop    context.CancelFunc
	mu      sync.Mutex
	terms   []*term
}

// term is a time in which a node had quorum, from its first answer until the last one was asked for.
type term struct {
	node, cluster string
	from, to      time.Time
}

func (a *auditor) watchVoters() *voterWatch {
	ctx, stop := context.WithCancel(context.Background())
	w := &voterWatch{stop: stop}
	for _, t := range a.targets {
		w.running.Go(func() {
			tick := time.NewTicker(50 * time.Millisecond)
			defer tick.Stop()
			var now *term
			for ctx.Err() == nil {
				asked := time.Now()
				m, err := t.Members(ctx)
				switch {
				case err != nil || !m.MayDecide:
					now = nil
				case now != nil && now.cluster == m.VoterSet.GetClusterId():
					w.mu.Lock()
					now.to = asked
					w.mu.Unlock()
				default:
					now = &term{t.Name, m.VoterSet.GetClusterId(), time.Now(), time.Now()}
					w.mu.Lock()
					w.terms = append(w.terms, now)
					w.mu.Unlock()
				}
				select {
				case <-ctx.Done():
				case <-tick.C:
				}
			}
		})
	}
	return w
}

// end returns the longest time for which two clusters had quorum at once, and which.
func (w *voterWatch) end() (longest time.Duration, which string) {
	w.stop()
	w.running.Wait()
	for i, a := range w.terms {
		for _, b := range w.terms[:i] {
			from, to := a.from, a.to
			if b.from.After(from) {
				from = b.from
			}
			if b.to.Before(to) {
				to = b.to
			}
			if d := to.Sub(from); a.cluster != b.cluster && d > longest {
				longest, which = d, fmt.Sprintf("%s in %s and %s in %s", a.node, a.cluster, b.node, b.cluster)
			}
		}
	}
	return longest, which
}
