package lease

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// Demands is the owner's side: how much each leaseholder wants of which key. Each gets of what is left the fraction that
// its demand has in the total. Nodes of one cluster ask about as often, so with equal demands everything is used and none starves.
// A region asks less often: while there is one, a demand counts for the time since the last request. Safe for concurrent use.
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
	boot     string
	reserve  int64
	rate, at int64 // in units of cost a second, at a time
	until    int64 // the last time at which it counts
	far      bool  // a region
}

// maxGranted bounds the keys of a shard whose demands are known, maxLeaseholders the leaseholders of one. Further ones
// get what they ask for while there is any.
const (
	maxGranted      = 256
	maxLeaseholders = 256
)

// NewDemands returns the demands on the process with the boot id self.
func NewDemands(self string) *Demands {
	d := &Demands{self: self}
	for i := range d.shards {
		d.shards[i].mu.of = make(map[bucket.Key][]demand)
	}
	return d
}

func (d *Demands) shard(k bucket.Key) *demandShard { return &d.shards[k.Lo%uint64(len(d.shards))] }

// farRemembered is the longest that a demand counts whose leases are longer than MaxLife, those of a region, which is slower to ask.
const farRemembered = int64(time.Second)

// Note records that boot wants rate units a second of k at now, in leases of so long, as long as reserve stay free, and returns which
// part of the whole demand that is.
func (d *Demands) Note(now int64, k bucket.Key, boot string, reserve, rate int64, life time.Duration) (part, whole int64) {
	part = min(max(rate, 1), maxUnits)
	s := d.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	list, known := s.mu.of[k]
	if !known && len(s.mu.of) >= maxGranted {
		return part, part
	}
	far, since := life > MaxLife, now-remembered // a first request
	if far {
		since = now - farRemembered
	}
	list = slices.DeleteFunc(list, func(x demand) bool {
		own := x.boot == boot && x.reserve == reserve
		if own && !x.past(now) {
			since = x.at
		}
		return own || x.past(now)
	})
	others := list
	if len(list) < maxLeaseholders {
		list = append(list, demand{boot, reserve, part, now, now + max(remembered, min(int64(life), farRemembered)), far})
	}
	if !known {
		d.keys.Add(1)
	}
	s.mu.of[k] = list
	for _, x := range others {
		whole += x.rate
		far = far || x.far
	}
	if whole += part; !far || len(others) == 0 {
		return part, whole
	}
	part *= waited(since, now)
	whole = part
	for _, x := range others {
		whole += x.rate * waited(x.at, now)
	}
	return part, whole
}

// Across returns how long before the end of a window a lease for so long should go across it. A region would have no units for a round trip
// there otherwise. Short windows would lose too much: what is spent before the end counts after it, until the owner hears of it.
func Across(limits *bucket.Limits, life time.Duration) time.Duration {
	if life <= MaxLife || limits.LongestLease() < 5*life {
		return 0
	}
	return life / 4
}

// waited returns the time since a request, in tenths of a millisecond.
func waited(since, now int64) int64 { return min(max(now-since, 0), farRemembered)/1e5 + 1 }

// Most returns which leaseholder wants most of k, how many units a second, and how many all want. boot is "" if none wants any.
func (d *Demands) Most(now int64, k bucket.Key) (boot string, rate, whole int64) {
	s := d.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, x := range s.mu.of[k] {
		if x.past(now) {
			continue
		}
		if whole += x.rate; x.rate > rate {
			boot, rate = x.boot, x.rate
		}
	}
	return boot, rate, whole
}

func (x *demand) past(now int64) bool { return now > x.until }

// Keys returns how many keys have leaseholders.
func (d *Demands) Keys() int { return int(d.keys.Load()) }

// Live reports whether another process has asked for a lease of k so recently that some may still be spent at now. Then
// the owner's own checks must lease as well, or they would take each unit as soon as it is free.
func (d *Demands) Live(now int64, k bucket.Key) bool { return d.any(now, k, false) }

