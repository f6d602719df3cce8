// Package heavy finds the keys that come most often in a stream, in memory that does not grow with the
// number of keys. Sketch is the algorithm, Window keeps one for each part of the last minute or
// so. Time is a parameter; no goroutine is started. What a key is called, and which of the stream is shown
// to it, is for the caller to say.
package heavy

import (
	"bytes"
	"cmp"
	"slices"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// Sketch counts the heaviest keys of a stream in a fixed number of places: Space-Saving (Metwally,
// Agrawal, El Abbadi, "Efficient computation of frequent and top-k elements in data streams", ICDT 2005). A
// key that finds no place takes that of the lightest, and inherits its count as an error. So of a stream of
// total weight W, in m places:
//
//   - a key with a place has come at most its count, and at least its count less its error,
//   - no error is more than W ÷ m, and every key that weighs more than that has a place.
//
// It is not safe for concurrent use. Once its places are filled, it allocates only for longer names.
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

// Namer appends the name of a key. It is asked for it only when the key gets a place.
type Namer interface{ AppendName(dst []byte) []byte }

// NewSketch returns an empty sketch of size places, at least 1.
func NewSketch(size int) *Sketch {
	return &Sketch{size: max(1, size), index: make(map[bucket.Key]int32, size)}
}

// Add counts weight for key, which n names.
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

// insert gives key a place that is free.
func (s *Sketch) insert(key bucket.Key, weight uint64, n Namer) {
	last := len(s.places)
	if last < cap(s.places) {
		s.places = s.places[:last+1] // with the memory of an earlier name
	} else {
		s.places = append(s.places, place{})
	}
	p := &s.places[last]
	*p = place{key: key, count: weight, name: n.AppendName(p.name[:0])}
	s.index[key] = int32(last)
	s.up(last)
}

// floor returns the most that a key without a place can have come.
func (s *Sketch) floor() uint64 {
	if len(s.places) < s.size {
		return 0
	}
	return s.places[0].count
}

// clear empties s and keeps its memory.
func (s *Sketch) clear() {
	s.places = s.places[:0]
	clear(s.index)
}

func (s *Sketch) swap(i, j int) {
	s.places[i], s.places[j] = s.places[j], s.places[i]
	s.index[s.places[i].key], s.index[s.places[j].key] = int32(i), int32(j)
}

func (s *Sketch) up(i int) {
	for i > 0 {
		parent := (i - 1) / 2
		if s.places[parent].count <= s.places[i].count {
			return
		}
		s.swap(i, parent)
		i = parent
	}
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
