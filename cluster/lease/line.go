// Package lease is what a node knows of keys that others hold, so that it need not ask their
// owners for every check of a hot one: denials that are still true, and units that owners have granted. It is also what a
// owner knows of those who lease.
//
// It decides how long such knowledge is good for, which keys are hot, when more is to be asked for and how much, when
// something is to be returned, and how an owner divides what is left among those who ask. It leaves to others
// which checks may be answered from it, and to send what is to be sent (cluster), and what can be
// granted at all without ever admitting more (bucket). It reads no clock, and has no
// goroutine: time is a parameter, in ns on one clock that never steps back.
package lease

import (
	"fmt"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// line is what a leaseholder knows of one hot key. It is not safe for concurrent use.
type line struct {
	limits    *bucket.Limits
	transient bool
	// own: this node holds the key, and leases of itself.
	own bool

	grants []grant // those that may be spent, the oldest first
	left   int64   // units of all grants
	// done are grants that were wholly spent, and of which the owner does not know it yet. Until then it counts their
	// units as if they were spent last.
	done []uint64
	// owner, said and heard are whom the last answer came from, what it was, and when.
	owner string
	said  bucket.Decision
	heard int64
	// short: the owner had less than was wanted. Until denies, what is not left is denied.
	short  bool
	denies int64
	// asking: a request is on its way. The next goes at next.
	asking bool
	next   int64
	want   int64 // of the last request
	// unfit is until when all checks go to the owner: they are larger than what can be leased.
	unfit int64

	// used is when the key was last asked for. Demand is counted from began: asked units in this slice,
	// rate units a second on the average. most is the largest cost of this slice and the last.
	used, began, asked, rate int64
	most, mostBefore         int64
}

// grant is units that may be spent before until.
type grant struct {
	id           uint64
	units, until int64
}

// count notes that cost is asked for.
func (l *line) count(now, cost int64) {
	l.roll(now)
	l.used, l.asked, l.most = now, min(l.asked+min(cost, 1<<40), 1<<40), max(l.most, cost)
}

// take tries to spend cost, which is above 0, at now.
func (l *line) take(now, cost int64, t *counts) Verdict {
	l.expire(now, t)
	switch {
	case now < l.unfit:
		return Ask
	case cost <= l.left:
		l.spend(cost)
		t.spent += uint64(cost)
		return Spent
	case l.short && now < l.denies:
		return Denied
	}
	return Ask
}

// spend takes cost, of which there is as much, out of the oldest grants.
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
	l.drop(n)
}

// maxDone bounds done. The owner learns of the others by their deadline.
const maxDone = 4

// settle takes one of done, 0 if there is none.
func (l *line) settle() (id uint64) {
	if len(l.done) > 0 {
		id = l.done[0]
		l.done = append(l.done[:0], l.done[1:]...)
	}
	return id
}

// drop takes the first n grants out.
func (l *line) drop(n int) { l.grants = append(l.grants[:0], l.grants[n:]...) }

// expire lets go of what may not be spent any more.
func (l *line) expire(now int64, t *counts) {
	kept := l.grants[:0]
	for _, g := range l.grants {
		if now < g.until {
			kept = append(kept, g)
			continue
		}
		l.left -= g.units
		t.expired += uint64(g.units)
	}
	l.grants = kept
}

// roll averages the demand once a slice.
func (l *line) roll(now int64) {
	passed := now - l.began
	if passed < int64(slice) {
		return
	}
	rate := int64(float64(l.asked) * float64(time.Second) / float64(passed))
	if passed < 3*int64(slice) {
		rate = (rate + l.rate) / 2
	}
	l.began, l.asked, l.rate = now, 0, min(rate, 1<<40)
	l.most, l.mostBefore = 0, l.most
}

// largest is the largest cost of late.
func (l *line) largest() int64 { return max(l.most, l.mostBefore, 1) }

// target is how much there should be to spend.
func (l *line) target(c *Config, life time.Duration) int64 {
	ahead := min(c.Ahead, life/2)
	return max(int64(float64(l.rate)*ahead.Seconds()), l.largest())
}

// due reports whether it is time to ask for more, of which there are less than what the next check costs if
// empty.
func (l *line) due(now int64, c *Config, life time.Duration, empty bool) bool {
	switch {
	case l.asking || now < l.unfit:
		return false
	case empty && !l.short:
		return true
	}
	return now >= l.next && l.left < (l.target(c, life)+1)/2
}

// granted takes the answer to a request that was sent at sent and came at now. It returns what is of no use.
func (l *line) granted(sent, now int64, c *Config, life time.Duration, a *Answer, t *counts) (rejected []grant) {
	l.asking, l.heard, l.owner, l.said = false, now, a.Owner, a.Decision
	t.granted += uint64(a.Units)
	if until := sent + int64(a.For); a.Units > 0 && now < until {
		l.grants = append(l.grants, grant{a.ID, a.Units, until})
		l.left += a.Units
	} else {
		t.expired += uint64(a.Units)
	}
	every := int64(min(c.Every, life/4))
	l.short = a.Units < l.want
	l.next = now + every
	if 2*a.Units < l.want {
		// The less there is, the more a part of it is by being rounded up: let it gather.
		l.next += every
	}
	if a.Units == 0 {
		// What can be granted is little by little; who asks for each of it would be at the owner all the time. Where
		// there is room all the same, checks are not denied meanwhile.
		l.short = !a.Decision.Allowed
		l.next = now + min(max(int64(a.RetryAfter), 2*every), int64(longWait))
	}
	l.denies = l.next + 2*int64(c.Every)
	if a.Units > 0 && l.left < l.largest() || a.RetryAfter == bucket.Never && a.Decision.Allowed {
		l.unfit, l.short = now+int64(longWait), false
		rejected, l.grants = l.grants, nil
		l.left = 0
	}
	return rejected
}

