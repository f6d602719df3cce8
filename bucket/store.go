package bucket

import (
	"math/bits"
	"unsafe"

	"github.com/sluicecluster/sluice/bucket/internal/offheap"
)

// record is a counter as the table keeps it: 48 bytes with its key and without a pointer, so that a table of millions costs the
// garbage collector nothing. A counter of several limits, of a log, or with anything else that does not fit has the rest in a side.
type record struct {
	key Key
	// now is the counter's.
	now int64
	// spent and aux are those of its only limit, or the block and the size of its side.
	spent, aux int64
	meta       meta
}

// meta packs, from the lowest bit on: the flags of the counter, its cuts, its admissions, its birth and the number of its limits.
type meta uint64

const (
	flagBits, cutBits, admissionBits, birthBits = 4, 11, 16, 13

	cutsMask       = 1<<(flagBits+cutBits) - 1
	admissionsMask = 1<<admissionBits - 1
	birthsMask     = 1<<birthBits - 1
	maxSetNumber   = 1<<(64-flagBits-cutBits-admissionBits-birthBits) - 1
	// MaxSets is the most that Config.MaxSets may be. The sets in use may exceed their cap several times for a moment.
	MaxSets = maxSetNumber / 8
)

const (
	pageBytes   = 4096
	recordBytes = 48
	pageRecords = pageBytes / recordBytes
)

// page is a piece of memory for records. They lie in slots: slot i is record i%pageRecords of page i/pageRecords.
type page struct {
	records [pageRecords]record
	_       [pageBytes - pageRecords*recordBytes]byte
}

// store holds the records of a shard in the slots from 0 to n-1. A record stays in its slot until it is removed, or the last one takes
// the slot of one that is. Not safe for concurrent use.
type store struct {
	arena *offheap.Arena
	pages pages
	n     uint32
	index index
	// bytes is the approximate memory of the counters.
	bytes int64
	// slabs have what does not fit into records.
	slabs *slabs
	// dirty has a bit for each slot whose counter is in the shard's journal.
	dirty []uint64
	// grants is the number of records that are grants, ledgers that of counters with a ledger.
	grants, ledgers int
	// hand is the slot that an eviction looks at next, glance that which an insertion looks at next.
	hand, glance uint32
}

type pages []*page

func (p pages) at(slot uint32) *record { return &p[slot/pageRecords].records[slot%pageRecords] }

func (s *store) at(slot uint32) *record { return s.pages.at(slot) }

func (s *store) find(k Key) (slot uint32, ok bool) {
	if l, place := s.index.search(s.pages, k.hash(), k); l != nil {
		return l.slots[place], true
	}
	return 0, false
}

// add returns the slot of a new record for k, which has none. Only its key is set.
func (s *store) add(k Key) uint32 {
	slot := s.n
	if int(slot/pageRecords) == len(s.pages) {
		s.pages = append(s.pages, (*page)(s.arena.Get()))
	}
	if int(slot/64) == len(s.dirty) {
		s.dirty = append(s.dirty, 0)
	}
	s.n++
	s.bytes += LeastBytes
	*s.at(slot) = record{key: k}
	s.index.insert(s.pages, k.hash(), slot)
	return slot
}

// remove takes the record of a slot out, and puts the last one there.
func (s *store) remove(slot uint32) {
	r := s.at(slot)
	if r.flags()&flagGrant != 0 {
		s.grants--
	}
	s.dropSide(r)
	s.index.remove(s.pages, r.key.hash(), r.key)
	s.setDirty(slot, false)
	s.n--
	s.bytes -= LeastBytes
	if last := s.n; slot != last {
		moved := s.at(last)
		l, place := s.index.search(s.pages, moved.key.hash(), moved.key)
		l.slots[place] = slot
		*r = *moved
		if s.isDirty(last) {
			s.setDirty(last, false)
			s.setDirty(slot, true)
		}
	}
	// One page stays as room, so that a shard which gains and loses counters by turns needs none from the arena.
	for int(s.n)/pageRecords+1 < len(s.pages)-1 {
		s.arena.Put(unsafe.Pointer(s.pages[len(s.pages)-1]))
		s.pages[len(s.pages)-1] = nil
		s.pages = s.pages[:len(s.pages)-1]
	}
}

func (s *store) clear() {
	for slot := range s.n {
		s.dropSide(s.at(slot))
	}
	for _, p := range s.pages {
		s.arena.Put(unsafe.Pointer(p))
	}
	*s = store{arena: s.arena, slabs: s.slabs}
}

func (s *store) isDirty(slot uint32) bool { return s.dirty[slot/64]&(1<<(slot%64)) != 0 }

func (s *store) setDirty(slot uint32, is bool) {
	if is {
		s.dirty[slot/64] |= 1 << (slot % 64)
	} else {
		s.dirty[slot/64] &^= 1 << (slot % 64)
	}
}

// eachDirty calls yield with the slots that are dirty, in order.
func (s *store) eachDirty(yield func(slot uint32) bool) {
	for i, word := range s.dirty {
		for ; word != 0; word &= word - 1 {
			if !yield(uint32(i*64 + bits.TrailingZeros64(word))) {
				return
			}
		}
	}
}

// fits reports whether c needs no side.
func (c *counter) fits() bool {
	return c.states() == 1 && c.ledger() == nil && c.first.log == nil && c.first.phase == 0 && c.first.last == never
}

// load reads the counter of slot into c, and its side into x.
func (s *store) load(t *Table, slot uint32, c *counter, x *side) {
	r := s.at(slot)
	*c = counter{
		limits: t.account(r.set()).limits, now: r.now, slot: slot, set: r.set(),
		cuts: uint32(r.meta & cutsMask), admissions: uint32(r.meta >> (flagBits + cutBits) & admissionsMask),
		birth: uint16(r.meta >> (flagBits + cutBits + admissionBits) & birthsMask),
	}
	if c.has(flagSide) {
		x.load(t, blockRef(r.spent).at(), c)
		return
	}
	c.first = state{spent: r.spent, aux: r.aux, last: never}
}

// save writes c into its slot.
func (s *store) save(c *counter) {
	r := s.at(c.slot)
	r.now = c.now
	if c.fits() {
		s.dropSide(r)
		c.cuts &^= flagSide
		r.spent, r.aux = c.first.spent, c.first.aux
	} else {
		s.saveSide(r, c)
		c.cuts |= flagSide
	}
	r.meta = meta(c.set)<<(flagBits+cutBits+admissionBits+birthBits) | meta(c.birth&birthsMask)<<(flagBits+cutBits+admissionBits) |
		meta(c.admissions&admissionsMask)<<(flagBits+cutBits) | meta(c.cuts&cutsMask)
}

func (r *record) flags() uint32 { return uint32(r.meta & (1<<flagBits - 1)) }

// set returns the number of the record's limits.
func (r *record) set() uint32 {
	return uint32(r.meta >> (flagBits + cutBits + admissionBits + birthBits))
}
