package bucket

import (
	"cmp"
	"slices"
)

// Limits change under live counters: a rule file is edited, or two nodes have different files for a while and check in turn.
// Spent units must survive that.
//
//   - A new limit with the shape of an old one takes over its state exactly, so a changed option or count applies from now on.
//   - Any other new limit starts with the units spent of the old limit at its index: as a copy if the two differ only in how
//     fast they drain, otherwise with at most what fills the new limit.
//   - A window that began with its first charge keeps its beginning: with another period it ends that long after it, possibly
//     at once.
//   - An old limit that is not taken over becomes a shadow: it no longer decides, but every charge is charged to it too. When
//     it comes back into force, its state is taken up as if it had always been in force.
//
// Shadows stay as long as the counter, even when free, because a returning limit must know what was spent in its absence. So
// alternating limits admit nothing extra. Their number is bounded, because callers may send other limits with every check.

// shadow is a former limit and its state.
type shadow struct {
	limits *Limits
	// set is the number of limits in the table, once the counter is accounted for there.
	set   uint32
	place int
	state state
}

func (x *shadow) plan() *plan { return &x.limits.plans[x.place] }

// Bounds of the shadows of a counter. Above them, the shadows that become free first are dropped, which loses the least.
const (
	// maxShadows is one full set.
	maxShadows = MaxLimits
	// maxFormer is the maximum number of sets that they belong to.
	maxFormer = 4
	// fewEntries is the number of log entries that a counter keeps, shadows included, unless one of its sets keeps more; then
	// it is MaxKeyEntries. It is the default bound of limits that come with a check.
	fewEntries = 4096
)

// withLimits returns a counter that continues c under l, settled to now. c must not be used any more.
func (c *counter) withLimits(l *Limits, now int64) *counter {
	now = c.settle(now)
	old := c.candidates()
	n := newCounter(l, now, &more{rest: make([]state, 0, len(l.plans)-1)})
	n.admissions, n.cuts = c.admissions, c.cuts
	for i := range l.plans {
		p := &l.plans[i]
		if p.stateless() {
			continue
		}
		if from := match(old, p, i); from != nil {
			*n.at(i), from.taken = from.state, true
		} else {
			*n.at(i) = started(p, i, old[:len(c.limits.plans)], now)
		}
		n.at(i).squeeze(p.maxEntries)
	}
	for i := range old {
		if o := &old[i]; !o.taken && !o.plan().stateless() {
			n.addShadow(o.shadow)
		}
	}
	n.boundShadows(now)
	n.keepLedger(c)
	return &n
}

// keepLedger gives c, which continues from, its ledger.
func (c *counter) keepLedger(from *counter) {
	if from.ledger() == nil {
		return
	}
	m := c.ensureMore()
	m.ledger, m.store, m.lo, m.grants = from.more.ledger, from.more.store, from.more.lo, append(m.grants[:0], from.more.grants...)
	c.hold()
}

// candidate is an old limit and its state that a new limit may take over.
type candidate struct {
	shadow
	taken bool
}

// stateFor returns the state as one of p. The time of a denial that blocks is no time of an admitted check, nor the reverse.
func (c *candidate) stateFor(p *plan) state {
	s := c.state
	if c.plan().blocks != p.blocks {
		s.last = never
	}
	return s
}

// candidates lists the limits in force in order, then the shadows.
func (c *counter) candidates() []candidate {
	list := make([]candidate, 0, len(c.limits.plans)+maxShadows)
	for i := range c.limits.plans {
		list = append(list, candidate{shadow: shadow{limits: c.limits, place: i, state: *c.at(i)}})
	}
	for _, x := range c.shadows() {
		list = append(list, candidate{shadow: x})
	}
	return list
}

// match returns the old limit whose state p continues, preferring index i, or nil.
func match(old []candidate, p *plan, i int) *candidate {
	if i < len(old) && !old[i].taken && old[i].plan().shape == p.shape {
		return &old[i]
	}
	for j := range old {
		if !old[j].taken && old[j].plan().shape == p.shape {
			return &old[j]
		}
	}
	return nil
}

