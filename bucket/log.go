package bucket

import (
	"math"
	"math/bits"
	"slices"
	"time"
)

// The sliding window log: every charge is an entry, and the entries in (now − period, now] count. It is exact, and the most
// expensive algorithm. Entries of the same time are merged. A log of n entries that is too short for its limit merges neighbours
// with the later time, which can only make it stricter: an entry counts for at most period / (n / 2 − 1) longer.
//
// spent is the sum of the entries, saturated at the end of int64; then it is summed again when entries expire.

// dateOf returns the date of an entry for a charge at now: the beginning of its sub-window.
func (p *plan) dateOf(now int64) int64 {
	if p.grain == 1 {
		return now
	}
	return max(never+1, subSat(now, floorMod(now, p.grain)))
}

// entryFor returns the date of the entry that a charge to s at now goes into: the newest one if its sub-window, which may come
// from a node with another clock, has not ended.
func (s *state) entryFor(p *plan, now int64) int64 {
	at := p.dateOf(now)
	if v := s.span(); v.n > 0 {
		at = max(at, s.log.at(v, v.n-1).at)
	}
	return at
}

// settleLog drops the entries that no longer count.
func (s *state) settleLog(p *plan, now int64) {
	v, gone := s.span(), int64(0)
	n := v.n
	for v.n > 0 {
		x := s.log.at(v, 0)
		if elapsed(x.at, now) < uint64(p.span) {
			break
		}
		gone += x.cost // wraps only if spent is saturated
		v = s.log.withoutOldest(v)
	}
	if v.n < n {
		s.setSpan(v)
		s.lower(gone)
	}
}

func (s *state) sum() {
	_, s.spent = s.log.over(s.span(), math.MaxInt64)
}

// untilLog requires that more than target units count. They do until the entry expires that, together with all newer ones,
// exceeds target.
func (s *state) untilLog(p *plan, now, target int64) int64 {
	v := s.span()
	i, _ := s.log.over(v, target)
	return p.expiry(s.log.at(v, i).at, now)
}

// expiry returns the time (ns) from now until an entry with date at expires.
func (p *plan) expiry(at, now int64) int64 { return p.span - int64(elapsed(at, now)) }

func (s *state) chargeLog(p *plan, now, cost int64) {
	s.spent = addSat(s.spent, cost)
	at, v := p.dateOf(now), s.span()
	if int(v.n) >= p.maxEntries && s.log.at(v, v.n-1).at < at {
		if v = s.thin(p, v, p.maxEntries); int(v.n) == p.maxEntries && v.n > 1 && p.fitsIn(p.maxEntries) {
			v = s.mergeOldest(v)
		}
	}
	if v.n > 0 {
		newest := *s.log.at(v, v.n-1)
		if newest.at >= at || int(v.n) == p.maxEntries {
			newest.at = max(newest.at, at) // see entryFor; or it is in the same slot
			newest.cost = addSat(newest.cost, cost)
			s.log.set(v, v.n-1, newest)
			s.setSpan(v)
			return
		}
	}
	s.setSpan(v)
	s.push(entry{at, cost})
}

// fewSlots is the number of slots up to which making room for one entry is cheap enough to be done with every charge.
const fewSlots = 64

// slot returns the length (ns) of the slots in which thin merges until at most most entries are left.
func (p *plan) slot(most int) int64 {
	return ceilDiv(p.span, int64(max(1, max(most/2, min(most, fewSlots))-1)))
}

// LogError returns how much longer than Period a SlidingLog counts some units, because Count units may need more than LogEntries
// entries. It is 0 if they never do.
func (l *Limit) LogError() time.Duration {
	if p := l.compile(nil); p.kind == kindLog && !p.fitsIn(p.maxEntries) {
		return time.Duration(p.slot(p.maxEntries))
	}
	return 0
}

// thin merges entries among those v of the log of p, with the later time, so that at most most are left. If the newest most can
// fill the limit, these are the oldest ones, which makes no difference. Otherwise they are neighbours in one slot of the period. The
// slots are fixed, so the error is spread and does not grow when this happens again, and in long logs they are so few
// that half of the entries get free. A log of most entries, one for each slot, has one for now.
func (s *state) thin(p *plan, v span, most int) span {
	if !p.fitsIn(most) {
		v = s.mergeSlots(p, v, most)
	}
	for int(v.n) > most {
		v = s.mergeOldest(v)
	}
	return v
}

// fitsIn reports whether n entries, each of one check, fill the limit.
func (p *plan) fitsIn(n int) bool { return p.capacity/p.cost <= int64(n) }

func (s *state) mergeSlots(p *plan, v span, most int) span {
	slot := p.slot(most)
	if p.kind == kindBins && most+1 >= p.maxEntries {
		slot = p.grain // there are more only because clocks differ
	}
	to := span{v.head, 0}
	for i := range v.n {
		x := *s.log.at(v, i)
		if to.n > 0 {
			if last := s.log.at(to, to.n-1); floorDiv(last.at, slot) == floorDiv(x.at, slot) {
				x.cost = addSat(x.cost, last.cost)
				to.n--
			}
		}
		s.log.set(to, to.n, x)
		to.n++
	}
	return to
}

