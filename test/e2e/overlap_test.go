package e2e

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// spentAudit asks a node's own address for spent keys, in whatever state the node is, until it is ended.
type spentAudit struct {
	stop     context.CancelFunc
	running  sync.WaitGroup
	admitted map[string]int // by source
	answers  int
}

// auditSpent begins to ask n for the first keys of exhaust, from now on.
func auditSpent(n *process.Node, keys int) *spentAudit {
	ctx, stop := context.WithCancel(context.Background())
	h := &spentAudit{stop: stop, admitted: map[string]int{}}
	request := &sluicev1.CheckRequest{}
	for i := range keys {
		request.Checks = append(request.Checks, process.InlineCheck(fmt.Sprint("founding-", i)))
	}
	api := n.API()
	h.running.Go(func() {
		for ctx.Err() == nil {
			asked, cancel := context.WithTimeout(ctx, 2*time.Second)
			resp, err := api.Check(asked, request)
			cancel()
			if err != nil {
				n.Conn.ResetConnectBackoff() // it may listen by now
				<-time.After(2 * time.Millisecond)
				continue
			}
			for _, d := range resp.Decisions {
				h.answers++
				if d.Allowed {
					h.admitted[d.Source.String()]++
				}
			}
		}
	})
	return h
}

func (a *spentAudit) end() {
	a.stop()
	a.running.Wait()
}

// TestOverlap replaces nodes by force, as `kubectl delete pod --force` does: another process of the name starts elsewhere while the first
// is told to leave. The first hands over all, the second joins at its first start, and spent keys stay spent at every address.
func TestOverlap(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, "")
	const keys = 40
	admitted := 0
	process.Eventually(t, 20*time.Second, "the keys are spent", func() error {
		got := 0
		for _, n := range nodes {
			got += exhaust(n, keys)
		}
		if admitted += got; got > 0 {
			return fmt.Errorf("%d more units were admitted", got)
		}
		return nil
	})
	// In a pause owners may be out of reach: a share admits some, and what is charged without a response is charged again.
	if want := 10 * keys; admitted > want || admitted < want && process.Pauses(nodes) == 0 {
		t.Fatalf("%d units were admitted, want %d", admitted, want)
	}
	audits := map[*process.Node]*spentAudit{}
	for _, n := range nodes {
		audits[n] = auditSpent(n, keys)
	}
	for i, overlap := range []time.Duration{0, 50 * time.Millisecond, 500 * time.Millisecond} {
		old := nodes[i]
		old.Signal(syscall.SIGTERM)
		<-time.After(overlap)
		next := process.Launch(t, process.Config{Name: old.Name, Join: []string{nodes[(i+1)%3].Gossip, nodes[(i+2)%3].Gossip}})
		audits[next] = auditSpent(next, keys)
		nodes[i] = next
		<-old.Done
		if s := old.Log.String(); !strings.Contains(s, `msg="handed over"`) {
			t.Errorf("after %v: the first process did not hand over all:\n%s", overlap, s)
		}
		next.WaitReady()
		if s := next.Log.String(); overlap == 0 && !strings.Contains(s, "not joining yet") {
			t.Errorf("after %v: the second process did not say that it waits:\n%s", overlap, s)
		}
		process.WaitAgreed(t, nodes, 10*time.Second)
		waitReplicated(t, nodes)
	}
	for n, h := range audits {
		h.end()
		if len(h.admitted) > 0 || h.answers == 0 {
			t.Errorf("%s at %s answered %d checks of spent keys, and admitted %v", n.Name, n.GRPC, h.answers, h.admitted)
		}
	}
}

// waitReplicated waits until each partition has one owner, and a replica.
func waitReplicated(t *testing.T, nodes []*process.Node) {
	t.Helper()
	process.Eventually(t, 10*time.Second, "each partition has one owner, and a replica", func() error {
		owned, partitions := int32(0), int32(0)
		for _, n := range nodes {
			m, err := n.API().Members(t.Context(), &adminv1alpha1.MembersRequest{})
			if err != nil {
				return err
			}
			h := m.GetPartitionCounts()
			owned, partitions = owned+h.GetOwned(), m.Partitions
			if h.GetUnprotected()+h.GetHandingOver()+h.GetTakingOver()+h.GetDivergent() > 0 {
				return fmt.Errorf("%s: %v", n.Name, h)
			}
		}
		if owned != partitions {
			return fmt.Errorf("%d of %d partitions have an owner", owned, partitions)
		}
		return nil
	})
}
