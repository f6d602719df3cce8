package bucket

import (
	"math"
	"slices"
	"unsafe"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
)

// A grant is units of a key that may be spent until a deadline. It is a record of its own in the shard of its counter, so
// journals, replicas, handoffs, snapshots and accounts of domains have it as they have counters. See also
// docs/internals/adr/0041-grants-are-records-of-the-table.md.
//
// A granted unit counts until it is settled, and then as if it was spent at that moment. Whenever it was really spent, that is
// never more permissive than the algorithm, because the granted units are subtracted from the capacity meanwhile:
//
//   - A bucket would have started to drain it earlier. Let V be the level with the real spending, L the level of the state, and
//     H the granted units, of which S are spent. V ≤ L + S always: a spent unit raises both by one; when a grant is settled, L
//     gains the spent units and S loses them; and V drains whenever L does, or is at most S. So V ≤ L + H, which no check or
//     grant lets exceed the capacity.
//   - A log would have dropped it earlier.
//   - A window has the units of an open grant and those settled in it, and together they do not exceed the limit. A grant that
//     ends in a later window than it began in counts in both.
//
// The sum of what the open grants of a counter hold and the order of their deadlines are its ledger, which is derived from the
// records: a sealed shard has none, Open makes them, and images do not have them.

// Use is what a grant is for.
type Use uint8

const (
	// ForLease: of a node or a client that decides by itself with its units. When it ends nothing of it is kept.
	ForLease Use = iota
	// ForReservation: a Reservation. Its outcome is kept for the settle window.
	ForReservation
	// ForSlot: a Reservation of limits with a Concurrency. At its deadline its units are free again.
	ForSlot
)

// ending says how a grant has ended.
type ending uint8

const (
	open ending = iota
	// settled: its units are now those that were charged.
	settled
	// expired: the deadline has passed, and its units were charged.
	expired
	// released: it was canceled, or the deadline has passed, and nothing was charged.
	released
)

// A grant is read as a counter with flagGrant: limits are those that it was granted under, now is its deadline, first.spent its
// units and first.aux the Hi of its counter's key. The bits of admissions, birth and cuts have its attributes, the attempt that has reserved
// it, and who has it.
const (
	useBits    = 3
	useMask    = 1<<useBits - 1
	endingBits = 2
	endingMask = 1<<endingBits - 1
	// releases: at its deadline its units are free again, and do not count as spent.
	releases       = 1 << (useBits + endingBits)
	attributesMask = 2*releases - 1
	// The attempt has the next bits, and CallerBits of who has it are in the rest and in the cuts.
	attemptShift = useBits + endingBits + 1
	attemptBits  = 18
	attemptMask  = 1<<attemptBits - 1
	restBits     = admissionBits + birthBits - attemptShift - attemptBits
	CallerBits   = restBits + cutBits
)

// attributes returns the admissions of a grant.
func attributes(u Use, e ending, release bool) uint32 {
	a := uint32(u) | uint32(e)<<useBits
	if release {
		a |= releases
	}
	return a
}

func (c *counter) use() Use { return Use(c.admissions & useMask) }

func (c *counter) ending() ending { return ending(c.admissions >> useBits & endingMask) }

func (r *record) use() Use { return Use(r.meta >> (flagBits + cutBits) & useMask) }

func (r *record) ending() ending {
	return ending(r.meta >> (flagBits + cutBits + useBits) & endingMask)
}

func (r *record) releases() bool { return r.meta>>(flagBits+cutBits)&releases != 0 }

// attempt returns what is kept of the Once of the only Reserve that has got r, 0 if there were several.
func (r *record) attempt() uint32 {
	return uint32(r.meta >> (flagBits + cutBits + attemptShift) & attemptMask)
}

// callerOf returns who has r, which is a grant.
func (r *record) callerOf() uint32 {
	return uint32(r.meta>>(flagBits+cutBits+attemptShift+attemptBits)&(1<<restBits-1) | r.meta>>flagBits&(1<<cutBits-1)<<restBits)
}