// mergeOldest merges the two oldest entries, with the later time.
func (s *state) mergeOldest(v span) span {
	s.log.setCost(v, 1, addSat(s.log.at(v, 1).cost, s.log.at(v, 0).cost))
	return s.log.withoutOldest(v)
}

// squeeze shortens the log of s, if it has one, to most entries by merging neighbours. The ring, which may be shared, is
// unchanged; s gets a new one.
func (s *state) squeeze(p *plan, most int) {
	v := s.span()
	if most == 0 || s.log == nil || int(v.n) <= most {
		return
	}
	s.log = s.log.clone()
	v = s.thin(p, v, most)
	length := minRing
	for length < int(v.n) {
		length *= 2
	}
	s.setSpan(s.log.resize(v, length))
}

// refundLog refunds from the newest entries.
func (s *state) refundLog(cost int64) {
	v, left := s.span(), cost
	for v.n > 0 && left > 0 {
		newest := s.log.at(v, v.n-1).cost
		if newest > left {
			s.log.setCost(v, v.n-1, newest-left)
			left = 0
			break
		}
		left -= newest
		v.n--
	}
	s.setSpan(v)
	s.lower(cost - left)
}

// undoLog removes a charge of cost from its entry, which has the date at, if that still counts.
func (s *state) undoLog(at, cost int64) {
	v := s.span()
	for i := v.n; i > 0; i-- {
		x := s.log.at(v, i-1)
		if x.at > at {
			continue
		}
		if x.at == at {
			cost := min(cost, x.cost)
			if x.cost > cost {
				s.log.setCost(v, i-1, x.cost-cost)
			} else {
				s.remove(i - 1)
			}
			s.lower(cost)
		}
		return
	}
}

// lower lowers spent by the cost that was removed from entries.
func (s *state) lower(cost int64) {
	if s.spent == math.MaxInt64 {
		s.sum()
	} else {
		s.spent -= cost
	}
}

// entry is cost units that count until the log's span (see plan.span) has passed since at (Unix ns).
type entry struct{ at, cost int64 }

// entries is the ring of a log. It is the memory only: a state's aux has the range of the entries, so that a copy of the state
// can drop entries without changing the ring.
type entries struct {
	// The length of ring is a power of two.
	ring []entry
	// sums has the units of each block of a longer ring, over all its places, used or not, to speed up counting from the newest
	// entry.
	sums []sum
	// block is the table's memory of ring and sums, 0 if they are on Go's heap.
	block blockRef
}

// minRing is the length of the smallest ring. Rings double when full and halve when an eighth full, so that a log in steady use
// does not allocate.
const minRing = 4

// sumPlaces is the number of places of a ring that share a sum.
const sumPlaces = 64

// sum is an unsigned 128-bit number: a block may exceed int64.
type sum struct{ hi, lo uint64 }

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

// allocate gives e an empty ring of length n.
func (e *entries) allocate(n int) {
	*e = entries{ring: make([]entry, n)}
	if n > sumPlaces {
		e.sums = make([]sum, n/sumPlaces)
	}
}

// span is the range of a ring that has entries, packed into a state's aux.
type span struct{ head, n uint32 }

func (s *state) span() span { return span{uint32(s.aux >> 32), uint32(s.aux)} }

func (s *state) setSpan(v span) { s.aux = int64(v.head)<<32 | int64(v.n) }

// withoutOldest returns the range v without its oldest entry.
func (e *entries) withoutOldest(v span) span {
	return span{(v.head + 1) & uint32(len(e.ring)-1), v.n - 1}
}

// at returns entry i; 0 is the oldest.
func (e *entries) at(v span, i uint32) *entry {
	return &e.ring[(v.head+i)&uint32(len(e.ring)-1)]
}

func (e *entries) set(v span, i uint32, x entry) {
	place := (v.head + i) & uint32(len(e.ring)-1)
	if e.sums != nil {
		e.sums[place/sumPlaces].replace(e.ring[place].cost, x.cost)
	}
	e.ring[place] = x
}

func (e *entries) setCost(v span, i uint32, cost int64) { e.set(v, i, entry{e.at(v, i).at, cost}) }

// over returns the index of the newest entry that, together with all newer ones, exceeds target units, and the units of the
// newer ones. If all of v do not exceed it, that is index 0 and all units.
func (e *entries) over(v span, target int64) (i uint32, newer int64) {
	for i = v.n; i > 0; {
		if place := (v.head + i - 1) & uint32(len(e.ring)-1); place%sumPlaces == sumPlaces-1 && i >= sumPlaces && e.sums != nil {
			if all := addSat(newer, e.sums[place/sumPlaces].units()); all <= target {
				newer = all
				i -= sumPlaces
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
	if e == nil {
		return nil
	}
	return &entries{ring: slices.Clone(e.ring), sums: slices.Clone(e.sums)}
}
