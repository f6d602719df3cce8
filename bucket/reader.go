package bucket

import (
	"encoding/binary"
	"math"
)

// reader takes an image's numbers off its data. After the first thing that is wrong, why says what
// it was, and everything else reads as 0.
type reader struct {
	rest []byte
	why  string
}

// fail notes what is wrong, unless something was before.
func (r *reader) fail(why string) {
	if r.why == "" {
		r.why = why
	}
	r.rest = nil
}

// uint reads a number.
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

// units reads an amount of units.
func (r *reader) units() int64 { return r.upTo(math.MaxInt64, "an amount is too large") }

// take reads n bytes.
func (r *reader) take(n uint64) []byte {
	if n > uint64(len(r.rest)) {
		r.fail("it ends too early")
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

// key reads a key.
func (r *reader) key() (k Key) {
	if b := r.take(16); b != nil {
		k = Key{binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])}
	}
	return k
}
