package share

import (
	"cmp"
	"math"
	"slices"
	"sync"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
)

// Deferred is a queue of charges for what a node has admitted without an owner, by key, the oldest first. When there are too
// many keys, the oldest is forgotten. Safe for concurrent use.
type Deferred struct {
	max     int
	changed func()
	mu      struct {
		sync.Mutex
		charges   map[bucket.Key]Charge
		order     []bucket.Key // of charges
		sent      []Charge     // taken, without an answer yet
		again     []Charge     // whose answer was lost, to be sent with the same Once
		forgotten uint64
	}
}

// Charge is a charge to the owner of one key.
type Charge struct {
	Key          bucket.Key
	Limits       *bucket.Limits
	Cost         int64
	Unreplicated bool
	Due          int64 // how much of Cost still counts, and must be charged
	// Once, if not 0, names the charge, so that it may be sent again after an answer was lost, first at lost.
	Once uint64
	lost int64
	at   int64 // in a charge of an earlier run: when it had this cost
}

func (o *Deferred) init(max int, changed func()) {
	o.max, o.changed = max, changed
	if changed == nil {
		o.changed = func() {}
	}
	o.mu.charges = make(map[bucket.Key]Charge)
}

// put adds c to the charge of its key.
func (o *Deferred) put(c Charge) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c.Once != 0 {
		o.mu.again = append(o.mu.again, c)
		o.changed()
		return
	}
	before, known := o.mu.charges[c.Key]
	if !known {
		if len(o.mu.order) >= o.max {
			delete(o.mu.charges, o.mu.order[0])
			o.mu.order = o.mu.order[1:]
			o.mu.forgotten++
		}
		o.mu.order = append(o.mu.order, c.Key)
	}
	c.Cost += min(before.Cost, math.MaxInt64-c.Cost)
	o.mu.charges[c.Key] = c
	o.changed()
}

// withdraw removes an admission that was taken back.
func (o *Deferred) withdraw(k bucket.Key, cost int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c, ok := o.mu.charges[k]; ok {
		c.Cost = max(0, c.Cost-cost)
		o.mu.charges[k] = c
		o.changed()
	}
}

// of returns the charge of a key that was not taken, or whose answer was lost.
func (o *Deferred) of(k bucket.Key) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	cost := o.mu.charges[k].Cost
	for _, c := range o.mu.again {
		if c.Key == k {
			cost += c.Cost
		}
	}
	return cost
}

// take returns the charges of the oldest keys, which must be sent then.
func (o *Deferred) take(most int) []Charge {
	o.mu.Lock()
	defer o.mu.Unlock()
	again := min(most/2, len(o.mu.again))
	list := slices.Clone(o.mu.again[:again])
	o.mu.again = slices.Delete(o.mu.again, 0, again)
	n := max(0, min(most-len(list), len(o.mu.order)))
	for _, k := range o.mu.order[:n] {
		list = append(list, o.mu.charges[k])
		delete(o.mu.charges, k)
	}
	o.mu.order = o.mu.order[n:]
	if len(list) > 0 {
		o.mu.sent = list
	}
	return list
}

// Answered must be called when each charge that was taken has its outcome.
func (o *Deferred) Answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.sent != nil {
		o.mu.sent = nil
		o.changed()
	}
}

// all returns all charges, if sent also those that were taken and have no answer yet. There may be
// several of a key.
func (o *Deferred) all(sent bool) (list []Charge) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if sent {
		list = slices.Clone(o.mu.sent)
	}
	list = append(list, o.mu.again...)
	for _, k := range o.mu.order {
		list = append(list, o.mu.charges[k])
	}
	return list
}

// Count returns how many keys have charges to be sent, and of how many keys they were forgotten.
func (o *Deferred) Count() (keys int, forgotten uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.mu.order) + len(o.mu.again), o.mu.forgotten
}

// Take returns the deferred charges of the oldest keys, as far as they still count. They must be sent; Ended must be called for
// each, and then Charges.Answered.
func (s *Shares) Take(now int64, parts Parts, most int) []Charge {
	list := s.Charges.take(most)
	due := list[:0:0]
	for _, c := range list {
		if c.Due = c.Cost; guard.On(guard.Expiry) {
			c.Due = min(c.Cost, s.counts(now, c, parts))
		}
		if c.Due > 0 {
			due = append(due, c)
		}
	}
	return due
}