// forebear returns the limit so far in force that the new one at index i starts from: the one at its index, otherwise the one
// with the most spent units. It is nil if none has a state.
func forebear(old []candidate, i int, now int64) (from *candidate) {
	if i < len(old) && !old[i].plan().stateless() {
		return &old[i]
	}
	most := int64(-1)
	for j := range old {
		if p := old[j].plan(); !p.stateless() && old[j].state.used(p, now) > most {
			from, most = &old[j], old[j].state.used(p, now)
		}
	}
	return from
}

// inherit charges the units spent of from to the new state s.
func (s *state) inherit(p *plan, from *candidate, now int64) {
	q := from.plan()
	if q.shape.likes(p.shape) {
		*s = from.stateFor(p)
		s.log = s.log.clone() // another state continues with the original
		return
	}
	s.last = from.stateFor(p).last
	spent := min(from.state.used(q, now), p.capacity)
	if spent == 0 {
		return
	}
	if p.beginsAtHit() && q.beginsAtHit() {
		s.spent, s.aux = spent, addSat(subSat(from.state.aux, q.period), p.period)
		s.settleFixed(p, now)
		return
	}
	s.charge(p, now, spent)
	if p.kind == kindFlow && q.kind == kindFlow && spent == from.state.spent {
		s.aux, _ = mulDiv(from.state.aux, p.period, q.period)
	}
}

// addShadow adds x. Call boundShadows after the last one.
func (c *counter) addShadow(x shadow) {
	m := c.ensureMore()
	m.shadows = append(m.shadows, x)
}

// boundShadows drops excess shadows and shortens the logs of the others. All are settled to now. It does not write to rings,
// which may be shared.
func (c *counter) boundShadows(now int64) {
	if len(c.shadows()) == 0 {
		return
	}
	m := c.more
	for len(m.shadows) > maxShadows {
		soonest := 0
		for i := range m.shadows {
			if m.shadows[i].free(now) < m.shadows[soonest].free(now) {
				soonest = i
			}
		}
		m.shadows = slices.Delete(m.shadows, soonest, soonest+1)
	}
	for sets := m.former(); len(sets) > maxFormer; sets = m.former() {
		longest := func(l *Limits) (wait int64) {
			for i := range m.shadows {
				if x := &m.shadows[i]; x.limits == l {
					wait = max(wait, x.free(now))
				}
			}
			return wait
		}
		soonest := slices.MinFunc(sets, func(a, b *Limits) int { return cmp.Compare(longest(a), longest(b)) })
		m.shadows = slices.DeleteFunc(m.shadows, func(x shadow) bool { return x.limits == soonest })
	}
	most := c.entriesEach()
	for i := range m.shadows {
		x := &m.shadows[i]
		x.state.squeeze(min(most, x.plan().maxEntries))
	}
}

func (x *shadow) free(now int64) int64 { return x.state.free(x.plan(), now) }

// former returns the sets that the shadows belong to.
func (m *more) former() []*Limits {
	sets := make([]*Limits, 0, maxFormer+1)
	for i := range m.shadows {
		if l := m.shadows[i].limits; !slices.Contains(sets, l) {
			sets = append(sets, l)
		}
	}
	return sets
}

// entriesEach returns the maximum log entries of each shadow: an equal part of what the limits in force leave, at least 1.
func (c *counter) entriesEach() int {
	list, all, logs := c.shadows(), fewEntries, 0
	if c.limits.entries > fewEntries {
		all = MaxKeyEntries
	}
	for i := range list {
		x := &list[i]
		if x.plan().maxEntries > 0 {
			logs++
		}
		if x.limits.entries > fewEntries {
			all = MaxKeyEntries
		}
	}
	return max(1, (all-c.limits.entries)/max(1, logs))
}

// chargeShadows charges cost to every shadow.
func (c *counter) chargeShadows(now, cost int64) {
	list := c.shadows()
	if len(list) == 0 {
		return
	}
	most := c.entriesEach()
	for i := range list {
		x := &list[i]
		x.state.charge(x.plan(), now, mulSat(cost, x.plan().cost))
		x.state.admit(x.plan(), now)
		if x.plan().maxEntries > most {
			v := x.state.span()
			for int(v.n) > most {
				v = x.state.mergeOldest(v)
			}
			x.state.setSpan(v)
		}
	}
}
