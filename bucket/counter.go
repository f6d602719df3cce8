package bucket

// counter is what one key has spent, in the form in which it is decided. A table keeps it as a record (store.go).
type counter struct {
	// limits is the set that the states belong to, by index.
	limits *Limits
	more   *more
	// now is the counter's time (Unix ns): its last change, as replicas know it. Every state is settled to it.
	now int64
	// admissions counts changes of state.last, cuts counts refunds in steps of oneCut; a receipt compares both with its own.
	// Both wrap. The bits of cuts below oneCut are flags.
	admissions, cuts uint32
	first            state

	// slot is where it is kept, set the number of limits in the table, and birth tells it from other counters of the key, before
	// and after.
	slot, set uint32
	birth     uint16
}

const (
	// flagHeld: receipts for this counter may exist.
	flagHeld uint32 = 1 << iota
	// flagSide: its record has a side.
	flagSide
	// flagAgain: the key was used again since its counter was created or last spared by an eviction.
	flagAgain
	// flagGrant: it is no counter but a grant; see ledger.go.
	flagGrant
	oneCut
)

func (c *counter) has(flag uint32) bool { return c.cuts&flag != 0 }

// more has data that most counters do not need.
type more struct {
	// rest are the states of the limits after the first.
	rest []state
	// shadows are states of former limits; see change.go.
	shadows []shadow
	// ledger has what is granted; see there. grants are the first few or, where shard is not nil, yet to be listed, and plans have what all
	// hold subtracted.
	ledger *ledger
	grants []grant
	shard  *shard
	lo     uint64 // of their keys
	plans  []plan
}

func (c *counter) ensureMore() *more {
	if c.more == nil {
		c.more = new(more)
	}
	return c.more
}

func (c *counter) shadows() []shadow {
	if c.more == nil {
		return nil
	}
	return c.more.shadows
}

// newCounter returns a counter without spent units. If l has several limits, their states use m, which must then not be nil.
func newCounter(l *Limits, now int64, m *more) (c counter) {
	c.begin(l, now, m)
	return c
}

// begin makes c, which is zero, what newCounter returns.
func (c *counter) begin(l *Limits, now int64, m *more) {
	c.limits, c.now = l, now
	c.first = newState(&l.plans[0])
	if n := len(l.plans) - 1; n > 0 {
		m.release()
		for i := range n {
			m.rest = append(m.rest, newState(&l.plans[i+1]))
		}
		c.more = m
	}
}

// release empties m, a buffer, so that it keeps nothing alive.
func (m *more) release() {
	clear(m.rest)
	clear(m.shadows)
	clear(m.plans)
	m.rest, m.shadows, m.ledger, m.shard, m.grants, m.plans = m.rest[:0], m.shadows[:0], nil, nil, m.grants[:0], m.plans[:0]
}

// copyTo returns a copy of c that uses m for data behind pointers, except for rings of logs and the ledger: settling the copy does
// not change these, charging would change the rings.
func (c *counter) copyTo(m *more) counter {
	d := *c
	if c.more != nil {
		m.release()
		m.rest = append(m.rest, c.more.rest...)
		m.shadows = append(m.shadows, c.more.shadows...)
		m.ledger, m.shard, m.lo = c.more.ledger, c.more.shard, c.more.lo
		m.grants = append(m.grants, c.more.grants...)
		m.plans = append(m.plans, c.more.plans...)
		d.more = m
	}
	return d
}

// under is copyTo under the limits l.
func (c *counter) under(l *Limits, now int64, m *more) counter {
	seen := c.copyTo(m)
	if !c.limits.Equal(l) {
		return *seen.withLimits(l, now)
	}
	return seen
}

// unshare gives c its own rings.
func (c *counter) unshare() {
	for i := range c.states() {
		s := c.at(i)
		s.log = s.log.clone()
	}
}

// states returns the number of states, those of shadows included.
func (c *counter) states() int {
	if c.more == nil {
		return 1
	}
	return 1 + len(c.more.rest) + len(c.more.shadows)
}

// at returns the state i: first those of the limits, then those of shadows.
func (c *counter) at(i int) *state {
	if i == 0 {
		return &c.first
	}
	if n := len(c.more.rest); i > n {
		return &c.more.shadows[i-1-n].state
	}
	return &c.more.rest[i-1]
}

// plan returns the plan of the state i.
func (c *counter) plan(i int) *plan {
	if n := len(c.limits.plans); i >= n {
		return c.more.shadows[i-n].plan()
	}
	return &c.limits.plans[i]
}

// settle moves the counter to now if that is later, and returns its time.
func (c *counter) settle(now int64) int64 {
	if now <= c.now {
		return c.now
	}
	c.settleStates(now)
	return now
}

// settleStates moves the states to now, which is not before the counter's time.
func (c *counter) settleStates(now int64) {
	for i := range c.states() {
		c.at(i).settle(c.plan(i), c.now, now)
	}
	c.now = now
}

// free reports whether the counter is completely free at now, which equals no counter under its present limits. Only a min_interval
// of former limits is forgotten with it. It does not change the counter. An open grant never is, nor is
// an outcome before its deadline.
func (c *counter) free(now int64) bool {
	switch {
	case c.has(flagGrant):
		return c.ending() != open && now >= c.now
	case c.granted() > 0:
		return false
	}
	now = max(now, c.now)
	for i := range c.states() {
		if !c.at(i).freeAt(c.plan(i), c.now, now) {
			return false
		}
	}
	return true
}

// freeAt reports whether s, settled to last, is completely free at now ≥ last.
func (s *state) freeAt(p *plan, last, now int64) bool {
	c := *s
	c.settle(p, last, now)
	return c.used(p, now) == 0 && c.interval(p, now) == 0 && c.atRest(p, now)
}

// LeastBytes is the accounted memory of the smallest counter: its record, and its part of the index and of the pages.
const LeastBytes = recordBytes + 10
