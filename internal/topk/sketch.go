// Package topk finds the most frequent keys of a stream in bounded memory: Sketch counts them, and a Window has one Sketch for
// each part of the last minute. It takes the time as a parameter and starts no goroutine.
package topk

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// Sketch counts the heaviest keys of a stream in a fixed number of places: Space-Saving (Metwally, Agrawal, El Abbadi, "Efficient
// computation of frequent and top-k elements in data streams", ICDT 2005). A key without a place takes that of the lightest, and
// inherits its count as an error. So of a stream of total weight W, in m places:
//
//   - a key with a place has come at most its count, and at least its count less its error,
//   - no error is more than W ÷ m, and every key that weighs more than that has a place.
//
// It is not safe for concurrent use. Once its places are taken, it allocates only for longer names.
type Sketch struct {
	size   int
	places []place // a heap, the lightest first
	index  map[bucket.Key]int32
}

type place struct {
	key         bucket.Key
	count, over uint64
	name        []byte
}

// Namer appends the name of a key. It is called only when the key gets a place.
type Namer interface{ AppendName(dst []byte) []byte }

// NewSketch returns an empty sketch of size places, at least 1.
func NewSketch(size int) *Sketch {
	return &Sketch{size: max(1, size), index: make(map[bucket.Key]int32, size)}
}

// Add counts weight for key, named by n.
func (s *Sketch) Add(key bucket.Key, weight uint64, n Namer) {
	if i, ok := s.index[key]; ok {
		s.places[i].count += weight
		s.down(int(i))
		return
	}
	if len(s.places) < s.size {
		s.insert(key, weight, n)
		return
	}
	p := &s.places[0]
	delete(s.index, p.key)
	p.key, p.over = key, p.count
	p.count += weight
	p.name = n.AppendName(p.name[:0])
	s.index[key] = 0
	s.down(0)
}

// insert gives key a free place.
func (s *Sketch) insert(key bucket.Key, weight uint64, n Namer) {
	last := len(s.places)
	s.places = slices.Grow(s.places, 1)[:last+1]
	p := &s.places[last] // with the memory of an earlier name
	*p = place{key: key, count: weight, name: n.AppendName(p.name[:0])}
	s.index[key] = int32(last)
	for i := last; i > 0; {
		parent := (i - 1) / 2
		if s.places[parent].count <= s.places[i].count {
			return
		}
		s.swap(i, parent)
		i = parent
	}
}

// floor returns the most that a key without a place can have come.
func (s *Sketch) floor() uint64 {
	if len(s.places) < s.size {
		return 0
	}
	return s.places[0].count
}

func (s *Sketch) swap(i, j int) {
	s.places[i], s.places[j] = s.places[j], s.places[i]
	s.index[s.places[i].key], s.index[s.places[j].key] = int32(i), int32(j)
}

func (s *Sketch) down(i int) {
	for {
		least := i
		for _, child := range [2]int{2*i + 1, 2*i + 2} {
			if child < len(s.places) && s.places[child].count < s.places[least].count {
				least = child
			}
		}
		if least == i {
			return
		}
		s.swap(i, least)
		i = least
	}
}

const (
	shards = 16 // of the keys, each with a lock
	slots  = 4  // of the time
)

// Window counts the heaviest keys of the last three to four slots. It allocates with the first key, and is safe for concurrent use.
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

// slot has the keys of one stretch of time.
type slot struct {
	number int64
	*Sketch
}

// Entry is one key, which has come at most Count times, and at least Count less Error.
type Entry struct {
	Key          bucket.Key
	Name         []byte
	Count, Error uint64
}

// NewWindow returns a Window of slots of this length (more than 0), with about size places in each.
func NewWindow(slot time.Duration, size int) *Window {
	return &Window{slot: slot, size: max(1, size/shards)}
}

// Add counts weight for key, named by n, at now: the time since any fixed moment, 0 or more.
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
		s.places = s.places[:0]
		clear(s.index)
	}
	s.Add(key, weight, n)
	sh.mu.Unlock()
}

// Covers returns how much time up to now Top counts.
func (w *Window) Covers(now time.Duration) time.Duration {
	return min(now, now%w.slot+(slots-1)*w.slot)
}

// Top returns the n heaviest keys at now whose names are wanted, the heaviest first.
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

// entries adds up the slots that end with number.
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
			// A slot without a place for a key may have seen it as often as its floor. All floors are added below, so that of a
			// slot with a place is subtracted here. This may wrap below 0, and then wraps back.
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
