package main

import (
	"context"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/sluicecluster/sluice/bench/process"
	"github.com/sluicecluster/sluice/internal/load"
)

// fake notes what it is asked.
type fake struct {
	err   error
	mu    sync.Mutex
	keys  map[string]int
	nodes map[int]int
}

func (f *fake) Nodes() int                { return 3 }
func (f *fake) NewCaller(int) load.Caller { return f }
func (f *fake) Call(_ context.Context, node int, keys []string, seen *load.Counts) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, k := range keys {
		f.keys[k]++
	}
	f.nodes[node]++
	seen.Fail(1, nil)
	return f.err
}

func TestFill(t *testing.T) {
	f := &fake{keys: map[string]int{}, nodes: map[int]int{}}
	if failed, err := fill(t.Context(), f, 1005, 4, 10); err != nil || failed != 101 {
		t.Errorf("%d calls, %v", failed, err)
	}
	if len(f.keys) != 1005 || f.keys["user00001004"] != 6 || len(f.nodes) != 3 {
		t.Errorf("%d keys were asked, of %d nodes", len(f.keys), len(f.nodes))
	}
	f.err = errors.New("cause")
	if _, err := fill(t.Context(), f, 1005, 4, 10); !errors.Is(err, f.err) {
		t.Errorf("error %v", err)
	}
}

// The checks of failed calls are in no figure but their number; checks that failed within an answered call are shares.
func TestRoundOf(t *testing.T) {
	r := &load.Result{Calls: 4, FailedCalls: 2, Latency: hdrhistogram.New(1, int64(time.Minute), 3)}
	r.By[load.Owned], r.By[load.Forwarded], r.By[load.Share] = load.Decided{Allowed: 8, Denied: 2}, load.Decided{Allowed: 5}, load.Decided{Denied: 4}
	r.Fail(2*5+1, errors.New("cause"))
	if err := r.Latency.RecordValue(1_000_000); err != nil {
		t.Fatal(err)
	}
	use := func(cpu, gc time.Duration) process.Usage { return process.Usage{CPU: cpu, GC: gc, Resident: 7} }
	got := roundOf(r, 5, 2*time.Second, [2]process.Usage{use(1*time.Second, 0), use(3*time.Second, time.Second)}, [2]process.Usage{use(0, 0), use(time.Second, 0)})
	if got.CallsPerSecond != 2 || got.ChecksPerSecond != 10 || got.P50 < 999 || got.P50 > 1001 || got.ServerCPU != 1e5 || got.ClientCPU != 5e4 || got.GCShare != 0.5 {
		t.Errorf("%+v", got)
	}
	if math.Abs(got.Denied-0.3) > 1e-9 || got.Failed != 0.05 || got.Forwarded != 0.25 || got.Fallback != 0.2 || got.FailedCalls != 2 || got.FirstError != "cause" || got.Resident != 7 {
		t.Errorf("%+v", got)
	}
}
