package bucket

import (
	"math/bits"
	"unsafe"
)

// A counter that does not fit into its record has the rest in a block of the table's slabs, its side:
//
//	sideHead     what follows
//	sideState    of each limit
//	sideShadow   of each former limit
//	uint64       where the ledger is, if there is one
//
// The ring of a log has a block of its own, and so has the ledger. Both are changed in place.

type sideHead struct {
	states, shadows, ledgers uint8
	_                        uint8
	// rings has a bit for each state, shadows included, that has a ring.
	rings uint32
}

// sideState is a state. log is its phase, or where its ring is.
type sideState struct {
	spent, aux, last int64
	log              place
}

type sideShadow struct {
	sideState
	set, place uint32
}

const (
	headBytes   = int(unsafe.Sizeof(sideHead{}))
	stateBytes  = int(unsafe.Sizeof(sideState{}))
	shadowBytes = int(unsafe.Sizeof(sideShadow{}))
	placeBytes  = int(unsafe.Sizeof(place(0)))
)

func (c *counter) sideBytes() int {
	n := headBytes + stateBytes*len(c.limits.plans) + shadowBytes*len(c.shadows())
	if c.ledger() != nil {
		n += placeBytes
	}
	return n
}

// ringBytes returns the size of a ring of n entries with its sums.
func ringBytes(n int) int {
	size := n * int(unsafe.Sizeof(entry{}))
	if n > sumPlaces {
		size += n / sumPlaces * int(unsafe.Sizeof(sum{}))
	}
	return size
}

func parts(p unsafe.Pointer) (h *sideHead, states []sideState, shadows []sideShadow, ledgers []place) {
	h = (*sideHead)(p)
	p = unsafe.Add(p, headBytes)
	states = unsafe.Slice((*sideState)(p), h.states)
	p = unsafe.Add(p, stateBytes*len(states))
	shadows = unsafe.Slice((*sideShadow)(p), h.shadows)
	p = unsafe.Add(p, shadowBytes*len(shadows))
	return h, states, shadows, unsafe.Slice((*place)(p), h.ledgers)
}

// place is where a ring or a ledger is: the address of its block, and the logarithm of its length above that.
type place uint64

const placeShift = 56

func placeOf(b blockRef, n int) place { return place(b) | place(bits.Len(uint(n))-1)<<placeShift }

func (p place) len() int { return 1 << (p >> placeShift) }

func (p place) block() blockRef { return blockRef(p & (1<<placeShift - 1)) }

// ringAt makes e the ring at a place.
func (e *entries) ringAt(at place) {
	n := at.len()
	e.block = at.block()
	p := e.block.at()
	e.ring, e.sums = unsafe.Slice((*entry)(p), n), nil
	if n > sumPlaces {
		e.sums = unsafe.Slice((*sum)(unsafe.Add(p, n*int(unsafe.Sizeof(entry{})))), n/sumPlaces)
	}
}

// side is memory that sides are read into.
type side struct {
	more more
	logs []entries
}

// load reads the side at p into c, with x as the memory, but for the plans of its ledger.
func (x *side) load(t *Table, p unsafe.Pointer, c *counter) {
	h, states, shadows, ledgers := parts(p)
	if n := len(states) + len(shadows); h.rings != 0 && cap(x.logs) < n {
		x.logs = make([]entries, n)
	}
	c.first = x.state(h, 0, &states[0])
	if len(states) == 1 && len(shadows) == 0 && len(ledgers) == 0 {
		return
	}
	m := &x.more
	c.more = m
	m.rest, m.shadows, m.ledger, m.shard, m.grants, m.plans = m.rest[:0], m.shadows[:0], nil, nil, m.grants[:0], m.plans[:0]
	if len(ledgers) > 0 {
		m.ledger = ledgers[0].ledger()
	}
	for i := 1; i < len(states); i++ {
		m.rest = append(m.rest, x.state(h, i, &states[i]))
	}
	for i := range shadows {
		y := &shadows[i]
		m.shadows = append(m.shadows, shadow{t.account(y.set).limits, y.set, int(y.place), x.state(h, len(states)+i, &y.sideState)})
	}
}

// state returns the state at index i.
func (x *side) state(h *sideHead, i int, from *sideState) state {
	s := state{spent: from.spent, aux: from.aux, last: from.last}
	if h.rings&(1<<i) == 0 {
		s.phase = int64(from.log)
		return s
	}
	s.log = &x.logs[:cap(x.logs)][i]
	s.log.ringAt(from.log)
	return s
}

