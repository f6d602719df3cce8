package access

import (
	"crypto/rand"
	"encoding/binary"
	"math/bits"
	"strings"
	"sync/atomic"

	"github.com/dchest/siphash"
)

// quickScheme and a token are the only spelling of a header that is remembered, so that a token takes one place.
const (
	quickScheme = "Bearer "
	quickSize   = len(quickScheme) + tokenSize
	quickProbes = 8
)

// quick remembers whose token a header has, so that a call costs no SHA-256, which takes longer than all else here. It
// belongs to one Policy and is gone with it. Not the header is kept but its SipHash of 128 bits under a key that
// nobody knows and that changes with each policy: who has no token finds none that is taken for one, however often
// he tries. It has room for all tokens of the policy, and one that finds none near its place is looked up as at first.
type quick struct {
	k0, k1 uint64
	slots  []atomic.Pointer[header]
}

// header is one that lets a caller in.
type header struct {
	tag    [2]uint64
	caller *Caller
}

// open makes room for so many tokens.
func (q *quick) open(tokens int) {
	var key [16]byte
	rand.Read(key[:]) // never fails
	q.k0, q.k1 = binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])
	q.slots = make([]atomic.Pointer[header], 1<<bits.Len(uint(2*tokens)))
}

// find returns the caller of a header that add was told of, else nil.
func (q *quick) find(values []string) *Caller {
	if len(values) != 1 || len(values[0]) != quickSize {
		return nil
	}
	tag := q.tag(values[0])
	for i := range uint64(quickProbes) {
		h := q.slot(tag[0] + i).Load()
		if h == nil {
			return nil
		}
		if h.tag == tag {
			return h.caller
		}
	}
	return nil
}

// add remembers that the header lets c in.
func (q *quick) add(values []string, c *Caller) {
	if len(values) != 1 || len(values[0]) != quickSize || !strings.HasPrefix(values[0], quickScheme) {
		return
	}
	h := &header{q.tag(values[0]), c}
	for i := range uint64(quickProbes) {
		slot := q.slot(h.tag[0] + i)
		if slot.CompareAndSwap(nil, h) || slot.Load().tag == h.tag {
			return
		}
	}
}

func (q *quick) slot(i uint64) *atomic.Pointer[header] { return &q.slots[i&uint64(len(q.slots)-1)] }

func (q *quick) tag(text string) (tag [2]uint64) {
	var bytes [quickSize]byte
	copy(bytes[:], text)
	tag[0], tag[1] = siphash.Hash128(q.k0, q.k1, bytes[:])
	return tag
}
