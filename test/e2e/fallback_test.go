package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// spentKeys are asked of a node that has just been started; each has a limit of 1000 a day.
const spentKeys = 40

func spentCheck(i int, cost int64) *sluicev1.Check {
	return &sluicev1.Check{
		Domain: "e2e", Descriptor_: []*sluicev1.Entry{{Key: "spent", Value: fmt.Sprint(i)}}, Cost: &cost,
		Limits: []*sluicev1.Limit{{Algorithm: sluicev1.Algorithm_ALGORITHM_FIXED_WINDOW, Count: 1000, PeriodNs: int64(24 * time.Hour)}},
	}
}

// TestFirstMoment stops each of three nodes in turn, and then kills each, and starts it again. Its gRPC and HTTP address are
// asked for spent keys from the first millisecond, ready or not: nothing is admitted.
func TestFirstMoment(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, "")
	for i := range spentKeys {
		resp, err := nodes[0].API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{spentCheck(i, 1000)}})
		if err != nil || !resp.Decisions[0].Allowed {
			t.Fatalf("spending key %d: %v, %v", i, resp, err)
		}
	}
	for round := range 6 {
		old := nodes[round%3]
		name := fmt.Sprintf("round %d, %s", round, old.Name)
		var join []string
		for _, n := range nodes {
			if n != old {
				join = append(join, n.Gossip)
			}
		}
		if round < 3 {
			old.Stop(syscall.SIGTERM)
		} else {
			old.Kill()
		}
		fresh := process.Launch(t, process.Config{Name: old.Name, Join: join})
		h := &early{node: fresh}
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for i := range 4 {
			all.Go(func() { h.overGRPC(ctx, i) })
			all.Go(func() { h.overHTTP(ctx, i) })
		}
		fresh.WaitReady()
		nodes[round%3] = fresh
		process.WaitAgreed(t, nodes, process.Quiet)
		cancel()
		all.Wait()
		t.Logf("%s: %d answers, %d of them before it was ready", name, h.answers.Load(), h.unready.Load())
		if h.answers.Load() == 0 {
			t.Errorf("%s: no answer at all", name)
		}
		if n := h.admitted.Load(); n > 0 {
			t.Errorf("%s: %d checks of spent keys were admitted, the first: %v", name, n, h.first.Load())
		}
	}
}

// TestWokenProcess stops a process for two seconds while it is asked for spent keys: it answers what has waited in its sockets, and
// admits nothing.
func TestWokenProcess(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, "")
	sent := func() (counters float64) {
		for _, n := range nodes {
			counters += n.Metric("sluice_transferred_counters_total")
		}
		return counters
	}
	before := sent()
	for i := range spentKeys {
		resp, err := nodes[0].API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{spentCheck(i, 1000)}})
		if err != nil || !resp.Decisions[0].Allowed {
			t.Fatalf("spending key %d: %v, %v", i, resp, err)
		}
	}
	// A pause may lose what 50 ms admit, as a crash may.
	process.Eventually(t, process.Quiet, "replicas have what was spent", func() error {
		if n := sent() - before; n < spentKeys {
			return fmt.Errorf("%v of %d counters were sent", n, spentKeys)
		}
		return nil
	})
	h := &early{node: nodes[2]}
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range 16 {
		all.Go(func() { h.overGRPC(ctx, i) })
		all.Go(func() { h.overHTTP(ctx, i) })
	}
	for range 2 {
		nodes[2].Signal(syscall.SIGSTOP)
		<-time.After(2 * time.Second) // how long it is stopped is what is tested
		before := h.answers.Load()
		nodes[2].Signal(syscall.SIGCONT)
		process.Eventually(t, process.Quiet, "it answers again", func() error {
			if n := h.answers.Load() - before; n < 100 {
				return fmt.Errorf("%d answers", n)
			}
			return nil
		})
	}
	process.WaitAgreed(t, nodes, process.Quiet)
	cancel()
	all.Wait()
	if n := h.admitted.Load(); n > 0 {
		t.Errorf("%d checks of spent keys were admitted, the first: %v", n, h.first.Load())
	}
}

