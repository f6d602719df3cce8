// Package eventual decides checks of rules with consistency eventual on the node that is asked, and keeps the
// account of them at the key's owner. It decides what a node may admit before it has heard of the owner
// again, and what an owner makes of reports that are lost, doubled, late or in another order. Time is a
// parameter, and it does no I/O and has no goroutines: cluster sends and delivers the messages.
//
// A Book is the asked node's half, a Owner the owner's. What has been counted already is in the owner's
// table (bucket.Table.Counts) and goes where the partition goes.
package eventual

import (
	"math"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// Book is what one node knows of keys that are decided in eventual mode, and what it has admitted of them. Not
// safe for concurrent use.
type Book struct {
	max     int
	entries map[bucket.Key]*entry
	full    uint64
}

// NewBook returns a Book of at most max keys. What is asked for beyond them is for the owner to decide.
func NewBook(max int) *Book { return &Book{max: max, entries: make(map[bucket.Key]*entry)} }

// entry is one key.
type entry struct {
	limits        *bucket.Limits
	transient     bool
	asked         int64 // when it was last
	pendingGrants bool  // it was asked for since the last report

	// born is when this was made: answers to what was told before are none of its own.
	born int64
	// sum is all that was admitted here in the window that ends at ends, by the owner's clock, which is
	// ahead of this one's. ends is 0 before the first answer.
	sum         int64
	ends, ahead int64
	rolled      int64 // when this window began here

	// What the newest answer says: told of sum was counted, left of the limit remained, to be shared among
	// reporters. sum may grow up to most.
	told, left, most int64
	reporters        int64
	// asOf is when the report was sent that it answers, waiting when the first one after it was, both never
	// if none; sent is when the last one was.
	asOf, waiting, sent int64
	// trip is how long that answer took.
	trip int64
}

// Decide decides r, which eventual mode Serves, if this node knows enough of the key; else the owner must be asked.
// age is how old the knowledge is.
func (b *Book) Decide(now int64, r *bucket.Request) (d bucket.Decision, age time.Duration, ok bool) {
	e := b.entry(now, r)
	if e == nil {
		return d, 0, false
	}
	e.asked, e.pendingGrants, e.transient = now, true, r.Transient
	if !e.knows(now) {
		return d, 0, false
	}
	at := now + e.ahead
	if at >= e.ends && !e.roll(now, at) {
		return d, 0, false
	}
	if ok = e.decide(at, r, &d); ok {
		age = time.Duration(max(0, now-e.asOf))
	}
	return d, age, ok
}

// entry returns r's entry, made anew if there is none or its limits are others; nil if there is no room.
func (b *Book) entry(now int64, r *bucket.Request) *entry {
	e := b.entries[r.Key]
	switch {
	case e == nil && len(b.entries) >= b.max:
		b.full++
		return nil
	case e == nil, e.limits != r.Limits && !e.limits.Equal(r.Limits):
		e = &entry{asOf: never, waiting: never, sent: never, rolled: now, born: now}
		b.entries[r.Key] = e
	}
	e.limits = r.Limits
	return e
}

// knows reports whether what the owner has said is still good: it is as new as it can be for a key that is asked
// for all the time, or the owner no longer answers, and it is the last that can be had. For a key
// that nobody has asked for since, the owner is asked first.
func (e *entry) knows(now int64) bool {
	patience := e.trip + 2*int64(Period)
	return e.ends != 0 &&
		(now-e.asOf <= patience+int64(Period) || e.waiting != never && now-e.waiting >= patience)
}

// roll begins the window of at, unless what is known is too old for it: this node then no longer knows who
// else shares the key.
func (e *entry) roll(now, at int64) bool {
	e.sum, e.told = 0, 0
	if now-e.asOf > int64(Fresh) {
		e.ends = 0
		return false
	}
	e.ends, e.rolled = e.limits.WindowEnd(at), now
	e.left = e.limits.At(0).Count
	e.most = e.left / e.reporters // rounded down, because all do so
	return true
}

// decide decides r at the owner's time at, within the window. It leaves to the owner what costs more than a share.
func (e *entry) decide(at int64, r *bucket.Request, d *bucket.Decision) bool {
	verb, cost := r.Verb, r.Cost
	if verb == bucket.Check && cost <= 0 {
		verb = bucket.Read
	}
	if verb != bucket.Charge {
		cost = max(1, cost)
	}
	count := e.limits.At(0).Count
	d.Limit = count
	d.ResetAfter = time.Duration(e.ends - at)
	// What may be left of the whole, with what is spent here and not yet counted; others spend too.
	whole := max(0, e.left-max(0, e.sum-e.told))
	switch {
	case verb == bucket.Charge:
		e.spend(cost)
		d.Allowed, d.Remaining = true, max(0, whole-cost)
	case cost <= e.most-e.sum:
		d.Allowed = true
		if verb == bucket.Check {
			e.spend(cost)
			whole -= cost
		}
		d.Remaining = max(0, whole)
	case cost > e.most-e.told && cost <= e.left:
		return false
	default:
		d.Remaining = max(0, min(e.most-e.sum, cost-1))
		d.RetryAfter = e.retry(cost, count, whole, d.ResetAfter)
	}
	if d.Remaining == count {
		d.ResetAfter = 0
	}
	return true
}

// spend adds cost to the sum.
func (e *entry) spend(cost int64) { e.sum += min(max(0, cost), MaxSum-e.sum) }

// retry returns when a cost that was denied may be asked for again.
func (e *entry) retry(cost, count, whole int64, ends time.Duration) time.Duration {
	switch {
	case cost > count:
		return bucket.Never
	case cost <= whole:
		return min(Period, ends) // the next answer may bring a share of what others have left
	}
	return ends
}

const (
	// Period is how often what was asked for is reported.
	Period = 50 * time.Millisecond
	// sameWindow is how far apart the end of one window may seem to be by the clocks of two owners, of which the second has
	// got it from the first. It is less than half of the shortest window.
	sameWindow = 400 * time.Millisecond
	// Fresh is how old what a node knows of a key may be for it to begin another window by itself.
	Fresh = time.Second
	// Recent is how long a process counts as one of those who share a key, after its last report.
	Recent = time.Second
	// Idle is how long a key that nobody asks for is remembered.
	Idle = 10 * time.Second
	// LeastPeriod is the shortest window that can be decided so: in a shorter one too much would be
	// admitted between two reports.
	LeastPeriod = time.Second
)

// MaxSum is the highest sum that is told of.
const MaxSum = 1 << 61

// never is before all times.
const never = math.MinInt64

// Serves reports whether r can be decided in eventual mode, if its rule says so.
func Serves(r *bucket.Request) bool {
	switch r.Verb {
	case bucket.Check, bucket.Read, bucket.Charge:
	default: // what gives back is for the owner: sums only grow
		return false
	}
	return !r.Drain && r.Reserve == 0 && r.Limits.Windowed()
}
