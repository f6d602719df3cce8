package bucket

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
)

// Image has portable copies of counters, which one table exports and another imports. It contains only durations, so it is
// independent of the nodes' clocks (move.go).
//
// The format of Data is described in image.go. Data is valid only with the sets of limits that it was made with, or equal ones.
type Image struct {
	// Limits are the sets that Data refers to, by index. A receiver that does not know a set puts nil in its place; the
	// counters under it are then skipped.
	Limits []*Limits `cbor:"-"`
	// Data has Counters copies in sequence.
	Data []byte `cbor:"1,keyasint,omitempty"`
	// Counters is their number, including those that stand for a missing counter.
	Counters int `cbor:"-"`
}

// imageChunk is the number of counters exported or imported per lock.
const imageChunk = 64

// KeyAt is a key of a shard, with the slot that its counter was in: Export looks there first. Any slot is valid.
type KeyAt struct {
	Key  Key
	slot uint32
}

// Compare orders by slot, then by key.
func (k KeyAt) Compare(x KeyAt) int {
	return cmp.Or(cmp.Compare(k.slot, x.slot), cmp.Compare(k.Key.Hi, x.Key.Hi), cmp.Compare(k.Key.Lo, x.Key.Lo))
}

// Keys appends the keys of the shard's counters to keys, in the order of their slots.
func (t *Table) Keys(shard int, keys []KeyAt) []KeyAt {
	sh := t.lock(shard)
	defer sh.mu.Unlock()
	keys = slices.Grow(keys, int(sh.mu.store.n))
	for slot := range sh.mu.store.n {
		keys = append(keys, KeyAt{sh.mu.store.at(slot).key, slot})
	}
	return keys
}

// Export appends the counters of keys, which must belong to the shard, as of now (Unix ns), to im. A key without a counter is
// exported as such, and importing it removes the counter. The table is unchanged. The lock is held for a few keys at a time:
// each counter is as of some moment during the call.
func (t *Table) Export(now int64, shard int, keys []KeyAt, im *Image) {
	t.ExportSome(now, shard, keys, im, ImageBounds{})
}

// ImageBounds bound an image that must fit into one message. 0 means no bound.
type ImageBounds struct {
	// Bytes is the length of Data from which on no counter is added.
	Bytes int
	// Sets is the maximum number of sets of limits, at least MaxCounterSets.
	Sets int
	// Counter is the maximum size of one counter. A larger one is exported as missing.
	Counter int
}

// MaxCounterSets is the maximum number of sets of one counter: the current and former ones.
const MaxCounterSets = 1 + maxFormer

// MaxCounterBytes exceeds the size of any counter; a log entry takes at most some 20 bytes.
const MaxCounterBytes = 2 << 20

// Fits reports whether im has room for another counter.
func (r *ImageBounds) Fits(im *Image) bool {
	return (r.Bytes == 0 || len(im.Data) < r.Bytes) && (r.Sets == 0 || len(im.Limits)+MaxCounterSets <= r.Sets)
}

// ExportSome is Export for the first n of keys that fit into im. large is the number of counters that were too large and were
// exported as missing.
func (t *Table) ExportSome(now int64, shard int, keys []KeyAt, im *Image, room ImageBounds) (n, large int) {
	now = inRange(now)
	sh := &t.shards[shard]
	for n < len(keys) && room.Fits(im) {
		stretch := min(n+imageChunk, len(keys))
		im.Data = slices.Grow(im.Data, (stretch-n)*usualBytes)
		sh.mu.Lock()
		for ; n < stretch && room.Fits(im); n++ {
			data, sets := len(im.Data), len(im.Limits)
			sh.exportLocked(sh.atLocked(now), keys[n], im)
			if room.Counter > 0 && len(im.Data)-data > room.Counter {
				im.Data, im.Limits, im.Counters = im.Data[:data], im.Limits[:sets], im.Counters-1
				im.add(now, keys[n].Key, nil)
				large++
			}
		}
		sh.mu.Unlock()
	}
	return n, large
}

