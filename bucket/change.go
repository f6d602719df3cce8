package bucket

// Limits change under living counters: a rule file is edited, or two nodes run different
// files for a while and ask in turn. What was spent must survive that.
//
//   - A new limit of the same shape as an old one takes over its state exactly, so a
//     changed count, burst or option just counts from now on.
//   - Any other new limit starts with what the old limit at its place has spent, at most full.
//   - An old limit that is not taken over stays as a shadow: it no longer decides, but
//     every charge is charged to it too, until it is wholly free. When it
//     comes back into force it takes up its state, as if it had never been gone.
//
// So limits that go back and forth mint nothing.

// shadow is a limit no longer in force, and its state.
type shadow struct {
	plan  plan
	state state
}

// maxShadows bounds the shadows of a counter. Above it the one that is free soonest is dropped, which
// costs the least memory of what was spent.
const maxShadows = 4

// shadowBytes is the memory of a shadow.
const shadowBytes = 200

// withLimits returns a counter that continues c, settled to now, under the limits l. c is
// not changed, but must not be charged any more.
func (c *counter) withLimits(l *Limits, now int64) *counter {
	now = c.settle(now)
	old := c.states()
	n := newCounter(l, now, &more{rest: make([]state, 0, len(l.plans)-1)})
	n.admissions, n.cuts = c.admissions, c.cuts
	for i := range l.plans {
		p := &l.plans[i]
		if p.stateless() {
			continue
		}
		if from := match(old, p, i); from >= 0 {
			*n.at(i) = old[from].state
			old[from].taken = true
			continue
		}
		if i < len(c.limits.plans) {
			n.at(i).carry(p, &old[i], now)
		}
	}
	for i := range old {
		if o := &old[i]; !o.taken && !o.plan.stateless() && !o.state.freeAt(&o.plan, now, now) {
			n.addShadow(o.shadow, now)
		}
	}
	return &n
}

// candidate is an old limit and its state, for a new limit to take over.
type candidate struct {
	shadow
	taken bool
}

// states lists the limits in force, by place, and then the shadows.
func (c *counter) states() []candidate {
	list := make([]candidate, 0, len(c.limits.plans)+maxShadows)
	for i := range c.limits.plans {
		list = append(list, candidate{shadow: shadow{c.limits.plans[i], *c.at(i)}})
	}
	if c.more != nil {
		for _, x := range c.more.shadows {
			list = append(list, candidate{shadow: x})
		}
	}
	return list
}

// match returns the place in old of the state that p continues, its own place i first, or −1.
func match(old []candidate, p *plan, i int) int {
	if i < len(old) && !old[i].taken && old[i].plan.shape == p.shape {
		return i
	}
	for j := range old {
		if !old[j].taken && old[j].plan.shape == p.shape {
			return j
		}
	}
	return -1
}

// carry charges what the old limit has spent to the new state s, at most what fills it.
func (s *state) carry(p *plan, old *candidate, now int64) {
	if old.plan.stateless() {
		return
	}
	s.last = old.state.last
	spent := min(old.state.used(&old.plan, now), p.capacity)
	if spent == 0 {
		return
	}
	s.charge(p, now, spent)
	if p.kind == kindFlow && old.plan.kind == kindFlow && spent == old.state.spent {
		s.aux, _ = mulDiv(old.state.aux, p.period, old.plan.period)
	}
}

// addShadow keeps x, which is settled to now.
func (c *counter) addShadow(x shadow, now int64) {
	if c.more == nil {
		c.more = new(more)
	}
	list := append(c.more.shadows, x)
	if len(list) > maxShadows {
		soonest := 0
		for i := range list {
			if list[i].state.free(&list[i].plan, now) < list[soonest].state.free(&list[soonest].plan, now) {
				soonest = i
			}
		}
		list = append(list[:soonest], list[soonest+1:]...)
	}
	c.more.shadows = list
}

// settleShadows moves the shadows from the counter's time to now and drops those that are free.
func (c *counter) settleShadows(now int64) {
	kept := c.more.shadows[:0]
	for _, x := range c.more.shadows {
		x.state.settle(&x.plan, c.now, now)
		if x.state.free(&x.plan, now) > 0 {
			kept = append(kept, x)
		}
	}
	clear(c.more.shadows[len(kept):])
	c.more.shadows = kept
}

// chargeShadows charges cost to every shadow.
func (c *counter) chargeShadows(now, cost int64) {
	if c.more == nil {
		return
	}
	for i := range c.more.shadows {
		x := &c.more.shadows[i]
		x.state.charge(&x.plan, now, mulSat(cost, x.plan.cost))
		x.state.last = now
	}
}

// refundShadows gives cost back to every shadow.
func (c *counter) refundShadows(cost int64) {
	if c.more == nil {
		return
	}
	for i := range c.more.shadows {
		x := &c.more.shadows[i]
		x.state.refund(&x.plan, mulSat(cost, x.plan.cost))
	}
}
