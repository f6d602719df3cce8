package bucket

import (
	"math"
	"time"
)

// The methods here fill in a Decision that is zero. It is passed down by pointer
// because it is large enough for its copies to show in a check's time.

// check decides a cost > 0 and charges it to every limit if all admit it, else to none. It
// reports whether the counter has something to remember: the charge, or a denial that counts.
func (c *counter) check(now, cost int64, d *Decision) (kept bool) {
	plans := c.plans()
	for i := range plans {
		p := &plans[i]
		if !c.at(i).admits(p, now, mulSat(cost, p.cost)) {
			kept = c.countDenied(now, cost)
			c.denied(now, cost, 0, d)
			return kept
		}
	}
	d.Allowed, d.Delay = true, c.delay(now)
	c.charge(now, cost)
	for i := range plans {
		p := &plans[i]
		if p.limit < p.capacity && c.at(i).used(p, now) > p.limit {
			d.Soft = true
		}
	}
	c.describeLeast(d, now)
	return true
}

// read answers for a cost > 0 what check would, and changes nothing; c is settled to now.
// What remains is what remains now, as nothing is spent.
func (c *counter) read(now, cost int64, d *Decision) {
	plans := c.plans()
	soft := false
	for i := range plans {
		p, s := &plans[i], c.at(i)
		units := mulSat(cost, p.cost)
		if !s.admits(p, now, units) {
			c.denied(now, cost, 0, d)
			return
		}
		if p.limit < p.capacity && units > p.limit-s.used(p, now) {
			soft = true
		}
	}
	d.Allowed, d.Soft, d.Delay = true, soft, c.delay(now)
	c.describeLeast(d, now)
}

// status answers a verb that cannot be denied.
func (c *counter) status(now int64, d *Decision) {
	d.Allowed = true
	c.describeLeast(d, now)
}

// charge spends cost > 0 of every limit, and of the shadows.
func (c *counter) charge(now, cost int64) {
	plans := c.limits.plans
	for i := range plans {
		p, s := &plans[i], c.at(i)
		s.charge(p, now, mulSat(cost, p.cost))
		s.last = now
	}
	c.admissions++
	c.chargeShadows(now, cost, (*state).charge)
}

// refund gives cost > 0 back to every limit, and to the shadows.
func (c *counter) refund(cost int64) {
	plans := c.limits.plans
	for i := range plans {
		p := &plans[i]
		c.at(i).refund(p, mulSat(cost, p.cost))
	}
	c.refundShadows(cost)
}

// countDenied makes a denied check count where the limits say so, and reports
// whether any did.
func (c *counter) countDenied(now, cost int64) (kept bool) {
	plans := c.limits.plans
	for i := range plans {
		if c.at(i).countDenied(&plans[i], now, cost) {
			kept = true
		}
	}
	if kept {
		c.admissions++
	}
	return kept
}

// countDenied makes a denied check of cost count, if the limit says so.
func (s *state) countDenied(p *plan, now, cost int64) (kept bool) {
	if !p.countDenied {
		return false
	}
	if p.kind == kindLog {
		s.chargeLog(p, now, mulSat(cost, p.cost))
		kept = true
	}
	if p.minInterval > 0 {
		s.last = now
		kept = true
	}
	return kept
}

// denied describes the limit that takes longest to admit cost with reserve units left over. At
// least one denies it.
func (c *counter) denied(now, cost, reserve int64, d *Decision) {
	plans := c.limits.plans
	worst, retry := 0, int64(-1)
	for i := range plans {
		p := &plans[i]
		need, fits := p.needs(cost, reserve)
		r := c.retry(i, now, need)
		if !fits && p.kind != kindUnlimited {
			r = int64(Never)
		}
		if r > retry {
			worst, retry = i, r
		}
	}
	d.RetryAfter = time.Duration(retry)
	c.describe(d, worst, now)
}

// delay returns the longest delay (ns) that a limit asks for.
func (c *counter) delay(now int64) time.Duration {
	var longest int64
	plans := c.limits.plans
	for i := range plans {
		longest = max(longest, c.at(i).delay(&plans[i], now))
	}
	return time.Duration(longest)
}

// describeLeast describes the limit with the least remaining.
func (c *counter) describeLeast(d *Decision, now int64) {
	least, which := int64(math.MaxInt64), 0
	plans := c.plans()
	if len(plans) > 1 {
		for i := range plans {
			if r := c.at(i).remaining(&plans[i], now); r < least {
				least, which = r, i
			}
		}
	}
	c.describe(d, which, now)
}

// describe fills in what d says about limit i.
func (c *counter) describe(d *Decision, i int, now int64) {
	p, s := &c.plans()[i], c.at(i)
	d.Index = uint8(i)
	d.Limit = c.limits.plans[i].limit
	if p.kind == kindUnlimited {
		d.Limit = math.MaxInt64
	}
	d.Remaining = s.remaining(p, now)
	d.ResetAfter = time.Duration(max(c.until(i, now, 0), c.interval(i, now)))
}

// remaining returns the units left of the limit, without the soft margin.
func (s *state) remaining(p *plan, now int64) int64 {
	if p.kind == kindUnlimited {
		return math.MaxInt64
	}
	return max(0, p.limit-s.used(p, now))
}