// saveSide makes the side of r that of c. The rings of c get blocks, unless they have them, and those that c does not have any more
// are free.
func (s *store) saveSide(r *record, c *counter) {
	for i := range c.states() {
		if x := c.at(i); x.log != nil && x.log.block == 0 {
			s.placeRing(x.log)
		}
	}
	n, had := c.sideBytes(), r.flags()&flagSide != 0
	if had {
		s.freeRings(r, c)
		if at := r.ledger(); at != nil && c.ledger() != at.ledger() {
			s.dropLedger(*at)
		}
	}
	switch {
	case !had:
		r.spent = int64(s.get(n))
	case classOf(n) != classOf(int(r.aux)):
		s.put(blockRef(r.spent), int(r.aux))
		r.spent = int64(s.get(n))
	case n != int(r.aux):
		s.bytes += blockBytes(n) - blockBytes(int(r.aux))
	}
	r.aux = int64(n)
	*(*sideHead)(blockRef(r.spent).at()) = sideHead{
		states: uint8(len(c.limits.plans)), shadows: uint8(len(c.shadows())),
	}
	ledger := c.ledger()
	if ledger != nil {
		(*sideHead)(blockRef(r.spent).at()).ledgers = 1
	}
	h, states, shadows, ledgers := parts(blockRef(r.spent).at())
	for i := range c.states() {
		x := c.at(i)
		y := sideState{x.spent, x.aux, x.last, place(x.phase)}
		if x.log != nil {
			y.log = placeOf(x.log.block, len(x.log.ring))
			h.rings |= 1 << i
		}
		if i < len(states) {
			states[i] = y
		} else {
			z := &c.more.shadows[i-len(states)]
			shadows[i-len(states)] = sideShadow{y, z.set, uint32(z.place)}
		}
	}
	if ledger != nil {
		ledgers[0] = ledger.place()
	}
}

// get is slabs.get, and accounts for the block.
func (s *store) get(n int) blockRef {
	s.bytes += blockBytes(n)
	return s.slabs.get(n)
}

// put is slabs.put, and accounts for the block.
func (s *store) put(b blockRef, n int) {
	s.bytes -= blockBytes(n)
	s.slabs.put(b, n)
}

// placeRing moves e from Go's heap into a block.
func (s *store) placeRing(e *entries) {
	from := *e
	e.block = s.get(ringBytes(len(from.ring)))
	e.ringAt(placeOf(e.block, len(e.ring)))
	copy(e.ring, from.ring)
	copy(e.sums, from.sums)
}

// eachRing calls f with the place of each ring of r's side.
func (r *record) eachRing(f func(at *place)) {
	h, states, shadows, _ := parts(blockRef(r.spent).at())
	for rings := h.rings; rings != 0; rings &= rings - 1 {
		if i := bits.TrailingZeros32(rings); i < len(states) {
			f(&states[i].log)
		} else {
			f(&shadows[i-len(states)].log)
		}
	}
}

// bytes returns the memory of r and what it has besides.
func (r *record) bytes() int64 {
	n := int64(LeastBytes)
	if r.flags()&flagSide != 0 {
		n += blockBytes(int(r.aux))
		r.eachRing(func(at *place) { n += blockBytes(ringBytes(at.len())) })
		if at := r.ledger(); at != nil {
			n += blockBytes(ledgerBytes(at.len()))
		}
	}
	return n
}

// freeRings frees the rings of r's side, except those that c has; c may be nil.
func (s *store) freeRings(r *record, c *counter) {
	r.eachRing(func(at *place) {
		var e entries
		if e.ringAt(*at); c == nil || !c.hasRing(e.block) {
			s.put(e.block, ringBytes(len(e.ring)))
		}
	})
}

// compact moves what r has besides its record out of pages that are nearly empty, so that these can be given back.
func (s *store) compact(r *record) {
	if r.flags()&flagSide == 0 {
		return
	}
	r.eachRing(func(at *place) {
		*at = placeOf(s.slabs.compact(at.block(), ringBytes(at.len())), at.len())
	})
	if at := r.ledger(); at != nil {
		*at = placeOf(s.slabs.compact(at.block(), ledgerBytes(at.len())), at.len())
		at.ledger().block = at.block() // it may have moved
	}
	r.spent = int64(s.slabs.compact(blockRef(r.spent), int(r.aux)))
}

func (s *store) dropLedger(at place) {
	s.put(at.block(), ledgerBytes(at.len()))
	s.ledgers--
}

// hasRing reports whether a log of c has its ring in the block.
func (c *counter) hasRing(b blockRef) bool {
	for i := range c.states() {
		if x := c.at(i); x.log != nil && x.log.block == b {
			return true
		}
	}
	return false
}

// dropSide frees the side of r, if it has one.
func (s *store) dropSide(r *record) {
	if r.flags()&flagSide == 0 {
		return
	}
	s.freeRings(r, nil)
	if at := r.ledger(); at != nil {
		s.dropLedger(*at)
	}
	s.put(blockRef(r.spent), int(r.aux))
	r.meta &^= meta(flagSide)
}
