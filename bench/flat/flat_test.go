package main

import (
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/sluice-project/sluice/bucket"
)

// TestSizes: all counters carry the same weight, or the comparison means nothing.
func TestSizes(t *testing.T) {
	if n := unsafe.Sizeof(slot{}); n != 64 {
		t.Errorf("a slot has %d bytes", n)
	}
	if n := unsafe.Sizeof(counter{}); n != 64 {
		t.Errorf("a counter of lru has %d bytes", n)
	}
}

// TestAgainstMap: without eviction every table knows what a map knows and decides alike.
func TestAgainstMap(t *testing.T) {
	for _, kind := range []string{"bucket", "lru", "clock", "sampled"} {
		table, err := newTable(kind, 100_000)
		if err != nil {
			t.Fatal(err)
		}
		model := map[uint64]*state{}
		random := rand.New(rand.NewPCG(1, 2))
		for i := range 100_000 {
			n := random.Uint64N(20_000)
			now := start + int64(i)
			s, want := model[n], true
			if s == nil {
				s, want = &state{}, false
				model[n] = s
			}
			allowed, known := table.take(now, keyOf(n))
			if known != want || allowed != s.take(now) {
				t.Fatalf("%s, step %d: %v, %v", kind, i, allowed, known)
			}
		}
	}
}

func TestLimit(t *testing.T) {
	var s state
	for i := range burst {
		if !s.take(start) {
			t.Fatalf("denied after %d", i)
		}
	}
	if s.take(start) || s.take(start+interval-1) || !s.take(start+interval) || s.take(start+interval) {
		t.Error("not a token each second")
	}
}

// TestRemoval: a shard under eviction keeps to its cap, and every key that is in it is found.
func TestRemoval(t *testing.T) {
	for name, evict := range map[string]func(*flatShard){"clock": evictClock, "sampled": evictSampled} {
		table := newFlatTable(50, evict)
		sh := &table.shards[3]
		random := rand.New(rand.NewPCG(1, 2))
		for i := range 20_000 {
			// Homes crowd at both ends, so that runs go round the end.
			k := bucket.Key{Hi: random.Uint64N(100) << 54, Lo: 3}
			if random.Uint64N(2) == 0 {
				k.Hi = ^k.Hi
			}
			table.take(start+int64(i), k)
			if j, known := sh.find(k); !known || sh.slots[j].now != start+int64(i) {
				t.Fatalf("%s, step %d: the key just used is not found", name, i)
			}
			n := 0
			for j := range sh.slots {
				if sh.slots[j].used {
					n++
					if at, known := sh.find(sh.slots[j].key); !known || at != j {
						t.Fatalf("%s, step %d: slot %d is not found", name, i, j)
					}
				}
			}
			if n != sh.n || n > 50 {
				t.Fatalf("%s, step %d: %d counters, n says %d", name, i, n, sh.n)
			}
		}
		if sh.n != 50 {
			t.Errorf("%s: %d counters at the end", name, sh.n)
		}
	}
}

// TestEvictionKeepsTheHot: keys that are used all the time outlive those used once.
func TestEvictionKeepsTheHot(t *testing.T) {
	for _, kind := range []string{"bucket", "lru", "clock", "sampled"} {
		table, err := newTable(kind, 20*shards)
		if err != nil {
			t.Fatal(err)
		}
		const hot = 2000
		lost := 0
		for i := range 400_000 {
			now := start + int64(i)*int64(time.Microsecond)
			if _, known := table.take(now, keyOf(uint64(i%hot))); !known && i >= hot {
				lost++
			}
			table.take(now, keyOf(uint64(1_000_000+i)))
		}
		if lost > 4000 {
			t.Errorf("%s: %d of 400000 uses of hot keys were lost", kind, lost)
		}
	}
}
