package bucket

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// Portion is n counters of an image, Data a portion of its Data. They are as of At (Unix ns).
type Portion struct {
	At       int64
	Image    *Image
	Data     []byte
	Counters int
}

// Import imports n counters of im from data, a portion of im.Data, into the shard, as of now (Unix
// ns). Each replaces its key's counter, or removes it if it is exported as missing. With merge it
// is merged with the existing one, as by Merge. Receipts for replaced counters give nothing back.
//
// Counters of limits that are nil in im are skipped. Invalid data, or data of another shard, returns an *ImportError; the
// counters before it have been imported.
//
// The counters are as of the export: to account for their age, pass an earlier now. Windows end when their remaining time at
// the export has passed; see move.go.
func (t *Table) Import(now int64, shard int, im *Image, data []byte, n int, merge bool) error {
	return t.importAll(now, shard, begin(Portion{now, im, data, n}), importing{merge: merge})
}

// Merge merges the counters of the portions with those of the shard, as of now (Unix ns). What a
// counter becomes is never more permissive than either. Only a merge that changes a counter counts
// as a change and is recorded.
//
// The grants of a counter must follow it, each once, also in later portions. They are merged with it
// in one step: a part of them does not say which charges the counter lacks. What the shard has of a
// grant must be later than what the portions have; see settleBothLocked. If the shard is
// sealed, call Lapse before. Errors are those of Import.
func (t *Table) Merge(now int64, shard int, portions []Portion) error {
	if len(portions) == 0 {
		return nil
	}
	return t.importAll(now, shard, begin(portions[0], portions[1:]...), importing{merge: true})
}

// ErrSealed says that the shard is sealed.
var ErrSealed = errors.New("the shard is sealed")

// MergeOpen is Import with merge for a shard that is open. If it is sealed meanwhile, the rest is
// not imported, and the error is ErrSealed. Either state may be the later one: a grant that is open
// in both keeps the larger number of units and the later deadline.
func (t *Table) MergeOpen(now int64, shard int, im *Image, data []byte, n int) error {
	return t.importAll(now, shard, begin(Portion{now, im, data, n}), importing{merge: true, open: true})
}

// importing says how counters are imported: merged, and only into an open shard.
type importing struct{ merge, open bool }

func (t *Table) importAll(now int64, shard int, x cursor, how importing) error {
	now = inRange(now)
	for {
		more, err := x.next()
		if !more || err != nil {
			return err
		}
		sh := t.lock(shard)
		if how.open && sh.mu.sealed {
			sh.mu.Unlock()
			return ErrSealed
		}
		grown, err := sh.importLocked(now, &x, how)
		sh.unlock(now, grown)
		if err != nil {
			return err
		}
	}
}

// cursor is a place in portions.
type cursor struct {
	Portion        // that is being read
	r       reader // of it
	done    int    // counters of it
	rest    []Portion
}

func begin(first Portion, rest ...Portion) cursor {
	return cursor{Portion: first, r: reader{rest: first.Data}, rest: rest}
}

// next moves to the next counter, and reports whether there is one.
func (x *cursor) next() (more bool, err error) {
	for x.done >= x.Counters {
		if len(x.r.rest) > 0 {
			return false, &ImportError{Counter: max(x.Counters, 0), Reason: fmt.Sprintf("%d bytes follow the last counter", len(x.r.rest))}
		}
		if len(x.rest) == 0 {
			return false, nil
		}
		*x = begin(x.rest[0], x.rest[1:]...)
	}
	return true, nil
}

// importLocked imports some of the counters from x on, and advances it. A merge takes all grants of
// a counter with it.
func (sh *shard) importLocked(now int64, x *cursor, how importing) (grown bool, err error) {
	settled := 0 // so many of the next are grants that settleBothLocked has seen
	for n := 0; n < imageChunk || settled > 0; n, settled = n+1, settled-1 {
		if more, err := x.next(); !more || err != nil {
			return grown, err
		}
		r := &x.r
		key := r.key()
		at := sh.atLocked(now)
		var c counter
		there := x.Image.read(r, sh.atLocked(inRange(x.At)), &sh.mu.spare, &c)
		if r.why == "" && key.Shard(len(sh.table.shards)) != sh.number {
			r.fail("it belongs to another shard")
		}
		if r.why == "" && c.has(flagGrant) && uint64(c.first.aux) == key.Hi {
			r.fail("a grant has no ID")
		}
		if r.why != "" {
			return grown, &ImportError{Counter: x.done, Key: key, Reason: r.why}
		}
		x.done++
		if c.limits == nil && there {
			continue // unknown limits
		}
		if there && (c.has(flagGrant) || sh.mu.store.grants > 0) && sh.differsLocked(key, &c) {
			continue // another key's grant has this key: there are 2^64
		}
		var o outcome
		switch {
		case there && c.has(flagGrant):
			if settled > 0 {
				sh.lapseImportedLocked(at, key, &c)
			}
			o = sh.importGrantLocked(at, key, &c, how)
		case how.merge && there && settled > 0: // the counter again, before more of its grants
		case how.merge && there:
			settled = 1 + sh.settleBothLocked(now, at, *x, key, &c, how)
			o = sh.joinLocked(at, key, &c, settled > 1)
		case !how.merge && there:
			o = sh.placeLocked(key, &c)
		case !how.merge:
			if slot, ok := sh.mu.store.find(key); ok {
				o = sh.clearLocked(sh.lookLocked(slot))
			}
		}
		sh.mu.spare.release()
		sh.followLocked(now, key, o, false)
		grown = grown || o.grown > 0
	}
	return grown, nil
}

