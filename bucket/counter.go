package bucket

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
	oneCut
)

// has reports whether the flag is set.
func (c *counter) has(flag uint32) bool { return c.cuts&flag != 0 }

// more holds what most counters do not need.
type more struct {
	// rest are the states of the limits after the first.
	rest []state
	// shadows are states of limits that are no longer in force, see change.go.
	shadows []shadow
}

// newCounter returns a counter that nothing was spent of. If l has several limits, it uses m for
// the rest, and fills it; m may then not be nil.
func newCounter(l *Limits, now int64, m *more) counter {
	c := counter{limits: l, now: now, first: newState(&l.plans[0])}
	if n := len(l.plans) - 1; n > 0 {
		m.rest, m.shadows = m.rest[:0], m.shadows[:0]
		for i := range n {
			m.rest = append(m.rest, newState(&l.plans[i+1]))
		}
		c.more = m
	}
	return c
}

// copyTo returns a copy of c that uses m for what lies behind pointers. The rings of logs are
// shared: settling the copy leaves the original alone, charging it would not.
func (c *counter) copyTo(m *more) counter {
	d := *c
	if c.more != nil {
		m.rest = append(m.rest[:0], c.more.rest...)
		m.shadows = append(m.shadows[:0], c.more.shadows...)
		d.more = m
	}
	return d
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
	c.first.settle(&c.limits.plans[0], c.now, now)
	if c.more != nil {
		for i := range c.more.rest {
			c.more.rest[i].settle(&c.limits.plans[i+1], c.now, now)
		}
		for i := range c.more.shadows {
			x := &c.more.shadows[i]
			x.state.settle(x.plan(), c.now, now)
		}
	}
	c.now = now
	return now
}

// free reports whether the counter is wholly free at now, so that it is as good as none. It
// does not change the counter.
func (c *counter) free(now int64) bool {
	if now < c.now {
		now = c.now
	}
	if c.more != nil {
		for i := range c.more.shadows {
			if x := &c.more.shadows[i]; !x.state.freeAt(x.plan(), c.now, now) {
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
	return c.used(p, now) == 0 && c.interval(p, now) == 0
}

// entryBytes is the memory of a counter with one limit and its share of the table: its own
// 64 bytes, 80 of the LRU's entry and about 56 of the map. What the garbage
// collector needs on top is not counted.
const entryBytes = 200

// bytes returns the approximate memory of c.
func (c *counter) bytes() int64 {
	n := entryBytes + c.first.log.bytes()
	if m := c.more; m != nil {
		n += 48 + 32*int64(cap(m.rest)) + shadowBytes*int64(cap(m.shadows))
		for i := range m.rest {
			n += m.rest[i].log.bytes()
		}
		for i := range m.shadows {
			n += m.shadows[i].state.log.bytes()
		}
	}
	return n
}