// exportLocked appends the counter of k as of now to im.
func (sh *shard) exportLocked(now int64, k KeyAt, im *Image) {
	s := &sh.mu.store
	slot, ok := k.slot, k.slot < s.n && s.at(k.slot).key == k.Key
	if !ok {
		slot, ok = s.find(k.Key)
	}
	if !ok {
		im.add(now, k.Key, nil)
		return
	}
	r := s.at(slot)
	if r.flags()&flagSide != 0 {
		s.load(sh.table, slot, &sh.mu.work, &sh.mu.workSide)
		im.add(now, k.Key, &sh.mu.work)
		return
	}
	limits := sh.table.account(r.set()).limits
	b, start := im.begin(now, k.Key, limits, r.now)
	only := state{spent: r.spent, aux: r.aux, last: never}
	im.Data = putLength(only.append(append(b, 0), &limits.plans[0], r.now), start)
}

// usualBytes is the size of most counters in an image, at most.
const usualBytes = 48

// place returns the index of l among the sets of im, adding it if it is new.
func (im *Image) place(l *Limits) uint64 {
	// Adjacent counters often share their limits, so the last set is the most likely.
	for i := len(im.Limits) - 1; i >= 0; i-- {
		if im.Limits[i] == l {
			return uint64(i)
		}
	}
	im.Limits = append(im.Limits, l)
	return uint64(len(im.Limits) - 1)
}

// The form of a counter in Image.Data. Numbers are varints, those that may be negative
// zigzag-coded (encoding/binary).
//
//	key         16 bytes, Hi and Lo, little endian
//	limits      place in Image.Limits + 1; 0 says that there is no counter, and ends it
//	length      of the rest in bytes, so that a counter of unknown limits can be skipped
//	age         time (ns) since the counter was used; negative if its clock is ahead
//	shadows     their number, + 64 if a ledger follows
//	states      one for each limit that counts, by place
//	shadows     each: place in Image.Limits, place in that set, length of the state, state
//	ledger      number of grants, and each: time until its end, units, id, 2 × the set of the limits it is paid
//	            to (bit i for place i), + 1 if nothing of it can be given back
//
// A state is as of the counter's time, to which all that is relative is relative:
//
//	last        time since the last admission + 1; 0 is never
//	flow        spent; if not 0, aux
//	step, fixed spent; time until the next boundary, 0 if there is none
//	weighted    spent, aux; if one is not 0, the time since the window began
//	log, bins   number of entries; if not 0, the age of the oldest; then each one's
//	            distance from the one before it, the first excepted, and its cost. A distance of bins is
//	            2 × a number of sub-windows, or 2 × a time + 1
//
// So everything means the same on any clock.

// headLedger is added to the number of shadows if there is a ledger.
const headLedger = 64

// add appends key's counter c, or the mark of a missing one.
func (im *Image) add(now int64, key Key, c *counter) {
	if c == nil {
		im.Counters++
		im.Data = append(key.append(im.Data), 0)
		return
	}
	b, start := im.begin(now, key, c.limits, c.now)
	im.Data = putLength(im.appendBody(b, c), start)
}

// begin returns Data followed by what a counter of the limits l, used at at, begins with. Its length belongs at start.
func (im *Image) begin(now int64, key Key, l *Limits, at int64) (b []byte, start int) {
	im.Counters++
	b = binary.AppendUvarint(key.append(im.Data), im.place(l)+1)
	start = len(b)
	return binary.AppendVarint(append(b, 0), subSat(now, at)), start
}

func (k Key) append(b []byte) []byte {
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, k.Hi), k.Lo)
}

// appendBody appends everything after the age of c.
func (im *Image) appendBody(b []byte, c *counter) []byte {
	list := c.shadows()
	head := uint64(len(list))
	granted := c.grants()
	if len(granted) > 0 {
		head |= headLedger
	}
	b = binary.AppendUvarint(b, head)
	for i := range c.limits.plans {
		b = c.at(i).append(b, &c.limits.plans[i], c.now)
	}
	for i := range list {
		x := &list[i]
		b = binary.AppendUvarint(b, im.place(x.limits))
		b = binary.AppendUvarint(b, uint64(x.place))
		start := len(b)
		b = putLength(x.state.append(append(b, 0), x.plan(), c.now), start)
	}
	if len(granted) > 0 {
		b = appendGrants(b, granted, c.now)
	}
	return b
}

