package share

import (
	"math"
	"slices"
	"sync"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/guard"
)

// Deferred are the charges for what a node has admitted without an owner and told none yet, key by key, the oldest first. When
// there are too many keys, the oldest is forgotten. Safe for concurrent use.
type Deferred struct {
	max     int
	changed func()
	mu      struct {
		sync.Mutex
		charges   map[bucket.Key]Charge
		order     []bucket.Key // of charges
		sent      []Charge     // taken, and not answered yet
		forgotten uint64
	}
}

// Charge is what is to be charged to the owner of one key.
type Charge struct {
	Key       bucket.Key
	Limits    *bucket.Limits
	Cost      int64
	Transient bool
	// Due is how much of Cost still counts, and is to be charged.
	Due int64
	at  int64 // of one that an earlier run has left: when it had this cost
}

func (o *Deferred) init(max int, changed func()) {
	o.max, o.changed = max, changed
	if changed == nil {
		o.changed = func() {}
	}
	o.mu.charges = make(map[bucket.Key]Charge)
}

// put adds c to what is to be charged for its key.
func (o *Deferred) put(c Charge) {
	o.mu.Lock()
	defer o.mu.Unlock()
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

// withdraw notes that an admission was taken back.
func (o *Deferred) withdraw(k bucket.Key, cost int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c, ok := o.mu.charges[k]; ok {
		c.Cost = max(0, c.Cost-cost)
		o.mu.charges[k] = c
		o.changed()
	}
}

// of returns what is to be charged for a key and was not taken.
func (o *Deferred) of(k bucket.Key) int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.mu.charges[k].Cost
}

// take returns the charges of the oldest keys, which are then sent.
func (o *Deferred) take(most int) []Charge {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(most, len(o.mu.order))
	list := make([]Charge, n)
	for i, k := range o.mu.order[:n] {
		list[i] = o.mu.charges[k]
		delete(o.mu.charges, k)
	}
	o.mu.order = o.mu.order[n:]
	if n > 0 {
		o.mu.sent = list
	}
	return list
}

// Answered says that each charge that was taken has its outcome.
func (o *Deferred) Answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.sent != nil {
		o.mu.sent = nil
		o.changed()
	}
}

// all returns all charges, those that were taken and are not answered among them.
func (o *Deferred) all(sent bool) (list []Charge) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if sent {
		list = slices.Clone(o.mu.sent)
	}
	for _, k := range o.mu.order {
		list = append(list, o.mu.charges[k])
	}
	return list
}

// Count returns of how many keys there are charges to be sent, and of how many these were forgotten.
func (o *Deferred) Count() (keys int, forgotten uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.mu.order), o.mu.forgotten
}

// Take returns the deferred charges of the oldest keys, as far as they still count, which are then sent: each is to have an Outcome,
// and when all have, Charges.Answered is to be called.
func (s *Shares) Take(now int64, voters, most int) []Charge {
	list := s.Charges.take(most)
	due := list[:0:0]
	for _, c := range list {
		if c.Due = c.Cost; guard.On(guard.Expiry) {
			c.Due = min(c.Cost, s.counts(now, c, voters))
		}
		if c.Due > 0 {
			due = append(due, c)
		}
	}
	return due
}

// Outcome is what has become of a deferred charge that was sent.
type Outcome int

const (
	Charged    Outcome = iota // by the owner
	NotCharged                // for sure
	AnswerLost                // it may have been charged, or not
)

// Ended notes the outcome of c. If no owner has charged it, it is deferred again. If the answer was lost it counts as charged: charging it twice
// would deny what was never admitted. It stays spent of this node's share until it expires, as no owner has acknowledged it.
func (s *Shares) Ended(now int64, c Charge, voters int, o Outcome) {
	switch {
	case o == Charged: // what the owner says is left of the key has that in it; what was admitted since, in another window perhaps, stays
		if back := min(c.Due, s.counts(now, c, voters)-s.Charges.of(c.Key)); back > 0 {
			s.admitted.Do(now, &bucket.Request{Key: c.Key, Limits: account(c.Limits, voters), Cost: back, Verb: bucket.Refund})
		}
	case o == NotCharged, !guard.On(guard.LostAnswer):
		s.Charges.put(c)
	}
}

// counts returns how much of what was admitted of c's key without its owner counts now: the most that any of
// its limits still counts.
func (s *Shares) counts(now int64, c Charge, voters int) int64 {
	share := account(c.Limits, voters)
	list, _ := s.admitted.Look(now, c.Key, share)
	return cost(share, list)
}

// account returns limits divided by the voters, as they count what was admitted without an owner. Where there are more voters than a limit
// admits, a share of it is nothing and counts nothing, but what was admitted while there were fewer still counts: so it divides by fewer.
func account(limits *bucket.Limits, voters int) *bucket.Limits {
	for i := range limits.Len() {
		for _, n := range [...]int64{limits.At(i).Count, limits.At(i).Burst} {
			if n > 0 {
				voters = int(min(int64(voters), n))
			}
		}
	}
	return limits.Share(voters)
}

// cost returns how much has been spent to make limits stand so: the most that any of them counts.
func cost(limits *bucket.Limits, list []bucket.Standing) (most int64) {
	for i, s := range list {
		unit := max(1, limits.At(i).Cost)
		most = max(most, (s.Spent+unit-1)/unit)
	}
	return most
}

// Table returns a table of so many shards in which each key has spent what is still to be charged for it, and how many keys there are.
func (s *Shares) Table(now int64, voters, shards int) (*bucket.Table, int, error) {
	table, err := bucket.NewTable(bucket.Config{Shards: shards})
	if err != nil {
		return nil, 0, err
	}
	keys := 0
	for _, c := range s.Charges.all(guard.On(guard.SentIsSaved)) {
		if cost := min(c.Cost, s.counts(now, c, voters)); cost > 0 {
			table.Do(now, &bucket.Request{Key: c.Key, Limits: c.Limits, Cost: cost, Verb: bucket.Charge})
			keys++
		}
	}
	return table, keys, nil
}

// FromTable returns the charges of one shard of such a table, as of a time.
func FromTable(at int64, table *bucket.Table, shard int) (list []Charge) {
	table.Recent(at, shard, math.MaxInt, func(key bucket.Key, limits *bucket.Limits, standings []bucket.Standing) {
		list = append(list, Charge{Key: key, Limits: limits, Cost: cost(limits, standings), at: at})
	})
	return list
}

// Restore takes over what an earlier run has admitted without owners, as one of so many voters: it is charged to them, and counts against
// shares until then.
func (s *Shares) Restore(list []Charge, voters int) {
	for _, c := range list {
		s.admitted.Do(c.at, &bucket.Request{Key: c.Key, Limits: account(c.Limits, voters), Cost: c.Cost, Verb: bucket.Charge})
		s.Charges.put(c)
	}
}
