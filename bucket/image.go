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
	Key Key
	// owner is the Hi of its counter's key if it is a grant.
	owner   uint64
	slot    uint32
	granted bool
}

func (r *record) keyAt(slot uint32) KeyAt {
	if r.flags()&flagGrant != 0 {
		return KeyAt{r.key, uint64(r.aux), slot, true}
	}
	return KeyAt{Key: r.key, slot: slot}
}

// Counter returns the key of the counter that it is, or is a grant of.
func (k KeyAt) Counter() Key {
	if k.granted {
		return Key{k.owner, k.Key.Lo}
	}
	return k.Key
}

// Compare orders counters before grants, counters by slot, grants by counter, and then by key.
func (k KeyAt) Compare(x KeyAt) int {
	switch {
	case k.granted != x.granted && x.granted:
		return -1
	case k.granted != x.granted:
		return 1
	case !k.granted && k.slot != x.slot:
		return cmp.Compare(k.slot, x.slot)
	}
	return cmp.Or(cmp.Compare(k.owner, x.owner), cmp.Compare(k.Key.Hi, x.Key.Hi), cmp.Compare(k.Key.Lo, x.Key.Lo))
}

// Keys appends the keys of the shard's counters to keys, in the order of their slots, and then those of its grants.
func (t *Table) Keys(shard int, keys []KeyAt) []KeyAt {
	sh := t.lock(shard)
	defer sh.mu.Unlock()
	from := len(keys)
	keys = slices.Grow(keys, int(sh.mu.store.n))
	for slot := range sh.mu.store.n {
		keys = append(keys, sh.mu.store.at(slot).keyAt(slot))
	}
	return keys[:from+sh.groupLocked(keys[from:])]
}

// KeysOf is Keys for the limits that of chooses, without counters that were last changed before since (Unix ns). of must not use the table.
func (t *Table) KeysOf(shard int, since int64, of func(*Limits) bool, keys []KeyAt) []KeyAt {
	sh := t.lock(shard)
	defer sh.mu.Unlock()
	from, least := len(keys), sh.atLocked(inRange(since))
	for slot := range sh.mu.store.n {
		r := sh.mu.store.at(slot)
		if (r.flags()&flagGrant != 0 || r.now >= least) && of(t.account(r.set()).limits) {
			keys = append(keys, r.keyAt(slot))
		}
	}
	return keys[:from+sh.groupLocked(keys[from:])]
}

// groupLocked puts the grants among keys behind the counters, grouped by counter, and leaves out counters that Export has
// with a grant. It returns how many keys are left.
func (sh *shard) groupLocked(keys []KeyAt) int {
	if !slices.ContainsFunc(keys, func(k KeyAt) bool { return k.granted }) {
		return len(keys)
	}
	slices.SortFunc(keys, KeyAt.Compare)
	first := slices.IndexFunc(keys, func(k KeyAt) bool { return k.granted })
	grants, n := keys[first:], 0
	for _, k := range keys[:first] {
		i, _ := slices.BinarySearchFunc(grants, k.Key.Hi, func(g KeyAt, hi uint64) int { return cmp.Compare(g.owner, hi) })
		if i == len(grants) || grants[i].owner != k.Key.Hi || grants[i].Key.Lo != k.Key.Lo {
			keys[n] = k
			n++
		}
	}
	return n + copy(keys[n:], grants)
}

// Export appends the counters and grants of keys, which must belong to the shard, as of now (Unix ns), to im. A key without either is
// exported as such, and importing it removes the counter. The table is unchanged. The lock is held for a few keys at a time:
// each counter is as of some moment during the call. Its grants come after it as of the same
// moment, so that a copy neither lacks the charge of a grant that has ended, nor has that of one
// that is open there.
func (t *Table) Export(now int64, shard int, keys []KeyAt, im *Image) {
	t.ExportSome(now, shard, keys, im, ImageBounds{Whole: math.MaxInt})
}

// ImageBounds bound an image that must fit into one message. 0 means no bound.
type ImageBounds struct {
	// Bytes is the length of Data from which on no counter is added.
	Bytes int
	// Sets is the maximum number of sets of limits, at least MaxCounterSets.
	Sets int
	// Counter is the maximum size of one counter. A larger one is exported as missing.
	Counter int
	// Whole is the length of Data up to which all grants of a counter are added with it, as of the
	// same moment, whatever the other bounds. The rest of them comes after the counter again, as of
	// a later moment: a copy of both needs the changes made in between.
	Whole int
}