// setWho sets the attempt that has reserved c, which is a grant, and who has it.
func (c *counter) setWho(attempt, caller uint32) {
	rest := attempt | caller<<attemptBits&(1<<(attemptBits+restBits)-1)
	c.admissions = c.admissions&attributesMask | rest<<attemptShift&admissionsMask
	c.birth = uint16(rest >> (admissionBits - attemptShift))
	c.cuts = c.cuts&(1<<flagBits-1) | caller>>restBits<<flagBits
}

// isOpen reports whether r is a grant that has not ended.
func (r *record) isOpen() bool {
	return r.flags()&flagGrant != 0 && r.ending() == open
}

// owner returns the key of the counter of r, which is a grant.
func (r *record) owner() Key { return Key{uint64(r.aux), r.key.Lo} }

// An ID is mixed into the key of its grant by a multiplication that record.id undoes.
const (
	idMix   = 0x9e3779b97f4a7c15
	idUnmix = 0xf1de83e19937733d
)

// grantKey returns the key of grant id of k. The shard depends on Lo only.
func (k Key) grantKey(id uint64) Key { return Key{k.Hi ^ id*idMix, k.Lo} }

// id returns the ID of r, which is a grant.
func (r *record) id() uint64 { return (r.key.Hi ^ uint64(r.aux)) * idUnmix }

// ledger is what the open grants of a counter hold. It is a block of the table's slabs, followed by its deadlines.
type ledger struct {
	block blockRef
	// held is the sum of their units.
	held uint128
	// last is the latest deadline since there was none.
	last int64
	// open is the number of open grants, n that of deadlines, of which there is room for most.
	open, n, most uint32
	_             uint32
}

// deadline is an entry in the heap of a ledger. A grant may have ended since, or its deadline may be later now: that is found
// when the entry is the first.
type deadline struct {
	at int64
	hi uint64 // of the grant's key
}

const (
	leastDeadlines = 4
	// maxGrants is the number of open grants of a counter from which on no more are granted.
	maxGrants     = 200_000
	mostDeadlines = 1 << 19
	// maxLapses bounds the grants that end with one decision. Until the next one others still count as granted.
	maxLapses = 1024
	// fewGrants is the number of grants, by deadline, that RetryAfter and ResetAfter consider one by one.
	fewGrants = 16
)

func ledgerBytes(most int) int {
	return int(unsafe.Sizeof(ledger{})) + most*int(unsafe.Sizeof(deadline{}))
}

func (b blockRef) ledger() *ledger { return (*ledger)(b.at()) }

func (p place) ledger() *ledger { return p.block().ledger() }

func (l *ledger) place() place { return placeOf(l.block, int(l.most)) }

// deadlines are a heap by time.
func (l *ledger) deadlines() deadlines {
	return unsafe.Slice((*deadline)(unsafe.Add(unsafe.Pointer(l), unsafe.Sizeof(ledger{}))), l.most)[:l.n]
}

// dropFirst removes the earliest deadline, and returns the others.
func (l *ledger) dropFirst() deadlines {
	d := l.deadlines()
	l.n--
	d[0] = d[l.n]
	d[:l.n].down(0)
	return d[:l.n]
}

// dropEnded removes the deadlines of grants that are not open any more. lo is of the grants' keys.
func (l *ledger) dropEnded(s *store, lo uint64) {
	l.n = uint32(len(slices.DeleteFunc(l.deadlines(), func(d deadline) bool {
		slot, ok := s.find(Key{d.hi, lo})
		return !ok || !s.at(slot).isOpen()
	})))
	l.deadlines().sort()
}

type deadlines []deadline

// up moves entry i to its place among those before it.
func (d deadlines) up(i int) {
	for i > 0 && d[i].at < d[(i-1)/2].at {
		d[i], d[(i-1)/2] = d[(i-1)/2], d[i]
		i = (i - 1) / 2
	}
}

// down moves entry i to its place among those after it.
func (d deadlines) down(i int) {
	for {
		least := 2*i + 1
		if least >= len(d) {
			return
		}
		if least+1 < len(d) && d[least+1].at < d[least].at {
			least++
		}
		if d[i].at <= d[least].at {
			return
		}
		d[i], d[least] = d[least], d[i]
		i = least
	}
}

