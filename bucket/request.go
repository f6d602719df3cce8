package bucket

import (
	"math"
	"time"
)

// Verb is the operation of a request.
type Verb uint8

const (
	// Check charges Cost to every limit if all admit it, else to none. Cost 0 only reads: it is answered like cost 1, and
	// spends nothing.
	Check Verb = iota
	// Read answers whether and when Check would admit Cost (0 means 1), and changes nothing. Remaining is the current value.
	Read
	// Charge spends Cost regardless of the limits and may leave a debt.
	Charge
	// Refund returns Cost to the current windows and levels, never above full.
	Refund
	// Reset forgets the counter.
	Reset
	// Reserve, Extend, Spend, Settle and Cancel are about a Reservation; see there.
	Reserve
	Extend
	Spend
	Settle
	Cancel
)

// Never is the RetryAfter of a cost that the limits can never admit.
const Never = time.Duration(math.MaxInt64)

// Request is one decision on one key. A negative Cost is taken as 0.
type Request struct {
	Key    Key
	Limits *Limits
	Cost   int64
	Verb   Verb
	// Unreplicated: losing this charge in a crash is accepted (replication: none), so it is recorded only by RecordAll, and ignores the
	// gate.
	Unreplicated bool
	// Drain: a denied Check charges all that is left, soft margin included, to every limit that has too little for it, except a
	// LeakyQueue, whose level is awaited.
	Drain bool
	// NoDelay: a Check or Read that a LeakyQueue would admit with a Delay is denied instead, and charges nothing, for callers
	// that cannot wait. RetryAfter is then the time until it would be admitted without one.
	NoDelay bool
	// Reserve is the number of units (negative means 0) that a Check or Read must leave free in every limit: it is admitted iff
	// cost plus Reserve would be, and charged its cost. It is for low-priority users of a shared counter.
	Reserve int64
	// Once, if not 0, names a Charge or Refund: of those with the same Key and Once it is applied once in OnceFor. Later ones change
	// nothing and are answered like a charge of 0.
	Once uint64
	// DenyLost: if the shard's counters are lost (see SetLost), a Check, Read or Reserve treats everything as spent that may have
	// been.
	DenyLost bool
	// Reservation is what Reserve, Extend, Spend, Settle and Cancel are about, else nil.
	Reservation *Reservation
}

// Home returns the region whose cluster has the counter, "" if each region has its own.
func (r *Request) Home() string {
	switch {
	case r.Limits != nil:
		return r.Limits.home
	case r.Reservation != nil:
		return r.Reservation.Home
	}
	return ""
}

// Decision answers a Request. When denied, it describes the limit that takes longest to admit the cost; when allowed, the one
// with the least remaining; among equals the first.
type Decision struct {
	// Allowed is always true for Charge, Refund and Reset.
	Allowed bool
	// Soft marks a check that only the soft margin admitted.
	Soft bool
	// Lost: it is denied only because counters were lost; see SetLost.
	Lost bool
	// Index is the described limit's index in the request's Limits.
	Index uint8
	// Limit is that limit's Count (Burst for buckets), Remaining what is left of it, in [0, Limit].
	Limit, Remaining int64
	// ResetAfter is the time until the limit is completely free, its minimum interval included.
	ResetAfter time.Duration
	// RetryAfter is the time until all limits would admit this cost if nothing else came: 0 if allowed, Never if they cannot.
	// It is exact: 1 ns earlier the cost would be denied.
	RetryAfter time.Duration
	// Delay is how long the caller must wait before acting (LeakyQueue).
	Delay time.Duration
}

// Left is Remaining as callers are told it: 0 if d denies r although its cost is left, or the limit blocks. Then time must pass, and
// spending less does not help.
func (d *Decision) Left(r *Request) int64 {
	l := r.Limits.At(int(d.Index))
	if d.Allowed || d.RetryAfter == Never || l.BlockFor == 0 && d.Remaining < mulSat(max(1, r.Cost), max(1, l.Cost)) {
		return d.Remaining
	}
	return 0
}

// normal returns r's verb and cost, with a cost above 0 for Check, Charge and Refund.
func (r *Request) normal() (Verb, int64) {
	verb, cost := r.Verb, r.Cost
	switch {
	case verb > Cancel, verb == Check && cost <= 0:
		verb = Read
	case verb == Reset || verb == Read || cost > 0:
	default: // charge or refund of nothing
		return status, 0
	}
	return verb, max(1, cost)
}

// status is the verb of a request that changes nothing and cannot be denied.
const status = Cancel + 1

// The methods below fill in a zero Decision. It is passed by pointer because copies of it would measurably slow down a check.

// apply answers a verb and returns its effects, with cost > 0 unless the verb is status.
func (c *counter) apply(r *Request, verb Verb, now, cost int64, d *Decision) (did effects) {
	switch verb {
	case Check:
		if c.check(r, now, cost, d) {
			did = changed
		}
		if d.Allowed {
			did |= charged
		}
		return did
	case Read:
		c.read(r, now, cost, d)
		return 0
	case Charge:
		c.charge(now, cost)
		did = charged | changed
	case Refund:
		c.refund(cost)
		did = changed
	}
	c.status(now, d)
	return did
}

// check decides a cost > 0 and charges it to every limit if all admit it, else to none. It reports whether the counter has
// changed: by a charge, or by a denial that counts.
func (c *counter) check(r *Request, now, cost int64, d *Decision) (kept bool) {
	if c.admits(r, now, cost, d) {
		c.charge(now, cost)
		c.describeLeast(d, now)
		return true
	}
	kept = c.countDenied(now, cost)
	if r.Drain && c.drain(now, cost, max(0, r.Reserve)) {
		kept = true
	}
	c.denied(r, now, cost, d)
	return kept
}

