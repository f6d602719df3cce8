package lease

import (
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-project/sluice/bucket"
)

// Demands is the holder's side: who wants how much of which key, so that each borrower gets of what is left
// the part that its demand has in all demand. All ask about as often, so with equal demands everything is used and
// nobody starves. Safe for concurrent use.
type Demands struct {
	self   string // boot id of the holder's own process
	keys   atomic.Int64
	shards [16]demandShard
}

type demandShard struct {
	mu struct {
		sync.Mutex
		of map[bucket.Key][]demand
	}
}

// demand is what one process wants of a key, leaving reserve units free.
type demand struct {
	boot    string
	reserve int64
	// rate is in units of cost a second.
	rate, at int64
}

// maxLent bounds the keys of a shard whose demands are known, and maxBorrowers who borrows of one. What is above
// gets what it asks for while there is any.
const (
	maxLent      = 256
	maxBorrowers = 256
)

// NewDemands returns the demands on a process.
func NewDemands(self string) *Demands { return &Demands{self: self} }

func (d *Demands) shard(k bucket.Key) *demandShard { return &d.shards[k.Lo%uint64(len(d.shards))] }

// Note notes that boot wants rate units a second of k at now, as long as reserve stay free, and says which part of
// the whole demand that is.
func (d *Demands) Note(now int64, k bucket.Key, boot string, reserve, rate int64) (part, whole int64) {
	part = min(max(rate, 1), 1<<40)
	s := d.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	list, known := s.mu.of[k]
	if !known && len(s.mu.of) >= maxLent {
		return part, part
	}
	list = slices.DeleteFunc(list, func(x demand) bool { return x.boot == boot && x.reserve == reserve || x.past(now) })
	if len(list) < maxBorrowers {
		list = append(list, demand{boot, reserve, part, now})
	}
	if !known {
		if s.mu.of == nil {
			s.mu.of = make(map[bucket.Key][]demand)
		}
		d.keys.Add(1)
	}
	s.mu.of[k] = list
	for _, x := range list {
		whole += x.rate
	}
	return part, max(part, whole)
}

func (x *demand) past(now int64) bool { return now-x.at > int64(remembered) }

// Keys returns how many keys are known to be borrowed of.
func (d *Demands) Keys() int { return int(d.keys.Load()) }

// Any reports whether any key is known to be borrowed of.
func (d *Demands) Any() bool { return d.keys.Load() > 0 }

// Live reports whether others have asked for a lease of k so lately that some may still be spent at now. Then the
// holder's own checks borrow as well: else they would take each unit as soon as there is one.
func (d *Demands) Live(now int64, k bucket.Key) bool {
	if !d.Any() {
		return false
	}
	s := d.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.mu.of[k] {
		if x := &s.mu.of[k][i]; x.boot != d.self && !x.past(now) {
			return true
		}
	}
	return false
}

// Sweep forgets what nobody asks for any more.
func (d *Demands) Sweep(now int64) {
	if !d.Any() {
		return
	}
	for i := range d.shards {
		s := &d.shards[i]
		s.mu.Lock()
		for k, list := range s.mu.of {
			if !slices.ContainsFunc(list, func(x demand) bool { return !x.past(now) }) {
				delete(s.mu.of, k)
				d.keys.Add(-1)
			}
		}
		s.mu.Unlock()
	}
}
