package bucket

import "time"

// checkFor is check, the way that r asks for it.
func (c *counter) checkFor(r *Request, now, cost int64, d *Decision) (kept bool) {
	if r.NoDelay && c.delay(now) > 0 {
		kept = c.countDenied(now, cost)
		c.deniedFor(r, now, cost, d)
	} else {
		kept = c.check(now, cost, d)
	}
	if r.Drain && !d.Allowed && c.drain(now, cost) {
		kept = true
		*d = Decision{}
		c.deniedFor(r, now, cost, d)
	}
	return kept
}

// readFor is read, the way that r asks for it.
func (c *counter) readFor(r *Request, now, cost int64, d *Decision) {
	if r.NoDelay && c.delay(now) > 0 {
		c.deniedFor(r, now, cost, d)
	} else {
		c.read(now, cost, d)
	}
}

// deniedFor is denied, the way that r asks: who cannot wait may come back when nothing is before
// it in any queue, and every limit admits it.
func (c *counter) deniedFor(r *Request, now, cost int64, d *Decision) {
	c.denied(now, cost, d)
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

// drain charges the limits that have too little left for cost all that they have, and reports
// whether it charged anything. A queue has a level to wait for and is left alone.
func (c *counter) drain(now, cost int64) (drained bool) {
	plans := c.limits.plans
	for i := range plans {
		p, s := &plans[i], c.at(i)
		if p.kind == kindUnlimited || p.kind == kindBlocked || p.queue {
			continue
		}
		left := p.capacity - s.used(p, now)
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
