package audit_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/audit"
)

// Nodes that join are asked, those that leave are not, and the one that told of them may go.
func TestDiscovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, 2)
		d, err := audit.Discover(t.Context(), []string{addr("n1")}, time.Second, cl.dial())
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		see := func(when string, want ...string) {
			t.Helper()
			var list []string
			for _, n := range want {
				list = append(list, addr(n))
			}
			if got := slices.Sorted(slices.Values(d.Targets())); !slices.Equal(got, list) {
				t.Errorf("%s: targets %v, want %v", when, got, list)
			}
		}
		see("at first", "n1", "n2")

		cl.start("n3")
		time.Sleep(1100 * time.Millisecond)
		see("a second after one has joined", "n1", "n2", "n3")

		cl.node("n2").kill()
		d.Failed(addr("n2"))
		time.Sleep(200 * time.Millisecond)
		see("as soon as a call has failed", "n1", "n3")

		cl.node("n1").kill()
		d.Failed(addr("n1"))
		time.Sleep(1500 * time.Millisecond)
		see("when the first one is gone", "n3")

		cl.node("n3").kill()
		time.Sleep(1500 * time.Millisecond)
		see("when no node answers", "n3")

		cl.start("n1")
		time.Sleep(1500 * time.Millisecond)
		see("when the first one is back", "n1")
	})
}

func TestDiscoverNoNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, 1)
		began := time.Now()
		if _, err := audit.Discover(t.Context(), []string{addr("n8"), addr("n9")}, time.Second, cl.dial()); !errors.Is(err, audit.ErrNoNode) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v", took)
		}
		if _, err := audit.Discover(t.Context(), nil, time.Second); err == nil {
			t.Error("no address is no error")
		}
	})
}

// An audit follows its discovery: the node that joins is asked, the one that goes is not missed.
func TestAuditOfAMovingCluster(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cl := newCluster(t, 1)
		d, err := audit.Discover(t.Context(), []string{addr("n1")}, time.Second, cl.dial())
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		moved := make(chan struct{})
		go func() {
			defer close(moved)
			time.Sleep(time.Second)
			cl.start("n2")
			time.Sleep(2 * time.Second)
			cl.node("n1").kill()
		}()
		cfg := cl.config()
		cfg.Targets, cfg.Failed, cfg.Duration = d.Targets, d.Failed, 5*time.Second
		r, err := audit.Run(t.Context(), cfg)
		<-moved
		if err != nil || !r.Clean() || r.Admitted != 200 || !slices.Equal(r.Nodes, []string{addr("n1"), addr("n2")}) {
			t.Errorf("report %+v, error %v", r, err)
		}
	})
}
