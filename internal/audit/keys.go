package audit

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// keys are all keys of a run, numbered over all specs. The checks are immutable.
type keys struct {
	specs  []Spec
	checks []*sluicev1.Check
	from   []int32 // the first key of each spec, and the number of keys
}

func newKeys(c *Config, run string) *keys {
	k := &keys{specs: c.Specs}
	for i, s := range c.Specs {
		k.from = append(k.from, int32(len(k.checks)))
		var limits []*sluicev1.Limit
		if !c.Rules {
			limits = []*sluicev1.Limit{limitOf(s)}
		}
		for n := range s.Keys {
			k.checks = append(k.checks, &sluicev1.Check{
				Domain:      c.Domain,
				Descriptor_: []*sluicev1.Entry{{Key: s.Descriptor, Value: fmt.Sprintf("%s-%d-%d", run, i, n)}},
				Limits:      limits,
			})
		}
	}
	k.from = append(k.from, int32(len(k.checks)))
	return k
}

func (k *keys) len() int { return len(k.checks) }

// name is the value of the key's descriptor, unique over all runs.
func (k *keys) name(key int32) string { return k.checks[key].Descriptor_[0].Value }

// spec returns the index of the key's spec.
func (k *keys) spec(key int32) int {
	i := 0
	for key >= k.from[i+1] {
		i++
	}
	return i
}

// limitOf returns the spec's limit as a message, whose enums have the numbers of bucket's.
func limitOf(s Spec) *sluicev1.Limit {
	l := s.Limit
	return &sluicev1.Limit{
		Algorithm: sluicev1.Algorithm(l.Algorithm), Count: l.Count, PeriodNs: int64(l.Period), Burst: l.Burst,
		Align: sluicev1.Align(l.Align), SubWindows: l.SubWindows, LogEntries: l.LogEntries,
	}
}

// chooser chooses the next keys to check.
type chooser interface {
	// next appends up to n keys to dst, none at the end.
	next(rng *rand.Rand, dst []int32, n int) []int32
	// denied is called for each denial by an owner.
	denied(key int32)
}

// anyKey chooses from so many keys evenly, without an end.
type anyKey int

func (all anyKey) next(rng *rand.Rand, dst []int32, n int) []int32 {
	for range n {
		dst = append(dst, int32(rng.IntN(int(all))))
	}
	return dst
}

func (anyKey) denied(int32) {}

// exhaust chooses in turn the keys that have been denied less often than wanted.
type exhaust struct {
	want    int32
	denials []atomic.Int32
	mu      struct {
		sync.Mutex
		open []int32
		at   int
	}
}

func newExhaust(keys, want int) *exhaust {
	e := &exhaust{want: int32(want), denials: make([]atomic.Int32, keys)}
	e.mu.open = make([]int32, keys)
	for i := range e.mu.open {
		e.mu.open[i] = int32(i)
	}
	return e
}

func (e *exhaust) next(_ *rand.Rand, dst []int32, n int) []int32 {
	e.mu.Lock()
	defer e.mu.Unlock()
	for chosen := 0; chosen < min(n, len(e.mu.open)); {
		if e.mu.at >= len(e.mu.open) {
			e.mu.at = 0
		}
		key := e.mu.open[e.mu.at]
		if e.denials[key].Load() >= e.want {
			last := len(e.mu.open) - 1
			e.mu.open[e.mu.at] = e.mu.open[last]
			e.mu.open = e.mu.open[:last]
			continue
		}
		dst = append(dst, key)
		e.mu.at++
		chosen++
	}
	return dst
}

func (e *exhaust) denied(key int32) { e.denials[key].Add(1) }

// left returns how many keys were denied less often than wanted.
func (e *exhaust) left() (n int) {
	for i := range e.denials {
		if e.denials[i].Load() < e.want {
			n++
		}
	}
	return n
}
