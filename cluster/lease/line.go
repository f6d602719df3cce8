// Package lease keeps what a node knows of hot keys that other nodes own, so that it need not ask the owner for every
// check: recent denials, and units that owners have granted. It also keeps an owner's list of its leaseholders.
//
// It decides how long this knowledge is good for, which keys are hot, when to ask for more and how much, when to return
// units, and how an owner divides what is left among leaseholders. It leaves to cluster which checks may be answered
// from it and all sending, and to bucket how much can be granted without over-admission. It reads no clock and has
// no goroutine: time is a parameter, in ns on one clock that never steps back.
package lease

import (
	"time"

	"github.com/sluice-project/sluice/bucket"
)

const (
	// DefaultHot is how many checks of a key that another node owns make it hot, within hotWindow.
	DefaultHot = 50
	hotWindow  = 100 * time.Millisecond
	// MaxLife is the lifetime that a lease is asked for, less where the limits grant for less. An owner remembers a
	// grant for not much longer.
	MaxLife = 100 * time.Millisecond
	// leaseAhead is how much of the demand is leased ahead, as the time that it lasts.
	leaseAhead = 30 * time.Millisecond
	// askEvery is the least time between two requests for a lease of one key.
	askEvery = int64(10 * time.Millisecond)
	// slice is the time in which demand is counted before it is averaged.
	slice = int64(20 * time.Millisecond)
	// longWait is the longest wait of a leaseholder before its next request, and how long it leaves a key alone whose
	// checks are larger than what can be leased.
	longWait = int64(100 * time.Millisecond)
	// idle is how long a key may get no checks before its lease ends.
	idle = int64(200 * time.Millisecond)
	// closing is how long before its end the rest of a grant is returned, so that it arrives in time.
	closing = 25 * time.Millisecond
	// remembered is how long the demand of a leaseholder counts after its last request, and the key as leased. It must
	// be longer than longWait and MaxLife.
	remembered = int64(150 * time.Millisecond)
	// maxUnits caps counts of demand.
	maxUnits = 1 << 40
)

// line is what a leaseholder knows of one hot key. It is not safe for concurrent use.
type line struct {
	limits *bucket.Limits
	own    bool // this node owns the key, and leases from itself

	grants []grant // those that may be spent, the oldest first
	left   int64   // units of all grants
	// done are grants that were fully spent, and of which the owner has not heard: until then it counts their units as
	// if they were spent last.
	done []uint64
	// The last answer: the owner, its decision, and when it arrived.
	owner string
	said  bucket.Decision
	heard int64
	// short: the owner granted less than was wanted. Then checks are denied until denies if no units are left.
	short  bool
	denies int64
	asking bool  // a request is in flight
	next   int64 // time of the next request
	want   int64 // of the last request
	unfit  int64 // until then all checks go to the owner, because they cost more than what can be leased

	// used is the time of the last check. Demand is counted since began: asked units in this slice, rate units a second
	// on average. most and mostBefore are the largest costs of this slice and the last.
	used, began, asked, rate int64
	most, mostBefore         int64
}

// grant is units that may be spent before until.
type grant struct {
	id           uint64
	units, until int64
}

// count adds a check of this cost to the demand.
func (l *line) count(now, cost int64) {
	l.roll(now)
	l.used, l.asked, l.most = now, min(l.asked+min(cost, maxUnits), maxUnits), max(l.most, cost)
}

// take tries to spend cost, which is above 0, at now.
func (l *line) take(now, cost int64, t *Stats) Verdict {
	l.expire(now, t)
	switch {
	case now < l.unfit:
		return Ask
	case cost <= l.left:
		l.spend(cost)
		t.Spent += uint64(cost)
		return Spent
	case l.short && now < l.denies:
		return Denied
	}
	return Ask
}

// maxDone bounds done. The owner learns of the others by their deadline.
const maxDone = 4

// spend takes cost out of the oldest grants. At least cost must be left.
func (l *line) spend(cost int64) {
	l.left -= cost
	n := 0
	for ; n < len(l.grants) && l.grants[n].units <= cost; n++ {
		cost -= l.grants[n].units
		if len(l.done) < maxDone {
			l.done = append(l.done, l.grants[n].id)
		}
	}
	if cost > 0 {
		l.grants[n].units -= cost
	}
	l.grants = append(l.grants[:0], l.grants[n:]...)
}

// takeDone takes one of done, 0 if there is none.
func (l *line) takeDone() (id uint64) {
	if len(l.done) > 0 {
		id = l.done[0]
		l.done = append(l.done[:0], l.done[1:]...)
	}
	return id
}

