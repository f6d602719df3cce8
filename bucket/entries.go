package bucket

import "slices"

// entry is cost units that count until the log's span (see plan.span) has passed since at (Unix ns).
type entry struct{ at, cost int64 }

// entries is the ring of a log. It is the memory only: a state's aux says which part of it
// holds entries, so that a copy of the state can drop entries and leave the ring alone.
type entries struct {
	// ring has a length that is a power of two. A phase has none.
	ring []entry
	// phase is where in a period the windows of a kindWeighted begin, in (0, period). Many states share such
	// entries, and nothing writes to them.
	phase int64
}

// owned reports whether e is the ring of one log.
func (e *entries) owned() bool { return e != nil && e.ring != nil }

// minRing is the length of the smallest ring. Rings double when full and halve when an
// eighth full, so that a log in steady use does not allocate.
const minRing = 4

// newEntries returns a ring with room for n entries.
func newEntries(n int) *entries {
	length := minRing
	for length < n {
		length *= 2
	}
	return &entries{ring: make([]entry, length)}
}

// span is the part of a ring that holds entries, packed into a state's aux.
type span struct{ head, n uint32 }

func (s *state) span() span { return span{uint32(s.aux >> 32), uint32(s.aux)} }

func (s *state) setSpan(v span) { s.aux = int64(v.head)<<32 | int64(v.n) }

// at returns entry i, the oldest being entry 0.
func (e *entries) at(v span, i uint32) *entry {
	return &e.ring[(v.head+i)&uint32(len(e.ring)-1)]
}

// push adds an entry as the newest one.
func (s *state) push(x entry) {
	v := s.span()
	if s.log == nil {
		s.log = &entries{ring: make([]entry, minRing)}
	} else if int(v.n) == len(s.log.ring) {
		v = s.log.resize(v, 2*len(s.log.ring))
	} else if int(v.n) < len(s.log.ring)/8 && len(s.log.ring) > minRing {
		v = s.log.resize(v, len(s.log.ring)/2)
	}
	*s.log.at(v, v.n) = x
	v.n++
	s.setSpan(v)
}

// resize moves the entries into a ring of length n.
func (e *entries) resize(v span, n int) span {
	ring := make([]entry, n)
	for i := range v.n {
		ring[i] = *e.at(v, i)
	}
	e.ring = ring
	return span{0, v.n}
}

// remove takes entry i out.
func (s *state) remove(i uint32) {
	v := s.span()
	for ; i+1 < v.n; i++ {
		*s.log.at(v, i) = *s.log.at(v, i+1)
	}
	v.n--
	s.setSpan(v)
}

// clone returns a copy of e; e may be nil.
func (e *entries) clone() *entries {
	if e == nil || e.ring == nil {
		return e
	}
	return &entries{ring: slices.Clone(e.ring)}
}

// bytes returns the approximate memory of e; e may be nil.
func (e *entries) bytes() int64 {
	if e == nil || e.ring == nil {
		return 0
	}
	return 32 + 16*int64(len(e.ring))
}