// sort makes d a heap.
func (d deadlines) sort() {
	for i := len(d)/2 - 1; i >= 0; i-- {
		d.down(i)
	}
}

// ledger returns where the ledger of r is, or nil.
func (r *record) ledger() *place {
	if r.flags()&(flagSide|flagGrant) != flagSide {
		return nil
	}
	if _, _, _, ledgers := parts(blockRef(r.spent).at()); len(ledgers) > 0 {
		return &ledgers[0]
	}
	return nil
}

// ledger returns the ledger of c, or nil if it has not granted.
func (c *counter) ledger() *ledger {
	if c.more == nil {
		return nil
	}
	return c.more.ledger
}

// granted returns the number of open grants of c.
func (c *counter) granted() int {
	if l := c.ledger(); l != nil {
		return int(l.open)
	}
	return 0
}

// held returns the units that open grants hold of the limit of p. With slots, others were charged at once.
func (c *counter) held(p *plan) int64 {
	if c.granted() > 0 && (!c.limits.slots || p.kind == kindSlots) && guard.On(guard.Held) {
		return mulSat(c.more.ledger.units(), p.cost)
	}
	return 0
}

func (l *ledger) units() int64 {
	if l.held.hi > 0 {
		return math.MaxInt64
	}
	return saturate(l.held.lo)
}

// plans returns the limits' plans, with the held units subtracted from the capacity. Only deciding and describing use these.
func (c *counter) plans() []plan {
	if c.more != nil && len(c.more.plans) > 0 {
		return c.more.plans
	}
	return c.limits.plans
}

// hold makes the plans of c.
func (c *counter) hold() {
	if c.more == nil {
		return
	}
	m := c.more
	if m.plans = m.plans[:0]; c.granted() == 0 {
		return
	}
	m.plans = append(m.plans, c.limits.plans...)
	for i := range m.plans {
		p := &m.plans[i]
		held := c.held(p)
		p.limit, p.capacity = max(0, p.limit-held), max(0, p.capacity-held)
		if held > 0 && p.minInterval > 0 && !p.blocks {
			p.capacity = 0 // see interval
		}
	}
}

// dropLedgersLocked frees the ledgers of sh.
func (sh *shard) dropLedgersLocked() {
	for slot := uint32(0); slot < sh.mu.store.n && sh.mu.store.ledgers > 0; slot++ {
		if sh.mu.store.at(slot).ledger() != nil {
			c := sh.lookLocked(slot)
			c.more.ledger = nil
			sh.saveLocked(c)
		}
	}
}

// makeLedgersLocked makes the ledgers of sh from its grants. Counters that are free, and thus missing, it makes too.
func (sh *shard) makeLedgersLocked() {
	sh.dropLedgersLocked()
	s := &sh.mu.store
	for slot, rest := uint32(0), s.grants; rest > 0; slot++ {
		r := s.at(slot)
		if r.flags()&flagGrant != 0 {
			rest--
		}
		if r.isOpen() {
			sh.ensureOwnerLocked(r.owner(), sh.table.account(r.set()).limits, never+1)
			sh.openLocked(r, false)
		}
	}
}

// ensureOwnerLocked makes a counter of key under the limits l, unless it has one.
func (sh *shard) ensureOwnerLocked(key Key, l *Limits, at int64) {
	if _, ok := sh.mu.store.find(key); ok {
		return
	}
	made := newCounter(l, at, new(more))
	o := sh.insertLocked(key, &made)
	sh.table.entries.Add(1)
	sh.table.inserted.Add(1)
	sh.grewLocked(o.counter.set, o.grown)
}

// grewLocked accounts for the growth of a counter with the set of limits.
func (sh *shard) grewLocked(set uint32, by int64) {
	sh.table.bytes.Add(by)
	sh.table.account(set).domain.bytes.Add(by)
}

