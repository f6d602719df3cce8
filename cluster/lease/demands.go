package lease

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// Demands is the owner's side: who wants how much of which key, so that each leaseholder gets of what is left
// the part that its demand has in all demand. All ask about as often, so with equal demands everything is used and
// nobody starves. Safe for concurrent use.
type Demands struct {
	self   string // boot id of the owner's own process
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

// maxGranted bounds the keys of a shard whose demands are known, and maxLeaseholders who leases of one. What is above
// gets what it asks for while there is any.
const (
	maxGranted      = 256
	maxLeaseholders = 256
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
	if !known && len(s.mu.of) >= maxGranted {
		return part, part
	}
	list = slices.DeleteFunc(list, func(x demand) bool { return x.boot == boot && x.reserve == reserve || x.past(now) })
	if len(list) < maxLeaseholders {
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

// Keys returns how many keys are known to be leased of.
func (d *Demands) Keys() int { return int(d.keys.Load()) }

// Any reports whether any key is known to be leased of.
func (d *Demands) Any() bool { return d.keys.Load() > 0 }

// Live reports whether others have asked for a lease of k so lately that some may still be spent at now. Then the
// owner's own checks lease as well: else they would take each unit as soon as there is one.
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

// Denials remembers, for a moment, what owners have denied. It is a fixed number of places: a key that
// finds its place taken takes it over, and the other is asked for again. Safe for concurrent use; the
// zero value is ready, and takes its memory, about 1.5 MB, with the first denial.
type Denials struct{ shards [denialShards]denialShard }

const (
	denialShards = 64
	shardDenials = 128
)

type denialShard struct {
	mu struct {
		sync.Mutex
		denials []denial // nil, or shardDenials of them
		// forgotten is when something was last forgotten here. What was asked before tells nothing.
		forgotten int64
	}
}

// denial is what an owner has said of a request.
type denial struct {
	request bucket.Request
	// sent is when it was asked, heard when the answer came, until when the answer is good.
	sent, heard, until int64
	decision           bucket.Decision
	owner              string
}

func (d *Denials) shard(k bucket.Key) *denialShard { return &d.shards[k.Lo%denialShards] }

// at returns k's place. The shard was chosen by the low bits.
func (s *denialShard) at(k bucket.Key) *denial {
	return &s.mu.denials[k.Lo/denialShards%shardDenials]
}

// Remember notes that owner has denied r by decision, which it was asked at sent, and which was heard of at
// now. It is good for so long after the asking, whatever was spent since; not if the
// key was forgotten meanwhile.
func (d *Denials) Remember(sent, now int64, r *bucket.Request, decision *bucket.Decision, owner string, good time.Duration) {
	until := sent + int64(good)
	if until <= now {
		return
	}
	s := d.shard(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.denials == nil {
		s.mu.denials = make([]denial, shardDenials)
	} else if sent <= s.mu.forgotten {
		return
	}
	*s.at(r.Key) = denial{*r, sent, now, until, *decision, owner}
}

// Answer answers r at now if what its owner has denied means that it would deny r: under
// the same limits, a cost that is no less. age is how long ago the owner was asked, also where its denial of the key says nothing any
// more; 0 where none is remembered. Times in the decision are counted from now.
func (d *Denials) Answer(now int64, r *bucket.Request) (decision bucket.Decision, owner string, age time.Duration, ok bool) {
	s := d.shard(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.denials == nil {
		return decision, "", 0, false
	}
	x := s.at(r.Key)
	q := &x.request
	if q.Key != r.Key {
		return decision, "", 0, false
	}
	age = time.Duration(now - x.sent)
	if q.Limits != r.Limits || now >= x.until || r.Cost < q.Cost || r.Reserve != q.Reserve {
		return decision, "", age, false
	}
	decision = x.decision
	passed := time.Duration(now - x.heard)
	if decision.RetryAfter != bucket.Never {
		decision.RetryAfter = max(0, decision.RetryAfter-passed)
	}
	decision.ResetAfter = max(0, decision.ResetAfter-passed)
	return decision, x.owner, age, true
}

// Forget drops what is known of key at now: there may be more room than its owner has said.
func (d *Denials) Forget(now int64, key bucket.Key) {
	s := d.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.forgotten = now
	if s.mu.denials != nil {
		if x := s.at(key); x.request.Key == key {
			*x = denial{}
		}
	}
}

// Left returns for how much longer after now key is denied from memory, 0 if it is not.
func (d *Denials) Left(now int64, key bucket.Key) time.Duration {
	s := d.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.denials == nil {
		return 0
	}
	if x := s.at(key); x.request.Key == key {
		return time.Duration(max(0, x.until-now))
	}
	return 0
}
