package heavy

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

const (
	// shards divide the keys, so that those who count different ones seldom wait for each other.
	shards = 16
	// slots divide the time.
	slots = 4
)

// Window counts the heaviest keys of the last three to four slots. It takes its memory with
// the first key, and is safe for concurrent use.
type Window struct {
	slot   time.Duration
	size   int
	shards [shards]shard
}

type shard struct {
	mu struct {
		sync.Mutex
		slots [slots]slot
	}
}

// slot is what came in one stretch of time.
type slot struct {
	number int64
	*Sketch
}

// Entry is one key: it has come at most Count times, and at least Count less Error, if every time was counted.
type Entry struct {
	Key          bucket.Key
	Name         []byte
	Count, Error uint64
}

// NewWindow returns a Window that is divided into slots of this length (more than 0) and has about size places for
// keys in each.
func NewWindow(slot time.Duration, size int) *Window {
	return &Window{slot: slot, size: max(1, size/shards)}
}

// Add counts weight for key, which n names, at now: the time since any fixed moment, 0 or more.
func (w *Window) Add(now time.Duration, key bucket.Key, weight uint64, n Namer) {
	number := int64(now / w.slot)
	sh := &w.shards[key.Hi%shards]
	sh.mu.Lock()
	s := &sh.mu.slots[number%slots]
	switch {
	case s.Sketch == nil:
		*s = slot{number, NewSketch(w.size)}
	case s.number != number:
		s.number = number
		s.clear()
	}
	s.Add(key, weight, n)
	sh.mu.Unlock()
}

// Covers returns how much time up to now Top counts.
func (w *Window) Covers(now time.Duration) time.Duration {
	return min(now, now%w.slot+(slots-1)*w.slot)
}

// Top returns the n heaviest keys at now whose name wanted takes, the heaviest first, and all of them together.
func (w *Window) Top(now time.Duration, n int, wanted func(name []byte) bool) []Entry {
	var all []Entry
	for i := range w.shards {
		all = append(all, w.shards[i].entries(int64(now/w.slot), wanted)...)
	}
	slices.SortFunc(all, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(a.Error, b.Error), bytes.Compare(a.Name, b.Name))
	})
	return all[:min(n, len(all))]
}

// entries adds up what the slots up to number have.
func (sh *shard) entries(number int64, wanted func(name []byte) bool) []Entry {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var all []Entry
	at := make(map[bucket.Key]int)
	var floors uint64 // of all slots
	for i := range sh.mu.slots {
		s := &sh.mu.slots[i]
		if s.Sketch == nil || s.number > number || s.number <= number-slots {
			continue
		}
		floor := s.floor()
		floors += floor
		for j := range s.places {
			p := &s.places[j]
			k, ok := at[p.key]
			if !ok {
				if !wanted(p.name) {
					continue
				}
				k = len(all)
				at[p.key] = k
				all = append(all, Entry{Key: p.key, Name: bytes.Clone(p.name)})
			}
			// A slot that does not name a key may have seen it as often as its floor. The floors of all slots are
			// added below, so that of one which names it is taken off, below 0 if need be: it wraps back.
			all[k].Count += p.count - floor
			all[k].Error += p.over - floor
		}
	}
	for k := range all {
		all[k].Count += floors
		all[k].Error += floors
	}
	return all
}
