package access

import (
	"crypto/rand"
	"encoding/binary"
	"sync"

	"github.com/dchest/siphash"
)

const (
	// maxQuick bounds what is remembered: as many headers as there are tokens, unless somebody writes them in many ways.
	maxQuick = 4096
	// longestQuick is the longest header that is remembered, in bytes. `Bearer` and a token take 57.
	longestQuick = 64
)

// quick remembers whose token a header has, so that a call costs no SHA-256, which takes longer than all else here. It
// belongs to one Policy and is gone with it. Not the header is kept but its SipHash of 128 bits under a key that
// nobody knows and that changes with each policy: who has no token finds none that is taken for one, however often
// he tries.
type quick struct {
	k0, k1 uint64
	mu     struct {
		sync.RWMutex
		callers map[[2]uint64]*Caller
	}
}

func (q *quick) open() {
	var key [16]byte
	rand.Read(key[:]) // never fails
	q.k0, q.k1 = binary.LittleEndian.Uint64(key[:]), binary.LittleEndian.Uint64(key[8:])
	q.mu.callers = make(map[[2]uint64]*Caller)
}

// find returns the caller of a header that add was told of, else nil.
func (q *quick) find(values []string) *Caller {
	if len(values) != 1 || len(values[0]) > longestQuick {
		return nil
	}
	tag := q.tag(values[0])
	q.mu.RLock()
	c := q.mu.callers[tag]
	q.mu.RUnlock()
	return c
}

// add remembers that the header lets c in.
func (q *quick) add(values []string, c *Caller) {
	if len(values) != 1 || len(values[0]) > longestQuick {
		return
	}
	tag := q.tag(values[0])
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.mu.callers) >= maxQuick {
		clear(q.mu.callers)
	}
	q.mu.callers[tag] = c
}

func (q *quick) tag(header string) (tag [2]uint64) {
	var text [longestQuick]byte
	tag[0], tag[1] = siphash.Hash128(q.k0, q.k1, text[:copy(text[:], header)])
	return tag
}