// differsLocked reports whether one of c and the record of key is a grant, and the other is not.
func (sh *shard) differsLocked(key Key, c *counter) bool {
	slot, ok := sh.mu.store.find(key)
	return ok && c.has(flagGrant) != (sh.mu.store.at(slot).flags()&flagGrant != 0)
}

// settleBothLocked makes each grant that x and the counter of key both have, or that has ended in
// one of them, count once in a merge of the two. Unless the shard is open, it is the later owner's,
// and x is from an earlier one, or from one that went on beside it:
//
//   - What has ended on one side ends, and is charged, on the other, as of the time when it ended.
//     If both have ended it, x gets what the later owner has charged beyond x.
//   - What is open in both has the units that it has at the later owner, and the later deadline,
//     since no owner makes it earlier. If it has more units in x, the later owner has charged the
//     rest, and x gets that charge. An Extend with a negative cost is not told from a Spend: its
//     units count until their window ends, though they are free at the later owner.
//   - What is open only in x, and whose deadline has passed, is charged in x as of that.
//
// So x has all charges of its grants that the later owner has made, and the larger of the two
// counters is right: it lacks none of them, and none counts as charged and as open. x must not
// have ended grants after the later owner began, which may have settled or extended them.
//
// An open shard may be the earlier one: a region that passes on a role decides between its first
// and its last portion, see cluster/rolemove.go. A difference of units does not say then which side
// has charged it. So it is not charged, and what is open in both has the larger number of units.
//
// The grants of x, if there are any, follow at the cursor. It returns the number of counters that
// belong to x: its grants, and x again at the beginning of further portions.
func (sh *shard) settleBothLocked(
	now, at int64, from cursor, key Key, x *counter, how importing,
) (seen int) {
	for ; ; seen++ {
		if more, err := from.next(); !more || err != nil {
			return seen
		}
		k := from.r.key()
		if k.Lo != key.Lo {
			return seen
		}
		var g counter
		there := from.Image.read(&from.r, sh.atLocked(inRange(from.At)), new(more), &g)
		from.done++
		switch {
		case from.r.why != "":
			return seen
		case !there: // it was forgotten after its key was listed
		case g.limits == nil: // unknown limits: it is skipped
		case k == key && !g.has(flagGrant):
		case !g.has(flagGrant) || uint64(g.first.aux) != key.Hi:
			return seen
		default:
			sh.settleOneLocked(now, at, key, x, k, &g, how)
		}
	}
}

// settleOneLocked is settleBothLocked for g, the grant of x that has the key k.
func (sh *shard) settleOneLocked(
	now, at int64, key Key, x *counter, k Key, g *counter, how importing,
) {
	c := sh.getLocked(at, key)
	slot, ok := sh.mu.store.find(k)
	var ours record
	if ok {
		ours = *sh.mu.store.at(slot)
	}
	// If ours has ended, and the settle window has not changed since:
	settledAt := subSat(ours.now, sh.table.settleWindow.Load())
	settle := func(then, units int64) { x.settleUnits(x.settle(min(at, then)), units, g.use(), g.limits) }
	switch {
	case g.ending() == open && !ok:
		if g.now <= at {
			x.chargeLapsed(g)
		}
	case g.ending() == open && ours.ending() == expired: // if it was spent in part, it had less left
		settle(min(g.now-1, settledAt), max(g.first.spent, ours.spent))
	case g.ending() == open && !ours.isOpen():
		settle(min(g.now-1, settledAt), ours.charged())
	case !ok || c == nil:
	case g.ending() == open && how.open && max(g.now, ours.now) > at: // see importGrantLocked
	case g.ending() == open:
		end := max(g.now, ours.now)
		settle(end-1, g.first.spent-ours.spent)
		if g.first.spent = ours.spent; end <= at { // else both stay open
			x.chargeLapsed(g)
			sh.expireLocked(c, at, slot)
			sh.followLocked(now, key, sh.keepLocked(c, changed), false)
		}
	case ours.isOpen():
		sh.changeLocked(at, slot, g.ending(), g.first.spent, g.now)
		c.settleUnits(c.settle(min(at, ours.now-1)), g.charged(), g.use(), g.limits)
		sh.followLocked(now, key, sh.keepLocked(c, changed), false)
	case ours.ending() != expired || g.ending() != settled: // else its caller has settled it in time
		settle(settledAt, ours.charged()-g.charged())
	}
}

