// Package eventual decides checks of rules with consistency eventual on the node that receives them, and keeps the account
// of them at the key's owner. It decides how much a node may admit before it hears of the owner again, and how an owner
// counts reports that are lost, duplicated, late or reordered. Time is a parameter, and it does no I/O and has no
// goroutines: cluster sends and delivers the messages.
//
// A Book is the receiving node's half, an Owner the owner's. Sums that were counted are in the owner's table
// (bucket.Table.Counts) and move with the partition.
package eventual

import (
	"math"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/message"
)

// Book is what one node knows of keys that are decided in eventual mode, and what it has admitted of them. Not safe for
// concurrent use.
type Book struct {
	max     int
	entries map[bucket.Key]*entry
	full    uint64
}

// NewBook returns a Book of at most max keys. Checks of further keys are for the owner to decide.
func NewBook(max int) *Book { return &Book{max: max, entries: make(map[bucket.Key]*entry)} }

// entry is one key.
type entry struct {
	limits       *bucket.Limits
	unreplicated bool
	asked        int64 // time of the last check
	changed      bool  // a check came since the last report

	born        int64 // when this entry was made: answers to earlier reports are not for it
	sum         int64 // all that was admitted here in the current window
	ends, ahead int64 // the window ends at ends, 0 before the first answer, by the owner's clock, which is ahead of this one's
	rolled      int64 // when this window began here

	// The newest answer: told of sum was counted, left of the limit remained, to be shared among reporters. sum may grow
	// up to most.
	told, left, most, reporters int64
	// asOf is when the report was sent that it answers, waiting when the first one after it was, both never if none; sent
	// is when the last one was, trip how long that answer took.
	asOf, waiting, sent, trip int64
}

// Decide decides r, which eventual mode Serves, if this node knows enough of the key; else the owner must decide. age is the
// age of that knowledge.
func (b *Book) Decide(now int64, r *bucket.Request) (d bucket.Decision, age time.Duration, ok bool) {
	e := b.entry(now, r)
	if e == nil {
		return d, 0, false
	}
	e.asked, e.changed, e.unreplicated = now, true, r.Unreplicated
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

// entry returns r's entry, a new one if there is none or its limits have changed; nil if there is no room.
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

// knows reports whether the owner's last answer is still good: it is as new as it can be for a key in constant use, or the
// owner no longer answers, and there is no newer one. After a time without checks of the key, the owner is asked first.
func (e *entry) knows(now int64) bool {
	patience := e.trip + 2*int64(Period)
	return e.ends != 0 &&
		(now-e.asOf <= patience+int64(Period) || e.waiting != never && now-e.waiting >= patience)
}

// roll begins the window of at, unless the last answer is too old to tell which other nodes share the key.
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

// decide decides r at the owner's time at, within the window. It leaves a cost above a share to the owner.
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
	// What may be left of the limit, less what is spent here and not yet counted; others spend too.
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

// Len returns how many keys are in the book. While there is one, Report has something to do.
func (b *Book) Len() int { return len(b.entries) }

// Report calls add with each line to be sent to an owner now, and drops idle keys. It must be called every Period while
// there are keys.
func (b *Book) Report(now int64, add func(message.Line)) {
	for key, e := range b.entries {
		if e.over(now) {
			delete(b.entries, key)
			continue
		}
		if !e.changed && e.sum == e.told && e.waiting == never {
			continue
		}
		e.changed, e.sent = false, now
		if e.waiting == never {
			e.waiting = now
		}
		add(message.Line{Key: key, Limits: e.limits, Ends: e.ends, Sum: e.sum, Unreplicated: e.unreplicated})
	}
}

// over reports whether e can be dropped: it is idle, and all is counted or its window is over.
func (e *entry) over(now int64) bool {
	return now-e.asked >= int64(Idle) && (e.sum == e.told || now+e.ahead >= e.ends)
}

// Learn takes the owner's answer for one key to the report that was sent at sent; clock is the owner's. Answers may come
// twice and in any order.
func (b *Book) Learn(now, sent, clock int64, s *message.Standing) {
	e := b.entries[s.Key]
	if e == nil || sent < e.born || sent <= e.asOf || sent > now || s.Reporters < 1 {
		return
	}
	ended := e.ends - e.ahead
	// The owner answered at some time between sent and now.
	e.ahead = clock - (sent + (now-sent)/2)
	switch {
	case s.Ends == e.ends:
	case e.ends != 0 && max(ended-(s.Ends-e.ahead), s.Ends-e.ahead-ended) < int64(sameWindow):
		// The same window, by the clock of another owner.
		e.ends = s.Ends
	case s.Ends < e.ends && now-e.rolled < int64(Fresh):
		return // the window has begun here a moment before it begins there
	default:
		// The first answer, or the owner is in another window. It knows what was admitted there before this entry was
		// made: an entry is only dropped when all is counted.
		e.sum, e.ends, e.rolled = s.Known, s.Ends, now
	}
	e.asOf, e.trip = sent, now-sent
	e.waiting = never
	if e.sent > sent {
		e.waiting = min(e.sent, sent+int64(Period))
	}
	e.told, e.sum = s.Known, max(e.sum, s.Known)
	e.left, e.reporters = max(0, s.Remaining), int64(s.Reporters)
	e.most = e.told + e.left/e.reporters + min(1, e.left%e.reporters) // rounded up, so that the last units can be spent
}

// Stats is the state of a Book.
type Stats struct {
	// Keys are remembered. Full counts the checks that found no room for another.
	Keys int
	Full uint64
	// Lag is the time for which the oldest report has been without an answer.
	Lag time.Duration
}

// Stats returns the state of b at now.
func (b *Book) Stats(now int64) Stats {
	s := Stats{Keys: len(b.entries), Full: b.full}
	for _, e := range b.entries {
		if e.waiting != never {
			s.Lag = max(s.Lag, time.Duration(now-e.waiting))
		}
	}
	return s
}

const (
	// Period is how often a node reports.
	Period = 50 * time.Millisecond
	// sameWindow is how far apart the end of one window may be by the clocks of two owners, the second of which has got it
	// from the first. It is less than half of the shortest window.
	sameWindow = 400 * time.Millisecond
	// Fresh is the greatest age of an answer with which a node may begin another window by itself.
	Fresh = time.Second
	// Recent is how long a process counts as a reporter of a key, after its last report.
	Recent = time.Second
	// Idle is how long a key without checks is remembered.
	Idle = 10 * time.Second
	// MaxSum is the highest sum that is reported.
	MaxSum = 1 << 61
)

// never is before all times.
const never = math.MinInt64

// Serves reports whether r can be decided in eventual mode, if its rule says so.
func Serves(r *bucket.Request) bool {
	switch r.Verb {
	case bucket.Check, bucket.Read, bucket.Charge:
	default: // a verb that gives back is for the owner: sums only grow
		return false
	}
	return !r.Drain && r.Reserve == 0 && r.Limits.Windowed()
}
