package bucket

import (
	"math"
	"time"
)

// checkFor is check, the way that r asks for it.
func (c *counter) checkFor(r *Request, now, cost int64, d *Decision) (kept bool) {
	if r.NoDelay && c.delay(now) > 0 || r.Reserve > 0 && !c.leaves(now, cost, r.Reserve) {
		kept = c.countDenied(now, cost)
		c.deniedFor(r, now, cost, d)
	} else {
		kept = c.check(now, cost, d)
	}
	if r.Drain && !d.Allowed && c.drain(now, cost, max(0, r.Reserve)) {
		kept = true
		*d = Decision{}
		c.deniedFor(r, now, cost, d)
	}
	return kept
}

// readFor is read, the way that r asks for it.
func (c *counter) readFor(r *Request, now, cost int64, d *Decision) {
	if r.NoDelay && c.delay(now) > 0 || r.Reserve > 0 && !c.leaves(now, cost, r.Reserve) {
		c.deniedFor(r, now, cost, d)
	} else {
		c.read(now, cost, d)
	}
}

// leaves reports whether every limit admits cost with reserve units left over.
func (c *counter) leaves(now, cost, reserve int64) bool {
	plans := c.plans()
	for i := range plans {
		p := &plans[i]
		need, fits := p.needs(cost, reserve)
		if p.kind != kindUnlimited && (!fits || !c.at(i).admits(p, now, need)) {
			return false
		}
	}
	return true
}

// needs returns the units that must be free for cost to leave reserve over. fits is false where that
// is more than any limit has.
func (p *plan) needs(cost, reserve int64) (units int64, fits bool) {
	units = mulSat(cost, p.cost)
	return addSat(units, reserve), units <= math.MaxInt64-reserve
}

// deniedFor is denied, the way that r asks: who cannot wait may come back when nothing is before
// it in any queue, and every limit admits it.
func (c *counter) deniedFor(r *Request, now, cost int64, d *Decision) {
	c.denied(now, cost, max(0, r.Reserve), d)
	if !r.NoDelay {
		return
	}
	which, wait := 0, int64(d.RetryAfter)
	plans := c.limits.plans
	for i := range plans {
		if w := c.at(i).delay(&plans[i], now); w > wait {
			which, wait = i, w
		}
	}
	if time.Duration(wait) > d.RetryAfter {
		d.RetryAfter = time.Duration(wait)
		c.describe(d, which, now)
	}
}

// drain charges the limits that have too little left for cost all that they have above
// reserve, and reports whether it charged anything. A queue has a level to wait for and is left alone.
func (c *counter) drain(now, cost, reserve int64) (drained bool) {
	plans := c.plans()
	for i := range plans {
		p, s := &plans[i], c.at(i)
		if p.kind == kindUnlimited || p.kind == kindBlocked || p.queue {
			continue
		}
		left := subSat(p.capacity-s.used(p, now), reserve)
		if left > 0 && mulSat(cost, p.cost) > left {
			s.charge(p, now, left)
			drained = true
		}
	}
	if drained {
		c.admissions++
	}
	return drained
}
