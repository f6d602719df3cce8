package bucket

import (
	"encoding/binary"
	"math/bits"
)

// index finds the slot of a key's record: a hash table of lines, each as long as a line of a processor's cache. A line has an
// eighth of a hash (the tag) and the slot of up to lineSlots keys; a key is in the line that its hash names (its home), or in one
// of those that follow, if those before were full when it came. over counts for each line the keys that went past it, so a
// search knows where to end, and a removal leaves nothing behind (as in F14, "Open-sourcing F14 for faster, more memory-efficient
// hash tables", Facebook 2019).
//
// It has no pointers, so the garbage collector does not look into it, and it grows and shrinks by a few lines with each insertion
// and removal, so none of them takes long.
type index struct {
	lines []line
	// old are the lines of before, of which the first moved are empty by now. nil unless the index is changing its size.
	old   []line
	moved int
	// used is how many keys are in lines, and in old.
	used, usedOld int
}

const (
	lineSlots = 12
	// fullSlots of a line are used on average when the index grows.
	fullSlots = 10
	// emptySlots of a line are used on average when it shrinks.
	emptySlots = 3
	// movedAtOnce is how many old lines an insertion or removal moves.
	movedAtOnce = 2
	// manyOver is an over that is not counted any more.
	manyOver = 255
)

type line struct {
	tags  [lineSlots]uint8 // 0 where there is no key
	over  uint8
	_     [3]uint8
	slots [lineSlots]uint32
}

// hash mixes both halves of k. Keys are hashes with a secret, so nobody can choose them; but those of tests are small numbers.
func (k Key) hash() uint64 {
	hi, lo := bits.Mul64(k.Hi^bits.RotateLeft64(k.Lo, 32)^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	return hi ^ lo ^ k.Lo
}

// spread returns the home and the tag of a hash among n lines.
func spread(hash uint64, n int) (home int, tag uint8) {
	high, _ := bits.Mul64(hash*0x9e3779b97f4a7c15, uint64(n))
	return int(high), max(1, uint8(hash>>8))
}

// matching returns a bit for each tag of l that may be tag, at bit 8 of each byte: all that are, and now and then another.
func (l *line) matching(tag uint8) (first uint64, rest uint32) {
	const ones, highs = 0x0101010101010101, 0x8080808080808080
	x := binary.LittleEndian.Uint64(l.tags[:8]) ^ ones*uint64(tag)
	y := binary.LittleEndian.Uint32(l.tags[8:]) ^ uint32(ones&0xffffffff)*uint32(tag)
	return (x - ones) &^ x & highs, (y - ones&0xffffffff) &^ y & (highs & 0xffffffff)
}

// search returns the line and the place of the key k with the hash, or nil.
func search(lines []line, pages pages, hash uint64, k Key) (l *line, place int) {
	if len(lines) == 0 {
		return nil, 0
	}
	at, tag := spread(hash, len(lines))
	for range len(lines) {
		l := &lines[at]
		first, rest := l.matching(tag)
		for ; first != 0; first &= first - 1 {
			if i := bits.TrailingZeros64(first) / 8; l.tags[i] == tag && pages.at(l.slots[i]).key == k {
				return l, i
			}
		}
		for ; rest != 0; rest &= rest - 1 {
			if i := 8 + bits.TrailingZeros32(rest)/8; l.tags[i] == tag && pages.at(l.slots[i]).key == k {
				return l, i
			}
		}
		if l.over == 0 {
			break
		}
		if at++; at == len(lines) {
			at = 0
		}
	}
	return nil, 0
}

// put puts slot in among lines, which are not full.
func put(lines []line, hash uint64, slot uint32) {
	at, tag := spread(hash, len(lines))
	for {
		l := &lines[at]
		for i := range l.tags {
			if l.tags[i] == 0 {
				l.tags[i], l.slots[i] = tag, slot
				return
			}
		}
		if l.over < manyOver {
			l.over++
		}
		if at++; at == len(lines) {
			at = 0
		}
	}
}

// take takes the key at a place of l out of lines.
func take(lines []line, hash uint64, l *line, place int) {
	l.tags[place] = 0
	for home, _ := spread(hash, len(lines)); &lines[home] != l; {
		if past := &lines[home]; past.over < manyOver {
			past.over--
		}
		if home++; home == len(lines) {
			home = 0
		}
	}
}

func (x *index) search(pages pages, hash uint64, k Key) (l *line, place int) {
	if l, place = search(x.lines, pages, hash, k); l == nil {
		l, place = search(x.old, pages, hash, k)
	}
	return l, place
}

// insert puts in the slot of a key that is not there.
func (x *index) insert(pages pages, hash uint64, slot uint32) {
	x.move(pages)
	if n := x.used + x.usedOld + 1; n > fullSlots*len(x.lines) {
		for x.old != nil {
			x.move(pages)
		}
		// Small ones double: all of them together take little.
		x.resize(len(x.lines) + max(1, len(x.lines)/4, min(len(x.lines), 16)))
	}
	put(x.lines, hash, slot)
	x.used++
}

// remove takes out the slot of the key k with the hash.
func (x *index) remove(pages pages, hash uint64, k Key) {
	if l, place := search(x.lines, pages, hash, k); l != nil {
		take(x.lines, hash, l, place)
		x.used--
	} else if l, place := search(x.old, pages, hash, k); l != nil {
		take(x.old, hash, l, place)
		x.usedOld--
	}
	x.move(pages)
	if n := x.used + x.usedOld; x.old == nil && len(x.lines) > 1 && n < emptySlots*len(x.lines) {
		x.resize(max(1, n/(2*emptySlots)+1))
	}
}

// resize begins to move the keys into so many new lines. Nothing may be moving.
func (x *index) resize(lines int) {
	x.old, x.moved, x.usedOld = x.lines, 0, x.used
	x.lines, x.used = make([]line, lines), 0
	if x.usedOld == 0 {
		x.old = nil
	}
}

// move moves the keys of a few old lines.
func (x *index) move(pages pages) {
	for n := 0; x.old != nil && n < movedAtOnce; n++ {
		l := &x.old[x.moved]
		for i, tag := range l.tags {
			if tag == 0 {
				continue
			}
			hash := pages.at(l.slots[i]).key.hash()
			put(x.lines, hash, l.slots[i])
			take(x.old, hash, l, i)
			x.used, x.usedOld = x.used+1, x.usedOld-1
		}
		if x.moved++; x.moved == len(x.old) || x.usedOld == 0 {
			x.old, x.moved = nil, 0
		}
	}
}
