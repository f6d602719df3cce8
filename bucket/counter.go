package bucket

import "slices"

// counter is what one key has spent. It takes 64 bytes with one limit, and no
// more behind pointers unless the limit keeps a log.
type counter struct {
	// limits is the set that the states belong to, place by place.
	limits *Limits
	more   *more
	// now is the time (Unix ns) of the counter: the last at which it was used.
	// Every state is settled to it.
	now int64
	// admissions counts what moves state.last, cuts what was given back, in steps of oneCut. They
	// let a receipt see what has happened since. Both wrap. The bits of cuts below oneCut are flags.
	admissions, cuts uint32
	first            state
}

const (
	// flagDirty: the key is in the shard's journal.
	flagDirty uint32 = 1 << iota
	// flagHeld: there may be receipts for this very counter.
	flagHeld
	// flagAgain: the key was used again since its counter was made, or last spared by an eviction.
	flagAgain
	oneCut
)

// has reports whether the flag is set.
func (c *counter) has(flag uint32) bool { return c.cuts&flag != 0 }

// more holds what most counters do not need.
type more struct {
	// rest are the states of the limits after the first.
	rest []state
	// rare is nil unless the limits have changed or something was granted.
	rare *rare
}

// rare holds what few counters need.
type rare struct {
	// shadows are states of limits that are no longer in force, see change.go.
	shadows []shadow
	// ledger is what is granted, or nil.
	ledger *ledger
}

// rarely returns the rare part of c, made if need be.
func (c *counter) rarely() *rare {
	if c.more == nil {
		c.more = new(more)
	}
	if c.more.rare == nil {
		c.more.rare = new(rare)
	}
	return c.more.rare
}

// shadows returns the shadows of c.
func (c *counter) shadows() []shadow {
	if c.more == nil || c.more.rare == nil {
		return nil
	}
	return c.more.rare.shadows
}

// newCounter returns a counter that nothing was spent of. If l has several limits, it uses m for
// the rest, and fills it; m may then not be nil.
func newCounter(l *Limits, now int64, m *more) counter {
	c := counter{limits: l, now: now, first: newState(&l.plans[0])}
	if n := len(l.plans) - 1; n > 0 {
		m.rest, m.rare = m.rest[:0], nil
		for i := range n {
			m.rest = append(m.rest, newState(&l.plans[i+1]))
		}
		c.more = m
	}
	return c
}

// letGo makes m, working space that was used, keep nothing alive.
func (m *more) letGo() {
	clear(m.rest)
	m.rare = nil
}

// copyTo returns a copy of c that uses m for what lies behind pointers. The rings of logs are
// shared, unless something is granted: settling the copy leaves the original alone, charging it would not.
func (c *counter) copyTo(m *more) counter {
	d := *c
	if c.more != nil {
		m.rest = append(m.rest[:0], c.more.rest...)
		m.rare = c.more.rare.clone()
		d.more = m
	}
	if d.ledger() != nil {
		d.unshare() // settling charges leases that are over
	}
	return d
}

// unshare gives c rings of its own.
func (c *counter) unshare() {
	for i := range c.limits.plans {
		c.at(i).log = c.at(i).log.clone()
	}
	list := c.shadows()
	for i := range list {
		list[i].state.log = list[i].state.log.clone()
	}
}

// clone returns a copy of r; r may be nil.
func (r *rare) clone() *rare {
	if r == nil {
		return nil
	}
	return &rare{slices.Clone(r.shadows), r.ledger.clone()}
}

// clone returns a copy of c on the heap, with everything behind pointers its own but the rings.
func (c *counter) clone() *counter {
	if c.more == nil {
		d := *c
		return &d
	}
	d := c.copyTo(new(more))
	return &d
}

// at returns the state of limit i.
func (c *counter) at(i int) *state {
	if i == 0 {
		return &c.first
	}
	return &c.more.rest[i-1]
}

// settle moves the counter to now, or leaves it where it is if that is later, and returns its time.
func (c *counter) settle(now int64) int64 {
	if now <= c.now {
		return c.now
	}
	if c.ledger() != nil {
		c.lapse(now)
	}
	c.settleStates(now)
	return now
}

// settleStates moves the states to now, which is not before the counter's time.
func (c *counter) settleStates(now int64) {
	c.first.settle(&c.limits.plans[0], c.now, now)
	if c.more != nil {
		for i := range c.more.rest {
			c.more.rest[i].settle(&c.limits.plans[i+1], c.now, now)
		}
		list := c.shadows()
		for i := range list {
			x := &list[i]
			x.state.settle(x.plan(), c.now, now)
		}
	}
	c.now = now
}

// free reports whether the counter is wholly free at now, so that it is as good as none. It
// does not change the counter.
func (c *counter) free(now int64) bool {
	if now < c.now {
		now = c.now
	}
	if l := c.ledger(); l != nil {
		if l.grants[len(l.grants)-1].end > now {
			return false
		}
		d := c.copyTo(new(more))
		d.settle(now)
		return d.free(now)
	}
	if c.more != nil {
		list := c.shadows()
		for i := range list {
			if x := &list[i]; !x.state.freeAt(x.plan(), c.now, now) {
				return false
			}
		}
		for i := range c.more.rest {
			if !c.more.rest[i].freeAt(&c.limits.plans[i+1], c.now, now) {
				return false
			}
		}
	}
	return c.first.freeAt(&c.limits.plans[0], c.now, now)
}

// freeAt reports whether s, settled to last, will be as good as new at now ≥ last.
func (s *state) freeAt(p *plan, last, now int64) bool {
	c := *s
	c.settle(p, last, now)
	return c.used(p, now) == 0 && c.interval(p, now) == 0 && c.atRest(p, now)
}

// entryBytes is the memory of a counter with one limit and its share of the table: its own
// 64 bytes, 80 of the LRU's entry and about 56 of the map. What the garbage
// collector needs on top is not counted.
const entryBytes = 200

// The memory of a more and of a rare without what they hold.
const (
	moreBytes = 32
	rareBytes = 32
)

// bytes returns the approximate memory of c.
func (c *counter) bytes() int64 {
	n := entryBytes + c.first.log.bytes()
	if m := c.more; m != nil {
		n += moreBytes + 32*int64(cap(m.rest)) + m.rare.bytes()
		for i := range m.rest {
			n += m.rest[i].log.bytes()
		}
	}
	return n
}

// bytes returns the approximate memory of r; r may be nil.
func (r *rare) bytes() int64 {
	if r == nil {
		return 0
	}
	n := rareBytes + shadowBytes*int64(cap(r.shadows)) + r.ledger.bytes()
	for i := range r.shadows {
		n += r.shadows[i].state.log.bytes()
	}
	return n
}
