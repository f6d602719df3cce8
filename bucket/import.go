package bucket

import (
	"fmt"
	"slices"
)

// ImportError says which counter of an image is invalid and why.
type ImportError struct {
	// Counter is its index among the counters to import.
	Counter int
	Key     Key
	Reason  string
}

func (e *ImportError) Error() string {
	return fmt.Sprintf("counter %d (key %016x%016x) of an image: %s", e.Counter, e.Key.Hi, e.Key.Lo, e.Reason)
}

// Import imports n counters of im from data, a portion of im.Data, into the shard, as of now (Unix ns). Each replaces its key's
// counter, or removes it if it is exported as missing. With merge it is merged with the existing one: the result is never more
// permissive than either. Only a merge that changes a counter counts as a change and is recorded. Receipts for replaced
// counters give nothing back.
//
// Counters of limits that are nil in im are skipped. Invalid data, or data of another shard, returns an *ImportError; the
// counters before it have been imported.
//
// The counters are as of the export: to account for their age, pass an earlier now. Windows end when their remaining time at
// the export has passed; see move.go.
func (t *Table) Import(now int64, shard int, im *Image, data []byte, n int, merge bool) error {
	now = inRange(now)
	r := reader{rest: data}
	for done := 0; done < n; {
		sh := t.lock(shard)
		grown, err := sh.importLocked(now, im, &r, &done, min(n, done+imageChunk), merge)
		sh.unlock(now, grown)
		if err != nil {
			return err
		}
	}
	if len(r.rest) > 0 {
		return &ImportError{Counter: max(n, 0), Reason: fmt.Sprintf("%d bytes follow the last counter", len(r.rest))}
	}
	return nil
}

// importLocked imports the counters from index *done up to to, and advances *done.
func (sh *shard) importLocked(now int64, im *Image, r *reader, done *int, to int, merge bool) (grown bool, err error) {
	for ; *done < to; *done++ {
		key := r.key()
		at := sh.atLocked(now)
		var c counter
		there := im.read(r, at, &sh.mu.spare, &c)
		if r.why == "" && key.Shard(len(sh.table.shards)) != sh.number {
			r.fail("it belongs to another shard")
		}
		if r.why != "" {
			return grown, &ImportError{Counter: *done, Key: key, Reason: r.why}
		}
		if c.limits == nil && there {
			continue // unknown limits
		}
		sh.table.noteGrants(c.grants())
		var o outcome
		switch {
		case merge && there:
			o = sh.joinLocked(at, key, &c)
		case !merge && there:
			o = sh.placeLocked(key, &c)
		case !merge:
			if old := sh.getLocked(key); old != nil {
				o = outcome{did: removed, grown: -sh.removeLocked(old)}
			}
		}
		sh.mu.spare.release()
		sh.followLocked(now, key, o, false)
		grown = grown || o.grown > 0
	}
	return grown, nil
}

// placeLocked makes key's counter a copy of x.
func (sh *shard) placeLocked(key Key, x *counter) (o outcome) {
	slot, ok := sh.mu.store.find(key)
	if !ok {
		return sh.insertLocked(key, x)
	}
	if r := sh.mu.store.at(slot); r.flags()&(flagSide|flagHeld) == 0 && x.fits() && sh.table.account(r.set()).limits == x.limits {
		r.now, r.spent, r.aux = x.now, x.first.spent, x.first.aux
		r.meta |= meta(flagAgain)
		return o
	}
	c := sh.getLocked(key)
	c = sh.replaceLocked(c, x)
	c.cuts |= flagAgain
	return sh.keepLocked(c, 0)
}

// read reads the data after a key, and reports whether there is a counter. It sets c, which is zero, to the counter as of now, which uses m
// for data behind pointers; its limits are nil if they are unknown.
func (im *Image) read(r *reader, now int64, m *more, c *counter) bool {
	place := r.uint()
	if place == 0 {
		return false
	}
	if place > uint64(len(im.Limits)) {
		r.fail("its limits are not in the image")
		return true
	}
	body := reader{rest: r.take(r.uint())}
	limits := im.Limits[place-1]
	if limits == nil || r.why != "" {
		return true
	}
	im.readBody(&body, now, limits, m, c)
	if len(body.rest) > 0 {
		body.fail("it is longer than its limits need")
	}
	if body.why != "" {
		r.fail(body.why)
	}
	return true
}

