package bucket

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/sluicecluster/sluice/bucket/internal/offheap"
)

// TestStoreAgainstMap adds and removes keys at random, in runs that let the store grow and shrink, and compares it with a map. Keys
// of one home, as small numbers are, and any others must be found alike.
func TestStoreAgainstMap(t *testing.T) {
	for name, keyOf := range map[string]func(n uint64) Key{
		"hashes":        func(n uint64) Key { return Key{Hi: n * 0x9e3779b97f4a7c15, Lo: n * 0xbf58476d1ce4e5b9} },
		"small numbers": func(n uint64) Key { return Key{Hi: n} },
		"one half":      func(n uint64) Key { return Key{Lo: n << 40} },
	} {
		t.Run(name, func(t *testing.T) {
			s, model := store{arena: offheap.New(pageBytes, true)}, make(map[Key]int64)
			random := rand.New(rand.NewPCG(1, 2))
			check := func() {
				t.Helper()
				if int(s.n) != len(model) || s.index.used+s.index.usedOld != len(model) {
					t.Fatalf("%d slots, %d keys in the index; want %d", s.n, s.index.used+s.index.usedOld, len(model))
				}
				dirty := make(map[Key]bool)
				for slot := range s.eachDirty {
					dirty[s.at(slot).key] = true
				}
				for k, now := range model {
					slot, ok := s.find(k)
					if !ok || s.at(slot).key != k || s.at(slot).now != now || s.isDirty(slot) != (now%3 == 0) {
						t.Fatalf("key %v: slot %d, %v, %+v; want time %d", k, slot, ok, s.at(slot), now)
					}
					if dirty[k] != (now%3 == 0) {
						t.Fatalf("key %v is dirty: %v", k, dirty[k])
					}
				}
			}
			for run := range 40 {
				grows := run%2 == 0
				for i := range 2000 {
					k := keyOf(random.Uint64N(4000))
					slot, there := s.find(k)
					if _, want := model[k]; there != want {
						t.Fatalf("run %d, step %d: key %v is there: %v, want %v", run, i, k, there, want)
					}
					switch {
					case !there && (grows || i%8 == 0):
						slot = s.add(k)
						s.at(slot).now = int64(i)
						s.setDirty(slot, i%3 == 0)
						model[k] = int64(i)
					case there && (!grows || i%8 == 0):
						s.remove(slot)
						delete(model, k)
					}
				}
				check()
			}
			for _, k := range slices.Collect(maps.Keys(model)) {
				slot, _ := s.find(k)
				s.remove(slot)
				delete(model, k)
			}
			if check(); len(s.pages) > 2 || s.index.bytes() > 1024 {
				t.Errorf("an empty store has %d pages and an index of %d bytes", len(s.pages), s.index.bytes())
			}
			s.clear()
		})
	}
}

// TestIndexGrowsByAndBy: no insertion moves more than a few lines, so none is slow.
func TestIndexGrowsByAndBy(t *testing.T) {
	s := store{arena: offheap.New(pageBytes, true)}
	moved, old := 0, 0
	for n := range uint64(200_000) {
		before := s.index.moved
		s.add(Key{Hi: n * 0x9e3779b97f4a7c15, Lo: n})
		if s.index.old != nil && s.index.moved > before {
			moved = max(moved, s.index.moved-before)
		}
		if s.index.old != nil {
			old++
		}
	}
	if moved > movedAtOnce || old == 0 {
		t.Errorf("%d lines were moved at once; the index was growing at %d insertions", moved, old)
	}
	if per := float64(s.index.bytes()) / 200_000; per > 15 {
		t.Errorf("the index takes %.1f bytes a key", per)
	}
	s.clear()
}