// charged returns the units that the counter of c, a grant that has ended, was charged for it.
func (c *counter) charged() int64 {
	if c.ending() == released {
		return 0
	}
	return c.first.spent
}

// charged is counter.charged.
func (r *record) charged() int64 {
	if r.ending() == released {
		return 0
	}
	return r.spent
}

// chargeLapsed charges c the units of its open grant g, whose deadline has passed.
func (c *counter) chargeLapsed(g *counter) {
	if g.admissions&releases == 0 {
		c.settleUnits(c.settle(g.now-1), g.first.spent, g.use(), g.limits)
	}
}

// lapseImportedLocked makes g, a grant of an image with the given key, what it is after its
// deadline if settleBothLocked has charged it. Nothing is kept of a lease.
func (sh *shard) lapseImportedLocked(at int64, key Key, g *counter) {
	if _, ok := sh.mu.store.find(key); ok || g.ending() != open || g.now > at {
		return
	}
	e := expired
	if g.admissions&releases != 0 {
		e, g.first.spent = released, 0
	}
	g.admissions |= attributes(0, e, false)
	if g.use() != ForLease {
		g.now = addSat(at, sh.table.settleWindow.Load())
	}
}

// importGrantLocked makes g the grant of key, or merges it with that. One that has ended counts
// before an open one, and of two that are alike in this, that of the key does: two open ones have
// its units, or in an open shard the larger number, and the later deadline. Of what changed a
// reservation, see changeKey, the later counts.
func (sh *shard) importGrantLocked(at int64, key Key, g *counter, how importing) (o outcome) {
	if g.use() == ForLease {
		sh.table.noteGrant((key.Hi ^ uint64(g.first.aux)) * idUnmix)
	}
	if !how.merge {
		return sh.putGrantLocked(at, key, g)
	}
	if slot, ok := sh.mu.store.find(key); ok {
		r := sh.mu.store.at(slot)
		switch units := r.spent; {
		case !r.isOpen() && (r.ending() != released || g.ending() != released || g.now <= r.now):
			return o
		case g.ending() == open:
			if how.open {
				units = max(units, g.first.spent)
			}
			if units == r.spent && g.now <= r.now {
				return o
			}
			g.first.spent, g.now = units, max(g.now, r.now)
		}
	} else if g.now <= at && g.ending() != open {
		return o
	}
	o = sh.putGrantLocked(at, key, g)
	o.did |= changed
	return o
}

// placeLocked makes key's counter a copy of x, with the grants that key has. Those whose deadline
// has passed must not end here: x may lack their charges, and would replace a counter that has
// them.
func (sh *shard) placeLocked(key Key, x *counter) (o outcome) {
	slot, ok := sh.mu.store.find(key)
	if !ok {
		return sh.insertLocked(key, x)
	}
	if r := sh.mu.store.at(slot); r.flags()&(flagSide|flagHeld|flagGrant) == 0 && x.fits() && sh.table.account(r.set()).limits == x.limits {
		r.now, r.spent, r.aux = x.now, x.first.spent, x.first.aux
		r.meta |= meta(flagAgain)
		return o
	}
	c := sh.lookLocked(slot)
	x.keepLedger(c)
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
	if head == headGrant {
		c.readGrant(r)
		return
	}
	for i := range limits.plans {
		c.at(i).read(r, &limits.plans[i], at)
	}
	if head > maxShadows {
		r.fail("it has too many former limits")
		return
	}
	for range head {
		im.readShadow(r, c)
	}
	c.boundShadows(at)
}

// readGrant reads c, a new counter, as a grant.
func (c *counter) readGrant(r *reader) {
	b := r.take(8)
	g := counter{limits: c.limits, now: c.now, cuts: flagGrant, first: state{last: never}}
	if g.first.spent = r.units(); b != nil {
		g.first.aux = int64(binary.LittleEndian.Uint64(b))
	}
	attributes := r.upTo(1<<(attemptShift+attemptBits+CallerBits)-1, "a grant has unknown attributes")
	g.admissions = uint32(attributes & attributesMask)
	g.setWho(uint32(attributes>>attemptShift&attemptMask), uint32(attributes>>(attemptShift+attemptBits)))
	switch {
	case r.why != "":
	case g.use() > ForSlot || g.use() == ForLease && (g.ending() != open || g.admissions&releases != 0):
		r.fail("a grant has an unknown use")
	case g.first.spent == 0 && g.use() == ForLease:
		r.fail("a grant has no units")
	}
	*c = g
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