// openLocked adds the open grant r to the ledger of its counter, which exists. listed: its deadline or an earlier one is there.
func (sh *shard) openLocked(r *record, listed bool) {
	s := &sh.mu.store
	slot, _ := s.find(r.owner())
	owner, before := s.at(slot), s.bytes
	switch {
	case owner.flags()&flagGrant != 0:
		return // no table has made it
	case owner.ledger() == nil:
		c := sh.lookLocked(slot)
		b := s.get(ledgerBytes(leastDeadlines))
		*b.ledger() = ledger{block: b, last: never, most: leastDeadlines}
		c.ensureMore().ledger = b.ledger()
		s.save(c)
		s.ledgers++
	}
	l := owner.ledger().ledger()
	l.held = l.held.add(uint64(r.spent))
	if l.open++; l.open == 1 {
		l.last = never
	}
	l.last = max(l.last, r.now)
	if !listed {
		sh.scheduleLocked(owner, r)
	}
	sh.grewLocked(owner.set(), s.bytes-before)
}

// scheduleLocked adds the deadline of r to the ledger of its counter. Only Sweep finds one that there is no room for.
func (sh *shard) scheduleLocked(owner, r *record) {
	s, at := &sh.mu.store, owner.ledger()
	l := at.ledger()
	if l.n == l.most && (2*l.open <= l.n+1 || l.most == mostDeadlines) {
		l.dropEnded(s, r.key.Lo)
	}
	if l.n == l.most {
		if l.most == mostDeadlines {
			return
		}
		b := s.get(ledgerBytes(int(2 * l.most)))
		made := b.ledger()
		*made = *l
		made.block, made.most = b, 2*l.most
		copy(made.deadlines(), l.deadlines())
		s.put(at.block(), ledgerBytes(int(l.most)))
		*at, l = made.place(), made
	}
	l.n++
	d := l.deadlines()
	d[l.n-1] = deadline{r.now, r.key.Hi}
	d.up(int(l.n - 1))
}

// putGrantLocked makes the grant in g, of which limits, now, first and admissions are set, that of its key, and returns its outcome for
// the shard.
func (sh *shard) putGrantLocked(at int64, key Key, g *counter) (o outcome) {
	s := &sh.mu.store
	slot, ok := s.find(key)
	listed := false
	switch {
	case !ok:
		before := s.bytes
		g.slot, g.cuts = s.add(key), g.cuts&^(1<<flagBits-1)|flagGrant
		sh.enter(g, 0)
		s.save(g)
		s.grants++
		o = outcome{inserted, g, s.bytes - before}
	default:
		r := s.at(slot)
		if r.isOpen() && !sh.mu.sealed {
			sh.closeLocked(r)
			listed = r.now <= g.now
		}
		g.slot, g.set, g.cuts = slot, r.set(), g.cuts&^(1<<flagBits-1)|flagGrant
		g.limits = sh.limitsOf(slot)
		s.save(g)
		o = outcome{0, g, 0}
	}
	if r := s.at(g.slot); r.isOpen() && !sh.mu.sealed {
		sh.ensureOwnerLocked(r.owner(), g.limits, at)
		sh.openLocked(r, listed)
	}
	return o
}

// closeLocked takes the open grant r, which ends, out of the ledger of its counter.
func (sh *shard) closeLocked(r *record) {
	slot, ok := sh.mu.store.find(r.owner())
	if !ok {
		return
	}
	if at := sh.mu.store.at(slot).ledger(); at != nil {
		l := at.ledger()
		l.held = l.held.sub(uint128{lo: uint64(r.spent)})
		l.open--
	}
}