func appendGrants(b []byte, list []grant, now int64) []byte {
	b = binary.AppendUvarint(b, uint64(len(list)))
	for i := range list {
		g := &list[i]
		b = binary.AppendUvarint(b, elapsed(now, g.end))
		b = binary.AppendUvarint(b, uint64(g.units))
		b = binary.AppendUvarint(b, g.id)
		flags := uint64(g.paid) << 1
		if g.kept {
			flags |= 1
		}
		b = binary.AppendUvarint(b, flags)
	}
	return b
}

// putLength writes the length of the data after the byte at start there, and moves the data if the length needs more than one
// byte.
func putLength(b []byte, start int) []byte {
	n := len(b) - start - 1
	if n < 0x80 {
		b[start] = byte(n)
		return b
	}
	var length [binary.MaxVarintLen64]byte
	size := binary.PutUvarint(length[:], uint64(n))
	b = append(b, length[1:size]...) // only to extend b
	copy(b[start+size:], b[start+1:start+1+n])
	copy(b[start:], length[:size])
	return b
}

// append appends s, settled to now.
func (s *state) append(b []byte, p *plan, now int64) []byte {
	if p.stateless() {
		return b
	}
	if s.last == never {
		b = append(b, 0)
	} else {
		b = binary.AppendUvarint(b, elapsed(s.last, now)+1)
	}
	switch p.kind {
	case kindLog, kindBins:
		return s.appendLog(b, p, now)
	case kindWeighted:
		b = binary.AppendUvarint(b, uint64(s.spent))
		b = binary.AppendUvarint(b, uint64(s.aux))
		if s.spent > 0 || s.aux > 0 {
			b = binary.AppendUvarint(b, uint64(s.age(p, now)))
		}
		return b
	}
	b = binary.AppendUvarint(b, uint64(s.spent))
	switch {
	case p.kind == kindFlow && s.spent == 0:
	case p.kind == kindFlow:
		b = binary.AppendUvarint(b, uint64(s.aux))
	case s.aux == never:
		b = append(b, 0)
	default:
		b = binary.AppendUvarint(b, elapsed(now, s.aux))
	}
	return b
}

// appendLog appends the entries of s, the oldest first.
func (s *state) appendLog(b []byte, p *plan, now int64) []byte {
	v := s.span()
	b = binary.AppendUvarint(b, uint64(v.n))
	from := now
	for i := range v.n {
		x := s.log.at(v, i)
		switch gap := elapsed(from, x.at); {
		case i == 0:
			b = binary.AppendUvarint(b, elapsed(x.at, now))
		case p.grain == 1:
			b = binary.AppendUvarint(b, gap)
		case gap%uint64(p.grain) == 0:
			b = binary.AppendUvarint(b, gap/uint64(p.grain)<<1)
		default:
			b = binary.AppendUvarint(b, gap<<1|1)
		}
		b = binary.AppendUvarint(b, uint64(x.cost))
		from = x.at
	}
	return b
}

// reader reads numbers from an image's data. After the first error, why describes it, and everything else reads as 0.
type reader struct {
	rest []byte
	why  string
}

// fail records the first error.
func (r *reader) fail(why string) {
	if r.why == "" {
		r.why = why
	}
	r.rest = nil
}

func (r *reader) uint() uint64 {
	if len(r.rest) > 0 && r.rest[0] < 0x80 {
		n := r.rest[0]
		r.rest = r.rest[1:]
		return uint64(n)
	}
	v, n := binary.Uvarint(r.rest)
	if n <= 0 {
		r.fail("it ends in the middle of a number, or a number is too large")
		return 0
	}
	r.rest = r.rest[n:]
	return v
}

// int reads a number that may be negative.
func (r *reader) int() int64 {
	u := r.uint()
	return int64(u>>1) ^ -int64(u&1)
}

// upTo reads a number of at most most ≥ 0, or fails with why.
func (r *reader) upTo(most int64, why string) int64 {
	u := r.uint()
	if u > uint64(most) {
		r.fail(why)
		return 0
	}
	return int64(u)
}

func (r *reader) units() int64 { return r.upTo(math.MaxInt64, "an amount is too large") }

func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.fail("it ends too early")
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

func (r *reader) key() (k Key) {
	if b := r.take(16); b != nil {
		k = Key{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
	}
	return k
}
