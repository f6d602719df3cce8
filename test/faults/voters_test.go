//go:build linux

package faults

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
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
				m, err := t.members(ctx)
				switch {
				case err != nil || !m.MayDecide:
					now = nil
				case now != nil && now.cluster == m.VoterSet.GetClusterId():
					w.mu.Lock()
					now.to = asked
					w.mu.Unlock()
				default:
					now = &term{t.name, m.VoterSet.GetClusterId(), time.Now(), time.Now()}
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

func (t *target) members(ctx context.Context) (*adminv1alpha1.MembersResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	m, err := adminv1alpha1.NewAdminServiceClient(t.conn).Members(ctx, &adminv1alpha1.MembersRequest{})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", t.name, err)
	}
	return m, nil
}

// whole reports why the targets are not one cluster in which each partition has an owner and a replica, and
// nothing is under way.
func whole(targets []*target) error {
	var ring string
	owned, partitions := int32(0), int32(0)
	for _, t := range targets {
		m, err := t.members(context.Background())
		if err != nil {
			return err
		}
		var serving []string
		for _, member := range m.Members {
			if member.State == "serving" {
				serving = append(serving, member.Name)
			}
		}
		h := m.GetPartitionCounts()
		if len(serving) != len(targets) || len(m.VoterSet.GetMembers()) != len(targets) || !m.MayDecide {
			return fmt.Errorf("%s lists %v, voters %v, has quorum: %v %s", t.name, serving, m.VoterSet.GetMembers(), m.MayDecide, m.Reason)
		}
		if h.GetUnprotected()+h.GetBelowReplicas()+h.GetHandingOver()+h.GetTakingOver()+h.GetDivergent() > 0 {
			return fmt.Errorf("%s: %v", t.name, h)
		}
		if ring = cmp.Or(ring, m.Ring); m.Ring != ring {
			return fmt.Errorf("%s has ring %s, another node %s", t.name, m.Ring, ring)
		}
		owned, partitions = owned+h.GetOwned(), m.Partitions
	}
	if owned != partitions {
		return errors.New("some partition has no owner, or two")
	}
	return nil
}