// readBody reads a counter of known limits.
func (im *Image) readBody(r *reader, now int64, limits *Limits, m *more, c *counter) {
	at := inRange(subSat(now, r.int()))
	c.begin(limits, at, m)
	head := r.uint()
	for i := range limits.plans {
		c.at(i).read(r, &limits.plans[i], at)
	}
	shadows := head &^ headLedger
	if shadows > maxShadows {
		r.fail("it has too many former limits")
		return
	}
	for range shadows {
		im.readShadow(r, c)
	}
	c.boundShadows(at)
	if head&headLedger != 0 && r.why == "" {
		c.readLedger(r)
	}
	c.holdOutlived()
}

// readShadow reads a shadow into c, unless its limits are unknown.
func (im *Image) readShadow(r *reader, c *counter) {
	limits, place := r.uint(), r.uint()
	body := reader{rest: r.take(r.uint())}
	if r.why == "" && limits >= uint64(len(im.Limits)) {
		r.fail("its former limits are not in the image")
	}
	if r.why != "" || im.Limits[limits] == nil {
		return
	}
	x := shadow{limits: im.Limits[limits], place: int(min(place, MaxLimits))}
	if x.place >= len(x.limits.plans) || x.plan().stateless() {
		r.fail("its former limits have no such place, or it counts nothing")
		return
	}
	x.state = newState(x.plan())
	x.state.read(&body, x.plan(), c.now)
	if len(body.rest) > 0 {
		body.fail("it is longer than its former limits need")
	}
	if body.why != "" {
		r.fail(body.why)
	}
	c.addShadow(x)
}

// A ledger is transferred and merged with its counter.

func (c *counter) readLedger(r *reader) {
	n := r.upTo(maxGrants, "it has granted too often")
	if n == 0 {
		r.fail("it has a ledger, and granted nothing")
	}
	list := make([]grant, 0, n)
	for range n {
		wait := r.upTo(int64(MostLease), "a lease is too long")
		g := grant{end: addSat(c.now, wait), units: r.units(), id: r.uint()}
		flags := r.upTo(1<<(len(c.limits.plans)+1)-1, "a lease is paid to no limit")
		g.paid, g.kept = uint16(flags>>1), flags&1 != 0
		switch {
		case r.why != "":
			return
		case wait == 0:
			r.fail("a lease is over")
		case g.units == 0:
			r.fail("a lease has no units")
		}
		list = append(list, g)
	}
	c.setGrants(list)
}

// holdOutlived makes c hold grants that are paid to a window but may be spent after it.
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

// mergeGrants adds the grants of x to c, and reports whether c has changed. same: both have the same limits. A grant of only
// one of them cannot be given back any more, because its charge may have been merged with the other's counts. A grant with
// different values in both becomes the larger and longer of the two.
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

// boundGrants merges the first grants while there are more than maxGrants.
func (c *counter) boundGrants() {
	for list := c.grants(); len(list) > maxGrants; list = c.grants() {
		first, second := &list[0], &list[1]
		second.units = addSat(first.units, second.units)
		second.paid, second.kept = second.paid&first.paid, true
		c.setGrants(slices.Delete(list, 0, 1))
	}
}

// boundary returns the end of the window or step in which a charge to s at now counts.
func (p *plan) boundary(s *state, now int64) int64 {
	switch {
	case p.kind == kindWeighted:
		return addSat(now, p.period-s.age(p, now))
	case s.aux != never:
		return s.aux
	}
	return p.windowEnd(now)
}

// windowed reports whether p has windows or steps that a lease can end with.
func (p *plan) windowed() bool {
	return p.kind == kindStep || p.kind == kindFixed || p.kind == kindWeighted
}