// expire drops grants that may not be spent any more.
func (l *line) expire(now int64, t *Stats) {
	kept := l.grants[:0]
	for _, g := range l.grants {
		if now < g.until {
			kept = append(kept, g)
			continue
		}
		l.left -= g.units
		t.Expired += uint64(g.units)
	}
	l.grants = kept
}

// roll averages the demand once a slice.
func (l *line) roll(now int64) {
	passed := now - l.began
	if passed < slice {
		return
	}
	rate := int64(float64(l.asked) * float64(time.Second) / float64(passed))
	if passed < 3*slice {
		rate = (rate + l.rate) / 2
	}
	l.began, l.asked, l.rate = now, 0, min(rate, maxUnits)
	l.most, l.mostBefore = 0, l.most
}

// largest is the largest recent cost.
func (l *line) largest() int64 { return max(l.most, l.mostBefore, 1) }

// target is how many units there should be to spend.
func (l *line) target(life time.Duration) int64 {
	return max(int64(float64(l.rate)*min(leaseAhead, life/2).Seconds()), l.largest())
}

// due reports whether it is time to ask for more. empty: the next check costs more than is left.
func (l *line) due(now int64, life time.Duration, empty bool) bool {
	switch {
	case l.asking || now < l.unfit:
		return false
	case empty && !l.short:
		return true
	}
	return now >= l.next && l.left < (l.target(life)+1)/2
}

// granted takes the grant in answer to a request that was sent at sent; it arrived at now. It returns grants that are of no use.
func (l *line) granted(sent, now int64, life time.Duration, owner string, a *bucket.Grant, t *Stats) (unused []grant) {
	l.asking, l.heard, l.owner, l.said = false, now, owner, a.Decision
	t.Granted += uint64(a.Units)
	if until := sent + int64(a.For); a.Units > 0 && now < until {
		l.grants = append(l.grants, grant{a.ID, a.Units, until})
		l.left += a.Units
	} else {
		t.Expired += uint64(a.Units)
	}
	every := min(askEvery, int64(life/4))
	l.short = a.Units < l.want
	l.next = now + every
	if 2*a.Units < l.want {
		l.next += every // little is left, and rounding up takes much of it: let it accumulate
	}
	if a.Units == 0 {
		// A unit becomes free now and then; a leaseholder that asked for each would ask all the time. Where the limit
		// has room all the same, checks are not denied meanwhile.
		l.short = !a.Decision.Allowed
		l.next = now + min(max(int64(a.RetryAfter), 2*every), longWait)
	}
	l.denies = l.next + 2*askEvery
	if a.Units > 0 && l.left < l.largest() || a.RetryAfter == bucket.Never && a.Decision.Allowed {
		unused = l.grants
		l.unfit, l.short, l.grants, l.left = now+longWait, false, nil, 0
	}
	return unused
}

// surplus takes out units that will not be spent: grants about to end, and those beyond twice the target.
func (l *line) surplus(now int64, life time.Duration) (unspent []grant) {
	target := l.target(life)
	kept := l.grants[:0]
	left := int64(0)
	for _, g := range l.grants {
		if g.until-now < int64(min(closing, life/3)) || left > 2*target {
			unspent = append(unspent, g)
			continue
		}
		kept = append(kept, g)
		left += g.units
	}
	l.grants, l.left = kept, left
	return unspent
}

// describe writes the decision of a check that was admitted or denied here: the owner's last answer, with the units left
// here added to Remaining. A denied check may be retried after the next request to the owner, or later if the owner said so.
func (l *line) describe(now int64, allowed bool, d *bucket.Decision) {
	d.Allowed, d.Index, d.Limit, d.Remaining = allowed, l.said.Index, l.said.Limit, l.said.Remaining
	each := int64(1)
	if int(d.Index) < l.limits.Len() {
		each = max(1, l.limits.At(int(d.Index)).Cost)
	}
	if room := d.Limit - d.Remaining; room/each < l.left {
		d.Remaining = d.Limit
	} else {
		d.Remaining += each * l.left
	}
	passed := time.Duration(now - l.heard)
	d.ResetAfter = max(0, l.said.ResetAfter-passed)
	if allowed {
		return
	}
	d.Lost, d.RetryAfter = l.said.Lost, l.said.RetryAfter
	if d.RetryAfter != bucket.Never {
		d.RetryAfter = max(time.Duration(l.next-now), d.RetryAfter-passed, time.Millisecond)
	}
}
