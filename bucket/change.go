package bucket

import (
	"cmp"
	"slices"
)

// Limits change under live counters: a rule file is edited, or two nodes have different files for a while and check in turn.
// Spent units must survive that, and must not deny for longer than the new limit does when it is full.
//
//   - A change takes effect at the counter's time, which is that of its last charge, whenever it is noticed. So reads and denied
//     checks tell what later ones will do, however many there are. A denied check keeps the change, but not if the counter is
//     forgotten under the old limits first, as it is when nobody asks.
//   - A new limit with the shape of one in force takes over its state, so a changed option applies from now on.
//   - Any other new limit starts with the units spent of the old limit at its index: as a copy if the two differ only in how
//     fast they drain and how full they can be. A former limit at its index bounds what is left; see started.
//   - A window that began with its first charge keeps its beginning: with another period it ends that long after it, possibly
//     at once.
//   - An old limit that is not taken over becomes a shadow: it no longer decides, but every charge is charged to it too. When
//     it comes back into force, its state is taken up as if it had always been in force.
//   - What other limits have admitted fills a bucket at most, be it new or a shadow: only its own charges leave a debt.
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

// withLimits returns a counter that continues c under l, at its time, or at now if it is free and may be forgotten. c must not be
// used any more.
func (c *counter) withLimits(l *Limits, now int64) *counter {
	if c.free(now) {
		c.settle(now)
	}
	at, old := c.now, c.candidates()
	n := newCounter(l, at, &more{rest: make([]state, 0, len(l.plans)-1)})
	n.admissions, n.cuts = c.admissions, c.cuts
	for i := range l.plans {
		if p := &l.plans[i]; !p.stateless() {
			*n.at(i) = old.stateOf(p, i, at)
			n.at(i).squeeze(p, p.maxEntries)
		}
	}
	for i := range old {
		if o := &old[i]; !o.taken && !o.plan().stateless() {
			n.addShadow(o.shadow)
		}
	}
	n.boundShadows(at)
	n.keepLedger(c)
	return &n
}

// endsBefore reports whether c is free, and may be forgotten, before next is, which is c under other limits.
func (c *counter) endsBefore(next *counter) bool {
	return c.granted() == 0 && next.now == c.now && c.lasts(c.states()) < next.lasts(len(next.limits.plans))
}

// lasts returns the time (ns) until the first n states of c are free.
func (c *counter) lasts(n int) (longest int64) {
	for i := range n {
		longest = max(longest, c.at(i).free(c.plan(i), c.now))
	}
	return longest
}

// keepLedger gives c, which continues from, its ledger.
func (c *counter) keepLedger(from *counter) {
	if from.ledger() == nil {
		return
	}
	m := c.ensureMore()
	m.ledger, m.shard, m.lo, m.grants = from.more.ledger, from.more.shard, from.more.lo, append(m.grants[:0], from.more.grants...)
	c.hold()
}

// candidate is an old limit and its state that a new limit may take over.
type candidate struct {
	shadow
	// former: it was a shadow.
	former, taken bool
}

// left returns the units that the limit has left at now.
func (c *candidate) left(now int64) int64 {
	return max(0, c.plan().capacity-c.state.used(c.plan(), now))
}

// candidates are the limits in force in order, then the shadows.
type candidates []candidate

func (c *counter) candidates() candidates {
	list := make(candidates, 0, len(c.limits.plans)+len(c.shadows()))
	for i := range c.limits.plans {
		list = append(list, candidate{shadow: shadow{limits: c.limits, place: i, state: *c.at(i)}})
	}
	for _, x := range c.shadows() {
		list = append(list, candidate{shadow: x, former: true})
	}
	return list
}

// take returns the candidate whose state p continues, preferring index i, or nil.
func (old candidates) take(p *plan, i int) *candidate {
	fits := func(x *candidate) bool { return !x.taken && x.plan().shape == p.shape }
	if i >= len(old) || old[i].former || !fits(&old[i]) {
		i = 0
		for i < len(old) && !fits(&old[i]) {
			i++
		}
	}
	if i == len(old) {
		return nil
	}
	old[i].taken = true
	return &old[i]
}

// stateOf returns the state that p continues, or starts with, at index i, all being settled to now.
func (old candidates) stateOf(p *plan, i int, now int64) state {
	if from := old.take(p, i); from != nil {
		return from.state
	}
	return old.started(p, i, now)
}

// started returns the state with which p, which continues none, starts at index i. What is left of it is at most what a former
// limit there has left and p can have more than that, or else what was left until now: lowering a limit and raising it
// again does not refill it.
func (old candidates) started(p *plan, i int, now int64) state {
	s, left := newState(p), int64(0)
	if from := old.forebear(i, now); from != nil {
		s.inherit(p, from, now)
		left = from.left(now)
	}
	for j := range old {
		if x := &old[j]; x.former && x.place == i {
			most := max(left, addSat(x.left(now), max(0, p.capacity-x.plan().capacity)))
			if excess := p.capacity - s.used(p, now) - most; excess > 0 {
				s.charge(p, now, excess)
			}
		}
	}
	return s
}

// forebear returns the limit so far in force that the new one at index i starts from: the one at its index, otherwise the one
// with the most spent units. It is nil if none has a state.
func (old candidates) forebear(i int, now int64) (from *candidate) {
	if i < len(old) && !old[i].former && !old[i].plan().stateless() {
		return &old[i]
	}
	most := int64(-1)
	for j := range old {
		if p := old[j].plan(); !old[j].former && !p.stateless() && old[j].state.used(p, now) > most {
			from, most = &old[j], old[j].state.used(p, now)
		}
	}
	return from
}

// inherit charges the units spent of from to the new state s. The time of a denial that blocks is no time of an admitted check,
// nor the reverse.
func (s *state) inherit(p *plan, from *candidate, now int64) {
	q, was := from.plan(), from.state
	if q.blocks != p.blocks {
		was.last = never
	}
	if q.shape.likes(p.shape) {
		*s = was
		s.log = s.log.clone() // another state continues with the original
		s.cut(p)
		return
	}
	s.last = was.last
	spent := was.used(q, now)
	if p.fills() {
		spent = min(spent, p.capacity)
	}
	if spent == 0 {
		return
	}
	if p.beginsAtHit() && q.beginsAtHit() {
		s.spent, s.aux = spent, addSat(subSat(was.aux, q.period), p.period)
		s.settleFixed(p, now)
		return
	}
	s.charge(p, now, spent)
	if p.kind == kindFlow && q.kind == kindFlow && spent == was.spent {
		s.aux, _ = mulDiv(was.aux, p.period, q.period)
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
		x.state.squeeze(x.plan(), min(most, x.plan().maxEntries))
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
		x.state.chargeUpTo(x.plan(), now, mulSat(cost, x.plan().cost))
		x.state.admit(x.plan(), now)
		if v := x.state.span(); x.plan().maxEntries > most && int(v.n) > most {
			x.state.setSpan(x.state.thin(x.plan(), v, most))
		}
	}
}