// MaxCounterSets is the maximum number of sets of one counter: the current and former ones.
const MaxCounterSets = 1 + maxFormer

// MaxCounterBytes exceeds the size of any counter; a log entry takes at most some 20 bytes.
const MaxCounterBytes = 2 << 20

// Fits reports whether im has room for another counter.
func (r *ImageBounds) Fits(im *Image) bool {
	return (r.Bytes == 0 || len(im.Data) < r.Bytes) && (r.Sets == 0 || len(im.Limits)+MaxCounterSets <= r.Sets)
}

// ExportSome is Export for the first n of keys that fit into im. large is the number of counters
// that were too large and were exported as missing. im may get more counters than n.
func (t *Table) ExportSome(now int64, shard int, keys []KeyAt, im *Image, room ImageBounds) (n, large int) {
	now = inRange(now)
	sh := &t.shards[shard]
	for n < len(keys) && room.Fits(im) {
		stretch := min(n+imageChunk, len(keys))
		im.Data = slices.Grow(im.Data, room.usual(im, keys[n:], stretch-n)) // not under the lock
		sh.mu.Lock()
		last := KeyAt{granted: true} // which no counter is
		for at := sh.atLocked(now); n < len(keys); n++ {
			k := keys[n]
			owner := KeyAt{Key: Key{k.owner, k.Key.Lo}}
			if (n >= stretch || !room.Fits(im)) && !(len(im.Data) < room.Whole && k.granted && owner == last) {
				break
			}
			if k.granted && owner != last {
				if _, ok := sh.mu.store.find(owner.Key); ok {
					large += sh.exportLocked(at, owner, im, room.Counter)
				}
				last = owner
			}
			large += sh.exportLocked(at, k, im, room.Counter)
		}
		sh.mu.Unlock()
	}
	return n, large
}

// usual returns the length of most data that is added to im under one lock: that of n of keys, and
// of all further grants of the last one's counter as far as r.Whole allows.
func (r *ImageBounds) usual(im *Image, keys []KeyAt, n int) int {
	least, last := n*usualBytes, keys[n-1]
	most := max(least, r.Whole-len(im.Data))
	for ; last.granted && n < len(keys) && n < most/usualBytes; n++ {
		if k := &keys[n]; k.owner != last.owner || k.Key.Lo != last.Key.Lo {
			break
		}
	}
	return min(n*usualBytes, most)
}

// exportLocked appends the counter of k as of now to im, and returns whether it was larger than most, if that is not 0.
func (sh *shard) exportLocked(now int64, k KeyAt, im *Image, most int) (large int) {
	data, sets := len(im.Data), len(im.Limits)
	sh.appendLocked(now, k, im)
	if most == 0 || len(im.Data)-data <= most {
		return 0
	}
	im.Data, im.Limits, im.Counters = im.Data[:data], im.Limits[:sets], im.Counters-1
	im.add(now, k.Key, nil)
	return 1
}

// appendLocked appends the counter of k as of now to im.
func (sh *shard) appendLocked(now int64, k KeyAt, im *Image) {
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
	if r.flags()&flagGrant != 0 {
		im.Data = putLength(r.appendGrant(b), start)
		return
	}
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
//	shadows     their number
//	states      one for each limit that counts, by place
//	shadows     each: place in Image.Limits, place in that set, length of the state, state
//
// A grant has, in place of shadows and all after them:
//
//	64          in place of their number; its age is that of its deadline
//	counter     8 bytes, the Hi of its counter's key, little endian
//	units
//	attributes  its use, + 8 × how it has ended, + 32 if its units are free again at its deadline,
//	            + 64 × the attempt that has reserved it + 2¹⁹ × who has it
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

// headGrant is in the place of the number of shadows if it is a grant.
const headGrant = 64

func (r *record) appendGrant(b []byte) []byte {
	b = binary.LittleEndian.AppendUint64(binary.AppendUvarint(b, headGrant), uint64(r.aux))
	b = binary.AppendUvarint(b, uint64(r.spent))
	attributes := uint64(r.meta >> (flagBits + cutBits) & attributesMask)
	return binary.AppendUvarint(b, attributes|(uint64(r.attempt())|uint64(r.callerOf())<<attemptBits)<<attemptShift)
}

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
	b = binary.AppendUvarint(b, uint64(len(list)))
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
