package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	sluice "github.com/sluice-project/sluice/client"
)

const slotRules = `domain: jobs
descriptors:
  - key: queue
    replication: sync
    limits: [{algorithm: concurrency, count: 5}]
`

func slotClient(t *testing.T, nodes []*node) *sluice.Client {
	t.Helper()
	var target []string
	for _, n := range nodes {
		target = append(target, n.grpc)
	}
	c, err := sluice.New(strings.Join(target, ","))
	if err == nil {
		t.Cleanup(func() { c.Close() })
		err = c.Ready(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// slotReferee books which slots are in use: from the moment Acquire returns until just before the holder's context has ended, or Release.
type slotReferee struct {
	mu         sync.Mutex
	inUse      map[string]int
	fence      map[string]uint64
	most, lost int
	done       int
	unordered  int
}

func (r *slotReferee) begin(queue string, s *sluice.Slot) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inUse[queue]++
	r.most = max(r.most, r.inUse[queue])
	if s.Context().Err() == nil && s.Fence <= r.fence[queue] {
		r.unordered++
	}
	r.fence[queue] = max(r.fence[queue], s.Fence)
}

func (r *slotReferee) end(queue string) {
	r.mu.Lock()
	r.inUse[queue]--
	r.done++
	r.mu.Unlock()
}

// until polls until ok. Its bound only ends a test that would wait for ever.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !ok(); <-tick.C {
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// Slots while members leave, join and crash: never more are in use than the limit, and callers go on.
func TestSlotsThroughChange(t *testing.T) {
	t.Parallel()
	nodes := cluster(t, 3, rulesOf(t, slotRules))
	c := slotClient(t, nodes)
	r := &slotReferee{inUse: map[string]int{}, fence: map[string]uint64{}}
	ctx, enough := context.WithCancel(t.Context())
	defer enough()
	var callers sync.WaitGroup
	for i := range 60 {
		queue := fmt.Sprintf("q%d", i%6)
		callers.Go(func() {
			for ctx.Err() == nil {
				s, err := c.Acquire(ctx, sluice.AcquireRequest{Key: c.Key("jobs", "queue", queue)})
				if err != nil || !s.Allowed || s.ID == "" {
					if ctx.Err() == nil {
						t.Errorf("%v %+v", err, s)
					}
					return
				}
				r.begin(queue, s)
				work := time.NewTimer(20 * time.Millisecond)
				select {
				case <-work.C:
				case <-s.Context().Done():
					if errors.Is(context.Cause(s.Context()), sluice.ErrSlotLost) {
						r.mu.Lock()
						r.lost++
						r.mu.Unlock()
					}
				}
				r.end(queue)
				s.Release()
			}
		})
	}
	progress := func(what string) {
		t.Helper()
		r.mu.Lock()
		from := r.done
		r.mu.Unlock()
		until(t, what, func() bool { r.mu.Lock(); defer r.mu.Unlock(); return r.done > from+600 })
	}
	progress("before a change")
	joined := start(t, nodeConfig{name: "n4", join: []string{nodes[0].gossip}, rules: rulesOf(t, slotRules)})
	progress("with a fourth node")
	nodes[1].kill()
	progress("after a crash")
	joined.stop(syscall.SIGTERM)
	progress("after a leave")
	enough()
	callers.Wait()
	t.Logf("%d slots, at most %d of 5 in use, %d lost, %d not above an earlier fence", r.done, r.most, r.lost, r.unordered)
	if r.most > 5 || r.most < 5 {
		t.Errorf("%d in use at a time, want 5", r.most)
	}
}

var _ = slices.Sort[[]int]
var _ = os.Args
var _ = exec.Command
var _ atomic.Int64