// read answers like check, without changing anything; c is settled to now.
func (c *counter) read(r *Request, now, cost int64, d *Decision) {
	if c.admits(r, now, cost, d) {
		c.describeLeast(d, now)
	} else {
		c.denied(r, now, cost, d)
	}
}

// admits reports whether every limit admits cost, with r's options, and if so fills in what d says about that.
func (c *counter) admits(r *Request, now, cost int64, d *Decision) bool {
	if r.NoDelay && c.delay(now) > 0 {
		return false
	}
	plans, soft := c.plans(), false
	for i := range plans {
		p, s := &plans[i], c.at(i)
		if p.kind == kindUnlimited {
			continue
		}
		need, fits := p.needs(cost, max(0, r.Reserve))
		if !fits || !s.admits(p, now, need) {
			return false
		}
		if p.limit < p.capacity && mulSat(cost, p.cost) > p.limit-s.used(p, now) {
			soft = true
		}
	}
	d.Allowed, d.Soft, d.Delay = true, soft, c.delay(now)
	return true
}

// needs returns the units that must be free for cost to leave reserve. fits is false if no limit can have that many.
func (p *plan) needs(cost, reserve int64) (units int64, fits bool) {
	units = mulSat(cost, p.cost)
	return addSat(units, reserve), units <= math.MaxInt64-reserve
}

// denied describes the limit that takes longest to admit cost with r's Reserve left. With NoDelay, that includes the time until
// all queues are empty. At least one limit denies it.
func (c *counter) denied(r *Request, now, cost int64, d *Decision) {
	plans := c.limits.plans
	worst, longest := 0, int64(-1)
	for i := range plans {
		p := &plans[i]
		need, fits := p.needs(cost, max(0, r.Reserve))
		wait := c.retry(i, now, need)
		if !fits && p.kind != kindUnlimited {
			wait = int64(Never)
		}
		if wait > longest {
			worst, longest = i, wait
		}
	}
	if r.NoDelay {
		for i := range plans {
			if wait := c.at(i).delay(&plans[i], now); wait > longest {
				worst, longest = i, wait
			}
		}
	}
	d.RetryAfter = time.Duration(longest)
	c.describe(d, worst, now)
}

// drain charges limits that have too little left for cost everything above reserve, except queues, and reports whether it
// charged anything.
func (c *counter) drain(now, cost, reserve int64) (drained bool) {
	plans := c.plans()
	for i := range plans {
		p, s := &plans[i], c.at(i)
		left := subSat(p.capacity-s.used(p, now), reserve)
		if left > 0 && !p.queue && mulSat(cost, p.cost) > left {
			s.charge(p, now, left)
			drained = true
		}
	}
	if drained {
		c.admissions++
	}
	return drained
}

// status answers a verb that cannot be denied.
func (c *counter) status(now int64, d *Decision) {
	d.Allowed = true
	c.describeLeast(d, now)
}

// charge charges cost > 0 to every limit and shadow.
func (c *counter) charge(now, cost int64) {
	plans := c.limits.plans
	for i := range plans {
		p, s := &plans[i], c.at(i)
		s.charge(p, now, mulSat(cost, p.cost))
		s.admit(p, now)
	}
	c.admissions++
	c.chargeShadows(now, cost)
}

// refund refunds cost > 0 to every limit, and to shadows that have certainly counted it.
func (c *counter) refund(cost int64) {
	for i := range c.states() {
		if p := c.plan(i); i < len(c.limits.plans) || !p.fills() {
			c.at(i).refund(p, mulSat(cost, p.cost))
		}
	}
}

// countDenied makes a denied check count, or block, where the limits say so, and reports whether any did.
func (c *counter) countDenied(now, cost int64) (kept bool) {
	plans := c.plans()
	for i := range plans {
		p, s := &plans[i], c.at(i)
		blocks := s.blocksBy(p, now, mulSat(cost, p.cost))
		if p.countDenied && p.kind == kindLog {
			s.chargeLog(p, now, mulSat(cost, p.cost))
			kept = true
		}
		if blocks || p.countDenied && !p.blocks && p.minInterval > 0 {
			s.last = now
			kept = true
		}
	}
	if kept {
		c.admissions++
	}
	return kept
}

// delay returns the longest delay (ns) of the limits.
func (c *counter) delay(now int64) time.Duration {
	var longest int64
	plans := c.limits.plans
	for i := range plans {
		longest = max(longest, c.at(i).delay(&plans[i], now))
	}
	return time.Duration(longest)
}

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

// describe fills in the fields of d about limit i.
func (c *counter) describe(d *Decision, i int, now int64) {
	p, s := &c.plans()[i], c.at(i)
	d.Index = uint8(i)
	d.Limit = c.limits.plans[i].limit
	if p.kind == kindUnlimited {
		d.Limit = math.MaxInt64
	}
	d.Remaining = s.remaining(p, now)
	d.ResetAfter = time.Duration(max(c.untilFree(i, now), c.interval(i, now)))
}

// remaining returns the units left of the limit, without the soft margin.
func (s *state) remaining(p *plan, now int64) int64 {
	if p.kind == kindUnlimited {
		return math.MaxInt64
	}
	return max(0, p.limit-s.used(p, now))
}