// lapseLocked ends the grants of c, which is the work of sh, whose deadline has passed at at. Unless they are released, their units
// count as spent in the last nanosecond.
func (sh *shard) lapseLocked(c *counter, at int64) {
	key := sh.mu.store.at(c.slot).key
	lapsed := false
	l := c.ledger()
	for n := 0; n < maxLapses && l.n > 0 && l.deadlines()[0].at <= at; n++ {
		first := &l.deadlines()[0]
		slot, ok := sh.mu.store.find(Key{first.hi, key.Lo})
		if ok && sh.mu.store.at(slot).isOpen() {
			r := sh.mu.store.at(slot)
			if r.now != first.at {
				first.at = r.now
				l.deadlines().down(0)
				continue
			}
			sh.expireLocked(c, at, slot)
			lapsed = true
		}
		l.dropFirst()
	}
	if c.ledger().n == 0 && c.granted() == 0 {
		c.more.ledger = nil
	}
	if lapsed || c.ledger() == nil {
		o := sh.keepLocked(c, 0)
		if lapsed {
			o.did = changed
		}
		sh.followLocked(sh.clockLocked(at), key, o, false)
	}
}

// expireLocked ends the open grant in slot, of c, whose deadline has passed at at.
func (sh *shard) expireLocked(c *counter, at int64, slot uint32) {
	r := sh.mu.store.at(slot)
	if r.releases() {
		sh.endLocked(at, slot, released, 0)
		return
	}
	c.settleStates(max(c.now, r.now-1))
	if r.spent > 0 && guard.On(guard.Lapse) {
		c.settleUnits(c.now, r.spent, r.use(), sh.limitsOf(slot))
	}
	sh.endLocked(at, slot, expired, r.spent)
}

// lapseGrantLocked ends the open grant r, whose deadline has passed at at.
func (sh *shard) lapseGrantLocked(at int64, r *record) {
	k, owner := r.key, r.owner()
	c := sh.getLocked(at, owner)
	if slot, ok := sh.mu.store.find(k); ok && c != nil && sh.mu.store.at(slot).isOpen() { // it was not among the deadlines
		sh.expireLocked(c, at, slot)
		sh.followLocked(sh.clockLocked(at), owner, sh.keepLocked(c, changed), false)
	}
}

// settleUnits charges units of a grant under the limits l that are spent now. If c has others by now, they become full at most.
func (c *counter) settleUnits(now, units int64, u Use, l *Limits) {
	c.settleWithin(now, units, bound{}, u, l)
}

// bound is what a settlement may charge: the units that were held, and others as long as they make
// a bucket deny for at most longest (ns), or for as long as a full one takes to drain if that is
// longer. So no caller can block a bucket for years. longest 0 is no bound.
type bound struct{ held, longest int64 }

// settleWithin is settleUnits within b for each limit.
func (c *counter) settleWithin(now, units int64, b bound, u Use, l *Limits) {
	if units <= 0 || u == ForSlot {
		return
	}
	for i := range c.limits.plans {
		p, s := &c.limits.plans[i], c.at(i)
		if n := min(units, b.most(s, p, now)); n > 0 {
			c.chargeLate(s, p, now, n, l)
		}
		s.admit(p, now)
	}
	c.admissions++
	c.chargeShadows(now, units)
}

// most returns how many units settleWithin charges to a limit of c at most.
func (c *counter) most(now int64, b bound) (units int64) {
	for i := range c.limits.plans {
		units = max(units, b.most(c.at(i), &c.limits.plans[i], now))
	}
	return units
}

// most returns how many units b allows for s. Limits other than buckets forget by themselves what
// exceeds them.
func (b bound) most(s *state, p *plan, now int64) int64 {
	drained := int64(0)
	switch {
	case b.longest == 0:
		return math.MaxInt64
	case p.kind == kindFlow:
		drained, _ = mulDiv(b.longest, p.count, p.period)
	case p.kind == kindStep:
		next, end := s.aux, addSat(now, b.longest)
		if next == never {
			next = p.windowEnd(now)
		}
		if next <= end {
			drained = mulSat(addSat(1, p.steps(next, end)), p.count)
		}
	default:
		return math.MaxInt64
	}
	return max(b.held, subSat(addSat(p.capacity, max(p.capacity, drained)), s.spent)/p.cost)
}

// chargeLate charges s, of c's limit p, units of a grant under the limits l.
func (c *counter) chargeLate(s *state, p *plan, now, units int64, l *Limits) {
	if cost := mulSat(units, p.cost); c.limits.Equal(l) {
		s.charge(p, now, cost)
	} else {
		s.chargeUpTo(p, now, cost)
	}
}