// Far is Live for another region. Then the owner must lease for nodes of its own region too that ask for single checks.
func (d *Demands) Far(now int64, k bucket.Key) bool { return d.any(now, k, true) }

func (d *Demands) any(now int64, k bucket.Key, far bool) bool {
	if d.Keys() == 0 {
		return false
	}
	s := d.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.mu.of[k], func(x demand) bool { return x.boot != d.self && !x.past(now) && (x.far || !far) })
}

// Sweep drops keys whose demands are past.
func (d *Demands) Sweep(now int64) {
	for i := range d.shards {
		s := &d.shards[i]
		s.mu.Lock()
		before := len(s.mu.of)
		maps.DeleteFunc(s.mu.of, func(_ bucket.Key, list []demand) bool {
			return !slices.ContainsFunc(list, func(x demand) bool { return !x.past(now) })
		})
		d.keys.Add(int64(len(s.mu.of) - before))
		s.mu.Unlock()
	}
}

// Denials is a cache of what owners have just denied. It has a fixed number of slots: a key takes over the slot of
// another, which is then asked for again. Safe for concurrent use; the zero value is ready, and allocates about 1.5 MB
// with the first denial.
type Denials struct{ shards [denialShards]denialShard }

const (
	denialShards = 64
	shardDenials = 128
)

type denialShard struct {
	mu struct {
		sync.Mutex
		denials   []denial // nil, or shardDenials of them
		forgotten int64    // time of the last Forget: answers to requests sent before it are not remembered
	}
}

// denial is an owner's answer to a request.
type denial struct {
	request bucket.Request
	// sent is when the request was sent, heard when the answer arrived, until when it is good.
	sent, heard, until int64
	decision           bucket.Decision
	owner              string
}

func (d *Denials) shard(k bucket.Key) *denialShard { return &d.shards[k.Lo%denialShards] }

// slotLocked returns k's slot, which may be another key's. The shard was chosen by the low bits.
func (s *denialShard) slotLocked(k bucket.Key) *denial {
	return &s.mu.denials[k.Lo/denialShards%shardDenials]
}

// findLocked returns what is remembered of k, nil if nothing.
func (s *denialShard) findLocked(k bucket.Key) *denial {
	if s.mu.denials == nil {
		return nil
	}
	if x := s.slotLocked(k); x.request.Key == k {
		return x
	}
	return nil
}

// Remember records that owner has denied r by decision. The request was sent at sent, the answer arrived at now. It is good
// for so long after sent, whatever was spent since, unless the key was forgotten meanwhile.
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
	*s.slotLocked(r.Key) = denial{*r, sent, now, until, *decision, owner}
}

// Answer answers r at now if the remembered denial means that the owner would deny r: under the same limits, a cost that
// is no less. age is the time since the owner was asked, also where its denial no longer holds; 0 where none is remembered.
// Times in the decision count from now.
func (d *Denials) Answer(now int64, r *bucket.Request) (decision bucket.Decision, owner string, age time.Duration, ok bool) {
	s := d.shard(r.Key)
	s.mu.Lock()
	defer s.mu.Unlock()
	x := s.findLocked(r.Key)
	if x == nil {
		return decision, "", 0, false
	}
	age = time.Duration(now - x.sent)
	if q := &x.request; q.Limits != r.Limits || now >= x.until || r.Cost < q.Cost || r.Reserve != q.Reserve {
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

// Forget drops what is known of key at now: the limit may have more room than its owner has said.
func (d *Denials) Forget(now int64, key bucket.Key) {
	s := d.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.mu.forgotten = now
	if x := s.findLocked(key); x != nil {
		*x = denial{}
	}
}

// Left returns for how much longer after now key is denied from the cache, 0 if it is not.
func (d *Denials) Left(now int64, key bucket.Key) time.Duration {
	s := d.shard(key)
	s.mu.Lock()
	defer s.mu.Unlock()
	if x := s.findLocked(key); x != nil {
		return time.Duration(max(0, x.until-now))
	}
	return 0
}