// TestDeferredChargesSurvive kills two of three nodes, has the third admit its share of a key, and kills that too. When all are
// started again, the share is charged to the key's owner.
func TestDeferredChargesSurvive(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	args := []string{"--data-dir", filepath.Join(dir, "{name}"), "--log-level", "debug"}
	nodes := process.Cluster(t, 3, "", args...)
	ask := func(n *process.Node, verb sluicev1.Verb, key int) *sluicev1.Decision {
		t.Helper()
		c := spentCheck(key, 1)
		c.Verb, c.Limits[0].Count = verb, 30
		resp, err := n.API().Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{c}})
		if err != nil {
			t.Fatal(err)
		}
		return resp.Decisions[0]
	}
	nodes[1].Kill()
	nodes[2].Kill()
	admitted := int64(0)
	for denied := false; !denied; {
		d := ask(nodes[0], sluicev1.Verb_VERB_CHECK, 1)
		if d.Allowed {
			admitted++
		}
		denied = !d.Allowed && d.Source == sluicev1.Source_SOURCE_SHARE
	}
	if admitted != 10 {
		t.Errorf("%d admitted alone, want a third of 30", admitted)
	}
	// A file that has the share of another key too has all of the first key's.
	for key := 2; ask(nodes[0], sluicev1.Verb_VERB_CHECK, key).Source != sluicev1.Source_SOURCE_SHARE; key++ {
	}
	nodes[0].WaitLog(`msg="deferred charges written" keys=2`, process.Quiet)
	nodes[0].Kill()
	for i, n := range nodes {
		c := process.Config{Name: n.Name, Args: args}
		if i > 0 {
			c.Join = []string{nodes[0].Gossip}
		}
		nodes[i] = process.Launch(t, c)
	}
	for _, n := range nodes {
		n.WaitReady()
	}
	nodes[0].WaitLog("deferred charges read", process.Quiet)
	process.Eventually(t, process.Quiet, "the share is charged", func() error {
		if d := ask(nodes[1], sluicev1.Verb_VERB_READ, 1); d.GetRemaining() != 30-admitted {
			return fmt.Errorf("%v", d)
		}
		return nil
	})
}

// early asks a node for spent keys, as often as it answers.
type early struct {
	node                       *process.Node
	answers, unready, admitted atomic.Int64
	ready                      atomic.Bool
	first                      atomic.Value // string: the first that was admitted
}

func (h *early) count(allowed bool, what string) {
	h.answers.Add(1)
	if !h.ready.Load() {
		if status, _, err := h.node.Get("/readyz"); err == nil && status == http.StatusOK {
			h.ready.Store(true)
		} else {
			h.unready.Add(1)
		}
	}
	if allowed {
		h.admitted.Add(1)
		h.first.CompareAndSwap(nil, what)
	}
}

func (h *early) overGRPC(ctx context.Context, i int) {
	conn, err := grpc.NewClient(h.node.GRPC, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithConnectParams(grpc.ConnectParams{
		Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}, MinConnectTimeout: time.Second,
	}))
	if err != nil {
		h.node.T.Error(err)
		return
	}
	defer conn.Close()
	api := sluicev1.NewRateLimitServiceClient(conn)
	for ; ctx.Err() == nil; i += 4 {
		resp, err := api.Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{spentCheck(i%spentKeys, 1)}}, grpc.WaitForReady(true))
		if err == nil {
			h.count(resp.Decisions[0].Allowed, resp.Decisions[0].String())
		}
	}
}

func (h *early) overHTTP(ctx context.Context, i int) {
	for ; ctx.Err() == nil; i += 4 {
		_, body, err := request(ctx, http.MethodPost, "http://"+h.node.HTTP+"/v1/check", fmt.Sprintf(`{"domain": "e2e",
			"descriptor": [{"key": "spent", "value": "%d"}], "limits": [{"algorithm": "fixed_window", "count": 1000, "period": 86400}]}`, i%spentKeys))
		if err != nil {
			continue // nobody listens yet
		}
		var answer struct{ Allowed bool }
		if err := json.NewDecoder(strings.NewReader(body)).Decode(&answer); err != nil {
			h.node.T.Errorf("%v: %s", err, body)
			return
		}
		h.count(answer.Allowed, body)
	}
}