// failed says that a request got no answer.
func (l *line) failed(now int64, c *Config) {
	l.asking, l.short = false, false
	l.next = now + int64(c.Every)
}

// surplus takes out what will not be spent: grants about to end, and what is more than twice the target.
func (l *line) surplus(now int64, c *Config, life time.Duration) (unspent []grant) {
	target := l.target(c, life)
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

// admitted writes the decision of a check that was spent here.
func (l *line) admitted(now int64, d *bucket.Decision) {
	l.describe(now, d)
	d.Allowed = true
}

// deniedBy writes the decision of a check that was denied here: it may come again when the owner will have been
// asked again, or when that has said that there will be something, if that is later.
func (l *line) deniedBy(now int64, d *bucket.Decision) {
	l.describe(now, d)
	d.Lost = l.said.Lost
	if l.said.RetryAfter == bucket.Never {
		d.RetryAfter = bucket.Never
		return
	}
	d.RetryAfter = max(time.Duration(l.next-now), l.said.RetryAfter-time.Duration(now-l.heard), time.Millisecond)
}

// describe writes what was said of the limit. What is left here is left of it.
func (l *line) describe(now int64, d *bucket.Decision) {
	d.Index, d.Limit = l.said.Index, l.said.Limit
	each := int64(1)
	if int(d.Index) < l.limits.Len() {
		each = max(1, l.limits.At(int(d.Index)).Cost)
	}
	d.Remaining = l.said.Remaining
	if room := d.Limit - d.Remaining; room/each < l.left {
		d.Remaining = d.Limit
	} else {
		d.Remaining += each * l.left
	}
	d.ResetAfter = max(0, l.said.ResetAfter-time.Duration(now-l.heard))
}

// Config says when a key is hot, and how its leases are dealt with. Zero values are the defaults.
type Config struct {
	// Hot is how many checks of a key that another node holds make it hot, within HotWindow. 0 means 50, in 100 ms.
	Hot       int
	HotWindow time.Duration
	// Life is the lifetime that is asked for, less where the limits grant for less. 0 means 100 ms, which is the most: a
	// owner remembers for not much longer that it has granted.
	Life time.Duration
	// Ahead is how much of the demand is leased ahead, as the time that it lasts. 0 means 30 ms.
	Ahead time.Duration
	// Every is the least time between two requests for a lease of one key. 0 means 10 ms.
	Every time.Duration
}

// Validate reports the first field that is wrong.
func (c Config) Validate() error {
	if c.Hot < 0 {
		return fmt.Errorf("lease: Hot: %d; want a number of checks, or 0 for the default", c.Hot)
	}
	if c.Life > maxLife {
		return fmt.Errorf("lease: Life: %v; want at most %v", c.Life, maxLife)
	}
	for _, f := range []struct {
		name string
		d    time.Duration
	}{{"HotWindow", c.HotWindow}, {"Life", c.Life}, {"Ahead", c.Ahead}, {"Every", c.Every}} {
		if f.d < 0 || f.d > time.Minute {
			return fmt.Errorf("lease: %s: %v; want up to a minute, or 0 for the default", f.name, f.d)
		}
	}
	return nil
}

// WithDefaults returns c with its defaults in.
func (c Config) WithDefaults() Config {
	if c.Hot == 0 {
		c.Hot = 50
	}
	for _, f := range []struct {
		d  *time.Duration
		or time.Duration
	}{{&c.HotWindow, 100 * time.Millisecond}, {&c.Life, 100 * time.Millisecond}, {&c.Ahead, 30 * time.Millisecond}, {&c.Every, 10 * time.Millisecond}} {
		if *f.d == 0 {
			*f.d = f.or
		}
	}
	return c
}

// Moments of a lease's life that follow from nothing else.
const (
	maxLife = 100 * time.Millisecond
	// slice is the time in which demand is counted before it is averaged.
	slice = 20 * time.Millisecond
	// longWait is the longest that a leaseholder waits before it asks again, and that a key is left alone whose
	// checks are larger than what can be leased.
	longWait = 100 * time.Millisecond
	// idle is how long a key may go unasked until its lease ends.
	idle = 200 * time.Millisecond
	// closing is how long before its end what is left of a grant is returned, so that it arrives in time.
	closing = 25 * time.Millisecond
	// remembered is how long a leaseholder's demand counts that has not asked again, and the key as granted. It is
	// longer than longWait, and than any lease lasts.
	remembered = 150 * time.Millisecond
)
