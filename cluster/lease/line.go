// Package lease keeps what a node knows of hot keys that other nodes own, so that it need not ask the owner for every
// check: recent denials, and units that owners have granted. It also keeps an owner's list of its leaseholders.
//
// It decides how long this knowledge is good for, which keys are hot, when to ask for more and how much, when to return
// units, and how an owner divides what is left among leaseholders. It leaves to cluster which checks may be answered
// from it and all sending, and to bucket how much can be granted without over-admission. It reads no clock and has
// no goroutine: time is a parameter, in ns on one clock that never steps back.
package lease

import (
	"cmp"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
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

// pace has the times of a Book.
type pace struct {
	// life is the lifetime that a lease is asked for, worth the least with which one is.
	life, worth time.Duration
	// ahead is leaseAhead, window hotWindow; the others are as the constants of their names. renew is how long before its end a lease is
	// replaced.
	ahead, window, closing                       time.Duration
	every, slice, longWait, idle, answers, renew int64
	// asks is how many requests for a lease of a key may have no answer yet. The next one is made again after the last one if the owner
	// grants some units, but less than is wanted, else when an answer is late.
	asks        int
	again, late int64
	// lines bounds the hot keys of a shard.
	lines int
}

// nodePace is for leases of nodes of the same cluster.
var nodePace = pace{
	life: MaxLife, worth: 2 * bucket.LeastLease, ahead: leaseAhead, window: hotWindow, closing: closing,
	every: askEvery, slice: slice, longWait: longWait, idle: idle, answers: 2 * askEvery, lines: maxLines, asks: 1,
}

// RegionLife is how long a lease of another region lasts at most, whose answers take rtt.
func RegionLife(rtt time.Duration) time.Duration { return max(4*rtt, 2*time.Second) }

// regionPace is for leases of another region, whose answers take rtt, and at least 200 ms more if a packet is lost.
func regionPace(rtt time.Duration) *pace {
	life := RegionLife(rtt)
	return &pace{
		life: life, worth: 3 * rtt / 2, ahead: 3*rtt/2 + 400*time.Millisecond, window: life, closing: rtt/4 + subLife,
		every: int64(max(rtt/8, 50*time.Millisecond-rtt/8)), slice: int64(100 * time.Millisecond), longWait: longWait,
		idle: int64(life), answers: int64(2*rtt + 270*time.Millisecond), renew: int64(rtt + 100*time.Millisecond), lines: 512,
		asks: 3, again: int64(max(rtt/3, 50*time.Millisecond)), late: int64(rtt + 70*time.Millisecond),
	}
}

// line is what a leaseholder knows of one hot key. It is not safe for concurrent use.
type line struct {
	limits *bucket.Limits
	pace   *pace
	own    bool // this node owns the key, and leases from itself

	grants []grant // those that may be spent, the oldest first
	left   int64   // units of all grants
	// subs are leases out of the grants. subRate is the demand of their leaseholders, at subAt.
	subs           []sub
	subRate, subAt int64
	// done are grants that were fully spent, and of which the owner has not heard: until then it counts their units as
	// if they were spent last.
	done []spentGrant
	kept int64 // what is spent now may be given back until then
	// The answer to the newest request that has one: when that was sent, the owner, its decision, and when it arrived.
	answered int64
	owner    string
	said     bucket.Decision
	heard    int64
	// short: the owner granted less than was wanted. Then checks are denied until denies if no units are left. few: it granted no more
	// than one of the largest checks needs.
	short, few bool
	denies     int64
	asking     int   // requests in flight
	asked      int64 // when the last was made
	failed     int64 // when the last failed
	next       int64 // time of the next request
	unfit      int64 // until then all checks go to the owner, because they cost more than what can be leased

	// used is the time of the last check. Demand is counted since began: wanted units in this slice, rate units a second
	// on average, peak in the busiest of the last slices. most and mostBefore are the largest costs of this slice and the last.
	used, began, wanted, rate, peak int64
	most, mostBefore                int64
}

// grant is units that may be spent before until. Others have leases of out more units of it.
type grant struct {
	id                uint64
	units, until, out int64
}

// held reports whether g must stay because others have leases of it.
func (g *grant) held() bool { return g.out > 0 && guard.On(guard.SubHeld) }

// spentGrant is a grant that was fully spent. It is not reported before from, since a check may give units of it back.
type spentGrant struct {
	id   uint64
	from int64
}

// sub is a lease of units of grant of.
type sub struct {
	id, of       uint64
	units, until int64
}

// count adds so many checks of this cost to the demand.
func (l *line) count(now, cost, times int64) {
	l.roll(now)
	l.used, l.wanted, l.most = now, min(l.wanted+min(cost*times, maxUnits), maxUnits), max(l.most, cost)
}

// take tries to spend cost, which is above 0, at now. It adds what it takes of each grant to parts, unless that is nil.
func (l *line) take(now, cost int64, parts *[]grant, t *Stats) Verdict {
	l.expire(now, t)
	switch {
	case now < l.unfit:
		return Ask
	case cost <= l.left:
		if parts != nil {
			l.kept = now + int64(subLife)
		}
		l.spend(cost, parts)
		t.Spent += uint64(cost)
		return Spent
	case l.short && now < l.denies:
		return Denied
	}
	return Ask
}

// maxDone bounds done. The owner learns of the others by their deadline.
const maxDone = 8

// spend takes cost out of the oldest grants, as take does. At least cost must be left.
func (l *line) spend(cost int64, parts *[]grant) {
	l.left -= cost
	n := 0
	for i := range l.grants {
		g := &l.grants[i]
		part := min(cost, g.units)
		g.units, cost = g.units-part, cost-part
		if parts != nil && part > 0 {
			*parts = append(*parts, grant{id: g.id, units: part, until: g.until})
		}
		if g.units > 0 {
			break
		}
		n++
	}
	if n > 0 {
		l.dropSpent()
	}
}

// giveBack lets parts of grants be spent again of which the owner has not heard. It returns their units.
func (l *line) giveBack(now int64, parts []grant) (back int64) {
	for _, p := range parts {
		i := slices.IndexFunc(l.grants, func(g grant) bool { return g.id == p.id && g.until == p.until })
		if j := slices.IndexFunc(l.done, func(s spentGrant) bool { return s.id == p.id }); i < 0 && j >= 0 && now < p.until {
			l.done = slices.Delete(l.done, j, j+1)
			i = l.insert(grant{id: p.id, until: p.until})
		}
		if i >= 0 {
			l.grants[i].units += p.units
			back += p.units
		}
	}
	l.left += back
	return back
}

// insert adds g to the grants, and returns where it is.
func (l *line) insert(g grant) int {
	i, _ := slices.BinarySearchFunc(l.grants, g.until, func(g grant, until int64) int { return cmp.Compare(g.until, until) })
	l.grants = slices.Insert(l.grants, i, g)
	return i
}

// dropSpent drops the grants of which nothing is left, nor with others.
func (l *line) dropSpent() {
	kept := l.grants[:0]
	for _, g := range l.grants {
		switch {
		case g.units > 0 || g.held():
			kept = append(kept, g)
		case len(l.done) < maxDone:
			l.done = append(l.done, spentGrant{g.id, l.kept})
		}
	}
	l.grants = kept
}

// release takes out the grants that may be returned, and drops those of which others have leases: these count as spent at their end.
func (l *line) release() (unspent []grant) {
	for _, g := range l.grants {
		if !g.held() {
			unspent = append(unspent, g)
		}
	}
	l.grants, l.left = nil, 0
	return unspent
}

const (
	// subLife is the longest that a lease out of a lease lasts, and leastSub the least.
	subLife  = MaxLife
	leastSub = int64(5 * time.Millisecond)
	maxSubs  = 4096
)

// grantSub makes a lease of at most want units that lasts for life at most, and that ends before the grant that it is of is returned: of the
// oldest grant that has so many, else of the one that has most.
func (l *line) grantSub(now int64, id uint64, want, part, whole int64, life time.Duration) (units int64, lasts time.Duration) {
	if len(l.subs) >= maxSubs {
		return 0, 0
	}
	want = min(want, max(1, int64(float64(l.left)*float64(part)/float64(whole))))
	of := -1
	for i := range l.grants {
		g := &l.grants[i]
		d := int64(min(life, subLife))
		if guard.On(guard.SubEnd) {
			d = min(d, g.until-int64(l.pace.closing-subLife)-now)
		}
		if d >= leastSub && units < want && g.units > units {
			of, units, lasts = i, min(want, g.units), time.Duration(d)
		}
	}
	if of >= 0 {
		g := &l.grants[of]
		g.units, g.out, l.left = g.units-units, g.out+units, l.left-units
		l.subs = append(l.subs, sub{id, g.id, units, now + int64(lasts)})
	}
	return units, lasts
}

// takeBack ends a lease out of a grant. It returns what of unspent may be spent again.
func (l *line) takeBack(now int64, id uint64, unspent int64) (back int64) {
	i := slices.IndexFunc(l.subs, func(s sub) bool { return s.id == id })
	if i < 0 {
		return 0
	}
	s := l.subs[i]
	l.subs = slices.Delete(l.subs, i, i+1)
	for j := range l.grants {
		if g := &l.grants[j]; g.id == s.of {
			if now < g.until {
				back = min(max(0, unspent), s.units)
			}
			g.out, g.units, l.left = g.out-s.units, g.units+back, l.left+back
			break
		}
	}
	l.dropSpent()
	return back
}

// takeDone takes one of done that may be reported, 0 if there is none.
func (l *line) takeDone(now int64) (id uint64) {
	if len(l.done) > 0 && now >= l.done[0].from {
		id = l.done[0].id
		l.done = slices.Delete(l.done, 0, 1)
	}
	return id
}

// expire drops grants that may not be spent any more.
func (l *line) expire(now int64, t *Stats) {
	kept := l.grants[:0]
	for _, g := range l.grants {
		if now < g.until || !guard.On(guard.NodeDeadline) {
			kept = append(kept, g)
			continue
		}
		l.left -= g.units
		t.Expired += uint64(g.units)
	}
	l.grants = kept
	for i := 0; i < len(l.subs); {
		if s := l.subs[i]; now >= s.until { // what was spent of it is not known: all of it
			l.takeBack(now, s.id, 0)
			continue
		}
		i++
	}
}

// roll averages the demand once a slice.
func (l *line) roll(now int64) {
	passed := now - l.began
	if passed < l.pace.slice {
		return
	}
	if now-l.subAt > remembered {
		l.subRate = 0
	}
	rate := int64(float64(l.wanted) * float64(time.Second) / float64(passed))
	l.peak = max(l.more()*int64(time.Second)/passed, l.peak-l.peak/8)
	if passed < 3*l.pace.slice {
		rate = (rate + l.rate) / 2
	}
	l.began, l.wanted, l.rate = now, 0, min(rate, maxUnits)
	l.most, l.mostBefore = 0, l.most
}

// largest is the largest recent cost.
func (l *line) largest() int64 { return max(l.most, l.mostBefore, 1) }

// region reports whether l is of another region.
func (l *line) region() bool { return l.pace != &nodePace }

// more is what was wanted in this slice besides two checks, which are no peak.
func (l *line) more() int64 { return max(0, l.wanted-2*l.most) }

// target is how many units there should be to spend. A region leases for its peaks, since it waits long for more, but not more than half
// of a limit, unless that is refilled before more can be here. over: half of it is not enough.
func (l *line) target(life time.Duration) (units int64, over bool) {
	rate := l.rate + l.subRate
	if l.region() {
		rate = max(l.rate, l.peak, l.more()*int64(time.Second)/(2*l.pace.slice)) + l.subRate
	}
	units = int64(float64(rate) * min(l.pace.ahead, life/2).Seconds())
	if half := l.said.Limit / l.each() / 2; l.region() && units > half && half > 0 && int64(life) >= 4*l.pace.renew {
		units, over = half, float64(rate)*time.Duration(l.pace.renew).Seconds() > float64(half)
	}
	return max(units, l.largest()), over
}

// lasting returns the units that may still be spent when more can be here.
func (l *line) lasting(now int64) (units int64) {
	for _, g := range l.grants {
		if g.until-now > l.pace.renew {
			units += g.units
		}
	}
	return units
}

// due reports whether it is time to ask for more. empty: the next check costs more than is left.
func (l *line) due(now int64, life time.Duration, empty bool) bool {
	switch {
	case now < l.unfit || life == 0 || !l.mayAsk(now):
		return false
	case empty && !l.short:
		return true
	case now < l.next:
		return false
	}
	target, _ := l.target(life)
	if l.region() {
		return l.lasting(now) < target-target/8
	}
	return l.left < (target+1)/2
}

// mayAsk reports whether another request may be made beside those in flight. While the owner grants few units there is only one, so that
// it is known soon whether they add up to what a check costs.
func (l *line) mayAsk(now int64) bool {
	after := l.pace.late
	switch {
	case l.asking == 0:
		return !l.region() || l.failed == 0 || now-l.failed >= l.pace.every
	case l.asking >= l.pace.asks || l.few:
		return false
	case l.short:
		after = l.pace.again
	}
	return now-l.asked >= after
}

// granted takes the grant in answer to ask, which was sent at sent; it arrived at now. It returns grants that are of no use.
func (l *line) granted(sent, now int64, life time.Duration, ask *Request, owner string, a *bucket.Grant, t *Stats) (unused []grant) {
	l.asking = max(0, l.asking-1)
	t.Granted += uint64(a.Units)
	until := sent + int64(a.For)
	if !guard.On(guard.SinceSent) {
		until = now + int64(a.For)
	}
	if a.Units > 0 && now < until {
		l.insert(grant{id: a.ID, units: a.Units, until: until})
		l.left += a.Units
	} else {
		t.Expired += uint64(a.Units)
	}
	if sent < l.answered { // of a later request more is known
		return nil
	}
	l.answered, l.heard, l.owner, l.said = sent, now, owner, a.Decision
	every := min(l.pace.every, int64(life/4))
	l.short, l.few = a.Units < ask.Want || ask.over, a.Units < l.largest()
	l.next = now + every
	if 2*a.Units < ask.Want {
		l.next += every // little is left, and rounding up takes much of it: let it accumulate
	}
	if a.Units == 0 {
		// A unit becomes free now and then; a leaseholder that asked for each would ask all the time. Where the limit
		// has room all the same, checks are not denied meanwhile.
		l.short = !a.Decision.Allowed
		l.next = now + min(max(int64(a.RetryAfter), 2*every), l.pace.longWait)
	}
	l.denies = l.next + l.pace.answers
	small := a.Units > 0 && l.asking == 0 && (l.short || !l.region()) && now < until && l.left < l.largest()
	if small || a.RetryAfter == bucket.Never && a.Decision.Allowed {
		unused = l.release()
		l.unfit, l.short = now+l.pace.longWait, false
	}
	return unused
}

// surplus takes out units that will not be spent: grants about to end, and those beyond twice the target.
func (l *line) surplus(now int64, life time.Duration) (unspent []grant) {
	target, _ := l.target(life)
	kept := l.grants[:0]
	left := int64(0)
	for _, g := range l.grants {
		// A region may have been granted its target several times.
		if (g.until-now < int64(min(l.pace.closing, life/3)) || left > 2*target || l.region() && left > 0 && left+g.units > 2*target) && !g.held() {
			unspent = append(unspent, g)
			continue
		}
		kept = append(kept, g)
		left += g.units
	}
	l.grants, l.left = kept, left
	return unspent
}

// each is what a unit takes of the limit that the owner has named.
func (l *line) each() int64 {
	if i := int(l.said.Index); i < l.limits.Len() {
		return max(1, l.limits.At(i).Cost)
	}
	return 1
}

// describe writes the decision of a check that was admitted or denied here: the owner's last answer, with the units left
// here added to Remaining. A denied check may be retried after the next request to the owner, or later if the owner said so.
func (l *line) describe(now int64, allowed bool, d *bucket.Decision) {
	d.Allowed, d.Index, d.Limit, d.Remaining = allowed, l.said.Index, l.said.Limit, l.said.Remaining
	each := l.each()
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