// limitsOf returns the limits of the record in slot.
func (sh *shard) limitsOf(slot uint32) *Limits {
	return sh.table.account(sh.mu.store.at(slot).set()).limits
}

// endLocked ends the open grant in slot, of which units were charged: a reservation becomes its outcome, a lease is removed.
func (sh *shard) endLocked(at int64, slot uint32, e ending, charged int64) {
	sh.endForLocked(sh.table.settleWindow.Load(), at, slot, e, charged)
}

// endForLocked is endLocked with an outcome that is kept for so long.
func (sh *shard) endForLocked(kept, at int64, slot uint32, e ending, charged int64) {
	r := sh.mu.store.at(slot)
	owner, id := r.owner(), r.id()
	if r.use() == ForLease {
		sh.forgetGrantLocked(at, slot)
	} else {
		sh.changeLocked(at, slot, e, charged, addSat(at, kept))
	}
	sh.forgetChangesLocked(at, owner, id)
}

// forgetGrantLocked removes the grant in slot.
func (sh *shard) forgetGrantLocked(at int64, slot uint32) {
	r := sh.mu.store.at(slot)
	k := r.keyAt(0)
	sh.table.forgetLocked(sh, &counter{slot: slot, set: r.set()})
	if sh.mu.journal.takes(false) {
		sh.beginLocked(sh.clockLocked(at))
		sh.goneLocked(k)
	}
}

// grant is what deciding needs of an open grant.
type grant struct {
	end, units int64
	releases   bool
	limits     *Limits
}

// changeLocked sets the ending, the units and the deadline of the grant in slot.
func (sh *shard) changeLocked(at int64, slot uint32, e ending, units, end int64) {
	r := sh.mu.store.at(slot)
	g := counter{
		now: end, first: state{spent: units, aux: r.aux, last: never}, admissions: attributes(r.use(), e, r.releases()),
	}
	g.setWho(r.attempt(), r.callerOf())
	o := sh.putGrantLocked(at, r.key, &g)
	if sh.mu.journal.takes(false) {
		sh.recordLocked(sh.clockLocked(at), r.key, o.counter)
	}
}

// firstGrants returns the open grants of c with the earliest deadlines, at most fewGrants, in their order. It lists them when they are needed.
func (c *counter) firstGrants() []grant {
	m := c.more
	if m.shard == nil {
		return m.grants
	}
	sh, s := m.shard, &m.shard.mu.store
	m.shard, m.grants = nil, m.grants[:0]
	if l := m.ledger; l.open <= fewGrants && l.n >= 2*fewGrants && l.n <= maxLapses {
		l.dropEnded(s, m.lo) // else those of many that have ended would hide open ones
	}
	// The heap's entries that may be the next: those after the ones that were looked at.
	var places [2*fewGrants + 1]int
	d, n, looked := m.ledger.deadlines(), min(1, int(m.ledger.n)), 0
	for steps := 0; steps < maxLapses && n > 0 && len(m.grants) < fewGrants && looked < 2*fewGrants-1; steps++ {
		next := 0
		for i := range places[:n] {
			if d[places[i]].at < d[places[next]].at {
				next = i
			}
		}
		i := places[next]
		slot, ok := s.find(Key{d[i].hi, m.lo})
		isOpen := ok && s.at(slot).isOpen()
		switch {
		case isOpen && s.at(slot).now > d[i].at: // it was extended
			d[i].at = s.at(slot).now
			d.down(i)
			continue
		case !isOpen && looked == 0:
			if d = m.ledger.dropFirst(); len(d) == 0 {
				return m.grants
			}
			continue
		case isOpen && s.at(slot).now == d[i].at:
			m.grants = append(m.grants, grant{s.at(slot).now, s.at(slot).spent, s.at(slot).releases(), sh.limitsOf(slot)})
		}
		looked++
		n--
		places[next] = places[n]
		for child := 2*i + 1; child <= 2*i+2 && child < len(d); child++ {
			places[n] = child
			n++
		}
	}
	return m.grants
}
