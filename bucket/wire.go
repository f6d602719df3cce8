package bucket

import "encoding/binary"

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

// add appends key's counter c, or that there is none.
func (im *Image) add(now int64, key Key, c *counter) {
	im.Counters++
	b := binary.LittleEndian.AppendUint64(im.Data, key.Hi)
	b = binary.LittleEndian.AppendUint64(b, key.Lo)
	if c == nil {
		im.Data = append(b, 0)
		return
	}
	b = binary.AppendUvarint(b, im.place(c.limits)+1)
	start := len(b)
	b = append(b, 0)
	b = binary.AppendVarint(b, subSat(now, c.now))
	b = im.appendBody(b, c)
	im.Data = putLength(b, start)
}

// appendBody appends what follows the age of c.
func (im *Image) appendBody(b []byte, c *counter) []byte {
	list := c.shadows()
	head := uint64(len(list))
	l := c.ledger()
	if l != nil {
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
		b = x.state.append(append(b, 0), x.plan(), c.now)
		b = putLength(b, start)
	}
	if l != nil {
		b = l.append(b, c.now)
	}
	return b
}

// append appends l.
func (l *ledger) append(b []byte, now int64) []byte {
	b = binary.AppendUvarint(b, uint64(len(l.grants)))
	for i := range l.grants {
		g := &l.grants[i]
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

// putLength puts the length of what follows the byte at start there, and makes room if the
// length needs more than the byte.
func putLength(b []byte, start int) []byte {
	n := len(b) - start - 1
	if n < 0x80 {
		b[start] = byte(n)
		return b
	}
	var length [binary.MaxVarintLen64]byte
	size := binary.PutUvarint(length[:], uint64(n))
	b = append(b, length[1:size]...) // for its size
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
