package eventual

import (
	"testing"
	"time"
)

// worlds are what the account and the bound must hold in.
var worlds = map[string]faults{
	"two nodes":          {nodes: 2, limit: 2000, demand: 1000, delay: time.Millisecond},
	"five nodes":         {nodes: 5, limit: 2000, demand: 1000, delay: time.Millisecond},
	"far apart":          {nodes: 5, limit: 2000, demand: 1000, delay: 200 * time.Millisecond, skew: time.Second},
	"lossy":              {nodes: 3, limit: 2000, demand: 1000, delay: 100 * time.Millisecond, drop: 0.3, double: 0.3},
	"cuts":               {nodes: 3, limit: 4000, demand: 1000, delay: 20 * time.Millisecond, cuts: 0.3, cut: 3 * time.Second},
	"reporters crash":    {nodes: 5, limit: 8000, demand: 1000, delay: 20 * time.Millisecond, crashes: 0.3, skew: time.Second},
	"handoffs":           {nodes: 5, limit: 8000, demand: 1000, delay: 20 * time.Millisecond, drop: 0.1, changes: 2},
	"owners crash":       {nodes: 5, limit: 8000, demand: 1000, delay: 20 * time.Millisecond, double: 0.2, deaths: 0.5},
	"all of it":          {nodes: 5, limit: 8000, demand: 1000, delay: 50 * time.Millisecond, drop: 0.2, double: 0.2, cuts: 0.1, cut: 2 * time.Second, crashes: 0.1, deaths: 0.2, changes: 0.5, skew: time.Second},
	"more than is asked": {nodes: 3, limit: 1 << 40, demand: 1000, delay: 20 * time.Millisecond, drop: 0.2, double: 0.2, changes: 0.5},
}

// TestSeeds: whatever the network does, the owner's total is the sum of the reports, and no more is
// admitted beyond the limit than others had admitted without the last to admit having heard of it.
func TestSeeds(t *testing.T) {
	for name, f := range worlds {
		t.Run(name, func(t *testing.T) {
			var worst outcome
			for seed := range uint64(10) {
				s := newSim(f, seed)
				o := s.run(3)
				if o.wrong != "" {
					t.Fatalf("seed %d: %s", seed, o.wrong)
				}
				if o.excess > o.bound {
					t.Fatalf("seed %d: %d admitted beyond the limit, the bound is %d", seed, o.excess, o.bound)
				}
				if o.local < o.strict {
					t.Errorf("seed %d: %d were decided by the owner, %d by themselves", seed, o.strict, o.local)
				}
				if worst.bound == 0 || o.ratio > worst.ratio {
					worst = o
				}
			}
			t.Logf("excess %d, bound %d, local %d, strict %d", worst.excess, worst.bound, worst.local, worst.strict)
		})
	}
}

// TestFormula: without faults the excess is below what docs/internals/eventual.md promises, λ·(n−1)·(4T+3d).
func TestFormula(t *testing.T) {
	for _, n := range []int{2, 3, 5} {
		for _, d := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond} {
			f := faults{nodes: n, limit: 3000, demand: 1000, delay: d}
			worst := int64(0)
			for seed := range uint64(5) {
				o := newSim(f, seed).run(3)
				worst = max(worst, o.excess)
			}
			bound := int64(float64(f.demand) * float64(n-1) * (4*Period + 3*d).Seconds())
			t.Logf("%d nodes, %v: excess %d, formula %d", n, d, worst, bound)
			if worst > bound {
				t.Errorf("%d nodes, %v: excess %d is above the formula's %d", n, d, worst, bound)
			}
		}
	}
}

// TestWithoutMaximum: an owner that charges what it is told, instead of what is more than it was told
// before, counts too much.
func TestWithoutMaximum(t *testing.T) {
	for name, f := range worlds {
		f.forgetful = true
		if newSim(f, 1).run(1).wrong == "" {
			t.Errorf("%s: nothing shows that a maximum is needed", name)
		}
	}
}
