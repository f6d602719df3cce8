package bucket

import (
	"math"
	"math/bits"
	"slices"
)

// entry is cost units that count until the log's span (see plan.span) has passed since at (Unix ns).
type entry struct{ at, cost int64 }

// entries is the ring of a log. It is the memory only: a state's aux says which part of it
// holds entries, so that a copy of the state can drop entries and leave the ring alone.
type entries struct {
	// ring has a length that is a power of two. A phase has none.
	ring []entry
	// sums has the units of each block of a ring that is longer than one, of all its places, whether they hold entries or did, so that
	// counting from the newest entry on takes few steps.
	sums []sum
	// phase is where in a period the windows of a kindWeighted begin, in (0, period). Many states share such
	// entries, and nothing writes to them.
	phase int64
}

// owned reports whether e is the ring of one log.
func (e *entries) owned() bool { return e != nil && e.ring != nil }

// minRing is the length of the smallest ring. Rings double when full and halve when an
// eighth full, so that a log in steady use does not allocate.
const minRing = 4

// block is how many places of a ring share a sum.
const block = 64

// sum is an unsigned number of 128 bits: a block may hold more units than int64.
type sum struct{ hi, lo uint64 }

// replace takes the cost was out of the sum and puts the cost is in.
func (x *sum) replace(was, is int64) {
	var carry uint64
	x.lo, carry = bits.Sub64(x.lo, uint64(was), 0)
	x.hi -= carry
	x.lo, carry = bits.Add64(x.lo, uint64(is), 0)
	x.hi += carry
}

// units returns the sum, at most math.MaxInt64.
func (x *sum) units() int64 {
	if x.hi > 0 {
		return math.MaxInt64
	}
	return saturate(x.lo)
}

// newEntries returns a ring with room for n entries.
func newEntries(n int) *entries {
	length := minRing
	for length < n {
		length *= 2
	}
	e := new(entries)
	e.allocate(length)
	return e
}

// allocate makes the ring of e an empty one of length n.
func (e *entries) allocate(n int) {
	e.ring, e.sums = make([]entry, n), nil
	if n > block {
		e.sums = make([]sum, n/block)
	}
}

// span is the part of a ring that holds entries, packed into a state's aux.
type span struct{ head, n uint32 }

func (s *state) span() span { return span{uint32(s.aux >> 32), uint32(s.aux)} }

func (s *state) setSpan(v span) { s.aux = int64(v.head)<<32 | int64(v.n) }

// at returns entry i, the oldest being entry 0.
func (e *entries) at(v span, i uint32) *entry {
	return &e.ring[(v.head+i)&uint32(len(e.ring)-1)]
}

// set makes x the entry i.
func (e *entries) set(v span, i uint32, x entry) {
	place := (v.head + i) & uint32(len(e.ring)-1)
	if e.sums != nil {
		e.sums[place/block].replace(e.ring[place].cost, x.cost)
	}
	e.ring[place] = x
}

// setCost changes the cost of entry i.
func (e *entries) setCost(v span, i uint32, cost int64) { e.set(v, i, entry{e.at(v, i).at, cost}) }

// over returns the place of the newest entry that has, together with all that are newer, more than target units, and how many units
// those have that are newer. If all of v have no more, that is place 0, and all of its units.
func (e *entries) over(v span, target int64) (i uint32, newer int64) {
	for i = v.n; i > 0; {
		if place := (v.head + i - 1) & uint32(len(e.ring)-1); place%block == block-1 && i >= block && e.sums != nil {
			if all := addSat(newer, e.sums[place/block].units()); all <= target {
				newer = all
				i -= block
				continue
			}
		}
		all := addSat(newer, e.at(v, i-1).cost)
		if all > target {
			return i - 1, newer
		}
		newer = all
		i--
	}
	return 0, newer
}

// push adds an entry as the newest one.
func (s *state) push(x entry) {
	v := s.span()
	if s.log == nil {
		s.log = newEntries(minRing)
	} else if int(v.n) == len(s.log.ring) {
		v = s.log.resize(v, 2*len(s.log.ring))
	} else if int(v.n) < len(s.log.ring)/8 && len(s.log.ring) > minRing {
		v = s.log.resize(v, len(s.log.ring)/2)
	}
	s.log.set(v, v.n, x)
	v.n++
	s.setSpan(v)
}

// resize moves the entries into a ring of length n.
func (e *entries) resize(v span, n int) span {
	old := *e
	e.allocate(n)
	to := span{0, v.n}
	for i := range v.n {
		e.set(to, i, *old.at(v, i))
	}
	return to
}

// remove takes entry i out.
func (s *state) remove(i uint32) {
	v := s.span()
	for ; i+1 < v.n; i++ {
		s.log.set(v, i, *s.log.at(v, i+1))
	}
	v.n--
	s.setSpan(v)
}

// clone returns a copy of e; e may be nil.
func (e *entries) clone() *entries {
	if e == nil || e.ring == nil {
		return e
	}
	return &entries{ring: slices.Clone(e.ring), sums: slices.Clone(e.sums)}
}

// bytes returns the approximate memory of e; e may be nil.
func (e *entries) bytes() int64 {
	if e == nil || e.ring == nil {
		return 0
	}
	return 56 + 16*int64(len(e.ring)+len(e.sums))
}