// Outcome is the outcome of a deferred charge that was sent.
type Outcome int

const (
	Charged    Outcome = iota // by the owner
	NotCharged                // certainly
	AnswerLost                // perhaps charged
)

// Ended records the outcome of c. If no owner has charged it, it is deferred again. If the answer was lost it counts as charged:
// a second charge would deny what was never admitted, unless it has a Once. It stays spent of this node's share until it expires.
func (s *Shares) Ended(now int64, c Charge, parts Parts, o Outcome) {
	switch {
	case o == Charged: // the owner's answers include it; later admissions, perhaps in another window, stay
		if back := min(c.Due, s.counts(now, c, parts)-s.Charges.of(c.Key)); back > 0 {
			s.admitted.Do(now, &bucket.Request{Key: c.Key, Limits: account(c.Limits, parts), Cost: back, Verb: bucket.Refund})
		}
	case c.Once != 0 && (o == AnswerLost || c.lost != 0) && now-cmp.Or(c.lost, now) < int64(bucket.OnceFor/2):
		c.lost = cmp.Or(c.lost, now)
		s.Charges.put(c)
	case o == NotCharged && c.lost == 0, !guard.On(guard.LostAnswer):
		c.Once = 0
		s.Charges.put(c)
	}
}

// counts returns how much of what was admitted of c's key without its owner counts now: the most of all limits.
func (s *Shares) counts(now int64, c Charge, parts Parts) int64 {
	share := account(c.Limits, parts)
	list, _ := s.admitted.Look(now, c.Key, share)
	return cost(share, list)
}

// account returns limits divided by the parts, as they count what was admitted without an owner. It divides by at most the units
// of a limit: a share of nothing would not count what was admitted while there were fewer voters. It counts more than a share has,
// for the same reason.
func account(limits *bucket.Limits, parts Parts) *bucket.Limits {
	n := parts.of(limits)
	for i := range limits.Len() {
		for _, units := range [...]int64{limits.At(i).Count, limits.At(i).Burst} {
			if units > 0 {
				n = int(min(int64(n), units))
			}
		}
	}
	return limits.Share(n).Meter()
}

// cost returns how much has been spent of limits in the state list: the most that any of them counts.
func cost(limits *bucket.Limits, list []bucket.Standing) (most int64) {
	for i, s := range list {
		unit := max(1, limits.At(i).Cost)
		most = max(most, (s.Spent+unit-1)/unit)
	}
	return most
}

// Table returns a table with that many shards in which each key has spent its deferred charge, and how many keys there are.
func (s *Shares) Table(now int64, parts Parts, shards int) (*bucket.Table, int, error) {
	table, err := bucket.NewTable(bucket.Config{Shards: shards})
	if err != nil {
		return nil, 0, err
	}
	saved := make(map[bucket.Key]int64)
	for _, c := range s.Charges.all(guard.On(guard.SentIsSaved)) {
		if cost := min(c.Cost, s.counts(now, c, parts)-saved[c.Key]); cost > 0 {
			table.Do(now, &bucket.Request{Key: c.Key, Limits: c.Limits, Cost: cost, Verb: bucket.Charge})
			saved[c.Key] += cost
		}
	}
	return table, len(saved), nil
}

// FromTable returns the charges of one shard of a table made by Table, as of a time.
func FromTable(at int64, table *bucket.Table, shard int) (list []Charge) {
	table.Recent(at, shard, math.MaxInt, func(key bucket.Key, limits *bucket.Limits, standings []bucket.Standing) {
		list = append(list, Charge{Key: key, Limits: limits, Cost: cost(limits, standings), at: at})
	})
	return list
}

// Restore takes over the deferred charges of an earlier run with these parts. They count against shares until they are charged.
func (s *Shares) Restore(list []Charge, parts Parts) {
	for _, c := range list {
		s.admitted.Do(c.at, &bucket.Request{Key: c.Key, Limits: account(c.Limits, parts), Cost: c.Cost, Verb: bucket.Charge})
		s.Charges.put(c)
	}
}
