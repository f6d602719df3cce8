package bucket_test

import (
	"container/list"
	"fmt"
	"math"
	"math/rand/v2"
	"sort"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// zipf draws numbers below len(z), k in proportion to 1/(k+1)^s.
type zipf []float64

func newZipf(n int, s float64) zipf {
	z, sum := make(zipf, n), 0.0
	for k := range z {
		sum += math.Pow(float64(k+1), -s)
		z[k] = sum
	}
	return z
}

func (z zipf) draw(r *rand.Rand) int { return sort.SearchFloat64s(z, r.Float64()*z[len(z)-1]) }

// exactLRU has the keys that were used last.
type exactLRU struct {
	order  list.List // the last one first
	places map[int]*list.Element
}

// use reports whether k is among the last size keys, and makes it the last.
func (l *exactLRU) use(k, size int) bool {
	if e := l.places[k]; e != nil {
		l.order.MoveToFront(e)
		return true
	}
	l.places[k] = l.order.PushFront(k)
	if l.order.Len() > size {
		delete(l.places, l.order.Remove(l.order.Back()).(int))
	}
	return false
}

// TestEvictionAgainstLRU compares how often a key still has its counter with exact LRU of the same size: with skewed keys, with
// scans of keys that come once, and with keys of which every other one is free again within a second, of the fifteen that it takes.
func TestEvictionAgainstLRU(t *testing.T) {
	const size, keys, checks = 2_500, 25_000, 60_000
	long := mustLimits(t, per(bucket.FixedWindow, 1<<40, 1000*time.Hour))
	short := mustLimits(t, per(bucket.FixedWindow, 1<<40, time.Second))
	for _, s := range []float64{0.8, 0.99, 1.2} {
		for _, load := range []string{"skewed", "scans", "mixed"} {
			t.Run(fmt.Sprintf("%s, Zipf %v", load, s), func(t *testing.T) {
				t.Parallel()
				r, z := rand.New(rand.NewPCG(1, 2)), newZipf(keys, s)
				table := mustTable(t, bucket.Config{Shards: 64, MaxEntries: size})
				lru := exactLRU{places: make(map[int]*list.Element)}
				ours, theirs, counted := 0, 0, 0
				for i := range checks {
					k, limits := z.draw(r), long
					if load == "scans" && i%8_000 < 2_000 {
						k = keys + i
					}
					if load == "mixed" && k%2 == 0 {
						limits = short
					}
					now := day + int64(i)*int64(100*time.Microsecond)
					key := bucket.Key{Hi: rand.New(rand.NewPCG(uint64(k), 3)).Uint64(), Lo: uint64(k)}
					_, known := table.Look(now, key, limits)
					table.Do(now, &bucket.Request{Key: key, Limits: limits, Cost: 1})
					kept := lru.use(k, size)
					if i < checks/4 || k >= keys || limits == short {
						continue
					}
					counted++
					if known {
						ours++
					}
					if kept {
						theirs++
					}
				}
				got, want := 100*float64(ours)/float64(counted), 100*float64(theirs)/float64(counted)
				t.Logf("%.1f %% of the checks found a counter, %.1f %% with LRU", got, want)
				if got < want-1 {
					t.Errorf("%.1f %% of the checks found a counter; with LRU %.1f %%", got, want)
				}
			})
		}
	}
}
