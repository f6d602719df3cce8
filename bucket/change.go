package bucket

import (
	"math"
	"slices"
)

// Limits change under living counters: a rule file is edited, or two nodes run different
// files for a while and ask in turn. What was spent must survive that.
//
//   - A new limit of the same shape as an old one takes over its state exactly, so a
//     changed option, or the count of a window, just counts from now on.
//   - Any other new limit starts with what the old limit at its place has spent. If the two differ only in
//     how fast they drain, that is a copy; else it is at most what fills the new limit.
//   - A window that began with its first charge keeps its beginning: with another period it ends that long after
//     it, and if that has passed, it is over.
//   - An old limit that is not taken over stays as a shadow: it no longer decides, but every
//     charge is charged to it too. When it comes back into force it takes up its state,
//     as if it had never been gone.
//
// Shadows stay as long as the counter, even when they are free: a limit that comes back must
// know what was spent in its absence. So limits that go back and forth mint nothing. They are bounded: callers may bring other
// limits with every check.

// shadow is a limit no longer in force, and its state.
type shadow struct {
	limits *Limits
	place  int
	state  state
}

func (x *shadow) plan() *plan { return &x.limits.plans[x.place] }

// Bounds of the shadows of a counter. Above them, those are dropped that are free soonest, which forgets the least.
const (
	// maxShadows is one whole set.
	maxShadows = MaxLimits
	// maxFormer is how many sets they are of at most.
	maxFormer = 4
	// fewEntries is how many entries a counter keeps, shadows included, if no set that it knows keeps more; else it keeps MaxKeyEntries. Limits
	// that come with a check are held to it by default.
	fewEntries = 4096
)

// shadowBytes is the memory of a shadow.
const shadowBytes = 48

// withLimits returns a counter that continues c under the limits l, settled to now. c must not
// be used any more.
func (c *counter) withLimits(l *Limits, now int64) *counter {
	now = c.settle(now)
	old := c.candidates()
	n := newCounter(l, now, &more{rest: make([]state, 0, len(l.plans)-1)})
	n.admissions, n.cuts = c.admissions, c.cuts
	var origin [MaxLimits]int // 1 + the place among the limits in force until now, or 0
	for i := range l.plans {
		p := &l.plans[i]
		if p.stateless() {
			continue
		}
		if from := match(old, p, i); from != nil {
			*n.at(i), from.taken = from.state, true
			for j := range c.limits.plans {
				if from == &old[j] && c.limits.plans[j].cost == p.cost {
					origin[i] = j + 1
				}
			}
		} else if from := forebear(old[:len(c.limits.plans)], i, now); from != nil {
			n.at(i).inherit(p, from, now)
		}
		n.at(i).squeeze(p.maxEntries)
	}
	for i := range old {
		if o := &old[i]; !o.taken && !o.plan().stateless() {
			n.addShadow(o.shadow)
		}
	}
	n.boundShadows(now)
	n.takeGrants(c, &origin)
	return &n
}

// takeGrants makes what c has granted granted by n, whose limit i has taken over the state of place origin[i]-1 of c. What was
// charged to other states is held from now on.
func (c *counter) takeGrants(from *counter, origin *[MaxLimits]int) {
	l := from.ledger()
	if l == nil {
		return
	}
	for j := range l.grants {
		g, paid := &l.grants[j], uint16(0)
		for i, place := range origin {
			if place > 0 && g.isPaid(place-1) {
				paid |= 1 << i
			}
		}
		g.paid = paid
	}
	c.setGrants(l.grants)
}

// candidate is an old limit and its state, for a new limit to take over.
type candidate struct {
	shadow
	taken bool
}

// candidates lists the limits in force, by place, and then the shadows.
func (c *counter) candidates() []candidate {
	list := make([]candidate, 0, len(c.limits.plans)+maxShadows)
	for i := range c.limits.plans {
		list = append(list, candidate{shadow: shadow{c.limits, i, *c.at(i)}})
	}
	for _, x := range c.shadows() {
		list = append(list, candidate{shadow: x})
	}
	return list
}

// match returns the old limit whose state p continues, the one at its place i first, or nil.
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

// forebear returns the limit in force until now that the new one at place i starts from: the one
// at its place, or if none was there, the one with the most spent. It returns nil if none
// keeps a state.
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

// inherit charges what was spent of from to the new state s.
func (s *state) inherit(p *plan, from *candidate, now int64) {
	q := from.plan()
	if q.shape.likes(p.shape) {
		*s = from.state
		s.log = s.log.clone() // another state goes on with the original
		return
	}
	s.last = from.state.last
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

// addShadow keeps x. Call boundShadows after the last.
func (c *counter) addShadow(x shadow) {
	r := c.rarely()
	r.shadows = append(r.shadows, x)
}

// boundShadows drops shadows that are too many, and makes the logs of the others as short as they must be. All are settled to now. It
// writes to no ring, which may be another's too.
func (c *counter) boundShadows(now int64) {
	if len(c.shadows()) == 0 {
		return
	}
	r := c.more.rare
	for len(r.shadows) > maxShadows {
		soonest := 0
		for i := range r.shadows {
			if r.shadows[i].free(now) < r.shadows[soonest].free(now) {
				soonest = i
			}
		}
		r.shadows = slices.Delete(r.shadows, soonest, soonest+1)
	}
	for sets := r.former(); len(sets) > maxFormer; sets = r.former() {
		soonest, wait := 0, int64(math.MaxInt64)
		for i, l := range sets {
			longest := int64(0)
			for j := range r.shadows {
				if x := &r.shadows[j]; x.limits == l {
					longest = max(longest, x.free(now))
				}
			}
			if longest < wait {
				soonest, wait = i, longest
			}
		}
		r.shadows = slices.DeleteFunc(r.shadows, func(x shadow) bool { return x.limits == sets[soonest] })
	}
	most := c.entriesEach()
	for i := range r.shadows {
		x := &r.shadows[i]
		x.state.squeeze(min(most, x.plan().maxEntries))
	}
}

// free is state.free.
func (x *shadow) free(now int64) int64 { return x.state.free(x.plan(), now) }

// former returns the sets that the shadows are of.
func (r *rare) former() []*Limits {
	sets := make([]*Limits, 0, maxFormer+1)
	for i := range r.shadows {
		if l := r.shadows[i].limits; !slices.Contains(sets, l) {
			sets = append(sets, l)
		}
	}
	return sets
}

// entriesEach returns how many entries the log of each shadow may have: a part of what the limits in force leave, at least 1.
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

// chargeShadows charges cost to every shadow, by state.charge or state.chargeLate.
func (c *counter) chargeShadows(now, cost int64, charge func(s *state, p *plan, now, units int64)) {
	list := c.shadows()
	if len(list) == 0 {
		return
	}
	most := c.entriesEach()
	for i := range list {
		x := &list[i]
		charge(&x.state, x.plan(), now, mulSat(cost, x.plan().cost))
		x.state.last = now
		if x.plan().maxEntries > most {
			v := x.state.span()
			for int(v.n) > most {
				v = x.state.mergeOldest(v)
			}
			x.state.setSpan(v)
		}
	}
}

// refundShadows gives cost back to every shadow.
func (c *counter) refundShadows(cost int64) {
	list := c.shadows()
	for i := range list {
		x := &list[i]
		x.state.refund(x.plan(), mulSat(cost, x.plan().cost))
	}
}
