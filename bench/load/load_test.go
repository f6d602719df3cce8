package load

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

func TestKeys(t *testing.T) {
	k := NewKeys(12)
	if k.Len() != 12 || k.At(0) != "user00000000" || k.At(11) != "user00000011" {
		t.Errorf("%q, %q", k.At(0), k.At(11))
	}
	if n := testing.AllocsPerRun(10, func() { _ = k.At(7) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestPickers(t *testing.T) {
	const n, draws = 1000, 200_000
	zipf, err := NewZipf(n, 1.1)
	if err != nil {
		t.Fatal(err)
	}
	holders := make([]uint8, n)
	for i := range holders {
		holders[i] = uint8(i % 3)
	}
	for _, c := range []struct {
		name string
		from Pickers
		// first is the share of the commonest key, distinct how many are met.
		minFirst, maxFirst float64
		minKeys, maxKeys   int
		ok                 func(k uint32) bool
	}{
		{"uniform", Uniform{n}, 0.001, 0.002, n, n, func(uint32) bool { return true }},
		{"zipf", zipf, 0.1, 0.25, 900, n, func(uint32) bool { return true }},
		{"held", Placed{holders, Here}, 0.003, 0.005, 333, 333, func(k uint32) bool { return k%3 == 1 }},
		{"held by others", Placed{holders, Elsewhere}, 0.0015, 0.003, 667, 667, func(k uint32) bool { return k%3 != 1 }},
	} {
		p, again := c.from.New(7), c.from.New(7)
		counts := map[uint32]int{}
		most := 0
		for range draws {
			k := p.Pick(1)
			if k >= n || !c.ok(k) || k != again.Pick(1) {
				t.Fatalf("%s: picked %d", c.name, k)
			}
			counts[k]++
			most = max(most, counts[k])
		}
		if share := float64(most) / draws; share < c.minFirst || share > c.maxFirst || len(counts) < c.minKeys || len(counts) > c.maxKeys {
			t.Errorf("%s: %d keys, the commonest has %v", c.name, len(counts), share)
		}
	}
	if _, err := NewZipf(n, 1); err == nil {
		t.Error("exponent 1 is accepted")
	}
}

// fake answers after a time of its own.
type fake struct {
	takes time.Duration
	err   error
	mu    sync.Mutex
	asked map[string]int
	nodes map[int]int
}

func (f *fake) Nodes() int                   { return 3 }
func (f *fake) NewCaller(string, int) Caller { return f }
func (f *fake) Call(ctx context.Context, node int, keys []string, seen *Tally) error {
	f.mu.Lock()
	for _, k := range keys {
		f.asked[k]++
	}
	f.nodes[node]++
	f.mu.Unlock()
	if f.takes > 0 {
		time.Sleep(f.takes)
	}
	seen.Allowed += int64(len(keys))
	return f.err
}

// TestRun has three callers whose calls take 10 ms, in bubble time.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{takes: 10 * time.Millisecond, asked: map[string]int{}, nodes: map[int]int{}}
		var edges []time.Duration
		start := time.Now()
		r, err := Run(t.Context(), f, Work{
			Callers: 3, Checks: 2, Keys: NewKeys(5), Pick: Uniform{5}, Node: AnyNode,
			Warmup: 95 * time.Millisecond, Window: time.Second,
			Edge: func() error { edges = append(edges, time.Since(start)); return nil },
		})
		if err != nil {
			t.Fatal(err)
		}
		if r.Calls != 300 || r.Checks() != 600 || r.FailedCalls != 0 {
			t.Errorf("%d calls with %d checks", r.Calls, r.Checks())
		}
		if p := r.Latency.ValueAtQuantile(50); p < 9_990_000 || p > 10_010_000 {
			t.Errorf("median %d ns", p)
		}
		if len(edges) != 2 || edges[0] != 95*time.Millisecond || edges[1] != 1095*time.Millisecond {
			t.Errorf("edges at %v", edges)
		}
		if len(f.nodes) != 3 || len(f.asked) != 5 {
			t.Errorf("nodes %v, keys %v", f.nodes, f.asked)
		}
	})
}

func TestRunFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("cause")
		f := &fake{takes: time.Millisecond, err: cause, asked: map[string]int{}, nodes: map[int]int{}}
		w := Work{Callers: 1, Checks: 1, Keys: NewKeys(5), Pick: Uniform{5}, Window: time.Second}
		r, err := Run(t.Context(), f, w)
		if err != nil || r.Calls != 0 || r.FailedCalls != 1000 || r.Checks() != 0 || !errors.Is(r.FirstError, cause) {
			t.Errorf("every call failed: %+v, %v", r, err)
		}
		w.Edge = func() error { return cause }
		if _, err := Run(t.Context(), f, w); !errors.Is(err, cause) {
			t.Errorf("the edge failed: %v", err)
		}
	})
}

func TestFill(t *testing.T) {
	f := &fake{asked: map[string]int{}, nodes: map[int]int{}}
	if _, err := Fill(t.Context(), f, "d", NewKeys(1005), 4, 10); err != nil {
		t.Fatal(err)
	}
	if len(f.asked) != 1005 || len(f.nodes) != 3 {
		t.Errorf("%d keys were asked, of %d nodes", len(f.asked), len(f.nodes))
	}
	f.err = errors.New("cause")
	if _, err := Fill(t.Context(), f, "d", NewKeys(1005), 4, 10); !errors.Is(err, f.err) {
		t.Errorf("error %v", err)
	}
}
