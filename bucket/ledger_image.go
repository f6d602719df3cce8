package bucket

import "slices"

// A ledger travels with its counter and merges with another.

// readLedger reads what c has lent.
func (c *counter) readLedger(r *reader) {
	n := r.upTo(maxGrants, "it has lent too often")
	if n == 0 {
		r.fail("it has a ledger, and lent nothing")
	}
	list := make([]grant, 0, n)
	for range n {
		wait := r.upTo(int64(MostLoan), "a loan is too long")
		g := grant{end: addSat(c.now, wait), units: r.units(), id: r.uint()}
		flags := r.upTo(1<<(len(c.limits.plans)+1)-1, "a loan is paid to no limit")
		g.paid, g.kept = uint16(flags>>1), flags&1 != 0
		switch {
		case r.why != "":
			return
		case wait == 0:
			r.fail("a loan is over")
		case g.units == 0:
			r.fail("nothing was lent by a loan")
		}
		list = append(list, g)
	}
	c.setGrants(list)
}

// holdOutlived makes c hold the grants that are paid to a window, but may be spent after it.
func (c *counter) holdOutlived() {
	list := c.grants()
	if len(list) == 0 {
		return
	}
	for i := range c.limits.plans {
		p, s := &c.limits.plans[i], c.at(i)
		end := int64(never)
		if p.windowed() {
			end = p.boundary(s, c.now)
		}
		for j := range list {
			if g := &list[j]; g.end > end {
				g.paid &^= 1 << i
			}
		}
	}
	c.setGrants(list)
}

// mergeGrants makes c hold all that x has lent, and reports whether it has changed. same: both have the same limits.
// What only one of them has lent cannot be given back any more: the charge may have become one with what
// the other has counted. A grant that both know, but not alike, becomes one, the larger and longer of the two.
func (c *counter) mergeGrants(x *counter, same bool) (changed bool) {
	ours, theirs := c.grants(), x.grants()
	for i := range ours {
		if !ours[i].kept && (!same || !slices.Contains(theirs, ours[i])) {
			ours[i].kept, changed = true, true
		}
	}
	for _, g := range theirs {
		i := findGrant(ours, g.id)
		if i >= 0 && same && ours[i] == g {
			continue
		}
		g.kept = true
		if !same {
			g.paid = 0
		}
		if i < 0 {
			ours, changed = append(ours, g), true
			continue
		}
		was := ours[i]
		g.end, g.units, g.paid = max(g.end, was.end), max(g.units, was.units), g.paid&was.paid
		ours[i], changed = g, changed || g != was
	}
	c.setGrants(ours)
	c.boundGrants()
	c.holdOutlived()
	return changed
}

// boundGrants makes the first grants one while there are more than maxGrants.
func (c *counter) boundGrants() {
	for list := c.grants(); len(list) > maxGrants; list = c.grants() {
		first, second := &list[0], &list[1]
		second.units = addSat(first.units, second.units)
		second.paid, second.kept = second.paid&first.paid, true
		c.setGrants(slices.Delete(list, 0, 1))
	}
}

// boundary returns the end of the window or step that a charge to s at now counts in.
func (p *plan) boundary(s *state, now int64) int64 {
	switch {
	case p.kind == kindWeighted:
		return addSat(now, p.period-s.age(p, now))
	case s.aux != never:
		return s.aux
	}
	return p.windowEnd(now)
}

// windowed reports whether p counts in windows or steps that a loan can end with.
func (p *plan) windowed() bool {
	return p.kind == kindStep || p.kind == kindFixed || p.kind == kindWeighted
}
