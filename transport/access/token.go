package access

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"math/bits"
	"strings"
	"sync/atomic"

	"github.com/dchest/siphash"
)

// A token is tokenPrefix and 32 random bytes in URL-safe base64 without padding. Nothing else is a token, so that a guessable
// word in the file opens no API; and scanners find tokens in source code. The file has the SHA-256 of each: 256 random bits
// need no slow hash like bcrypt, which every call would pay for.
const (
	tokenPrefix = "sluice_"
	tokenRandom = 32
	tokenSize   = len(tokenPrefix) + 43
)

// digestPrefix stands before a digest in the file.
const digestPrefix = "sha256:"

// Digest is the SHA-256 of a token. Callers are looked up by it: the time that this takes reveals the digest at most, not the
// token.
type Digest [sha256.Size]byte

// String is the digest as the file has it.
func (d Digest) String() string { return digestPrefix + hex.EncodeToString(d[:]) }

// NewToken returns a new token of random, which should be crypto/rand.Reader.
func NewToken(random io.Reader) (string, error) {
	var bytes [tokenRandom]byte
	if _, err := io.ReadFull(random, bytes[:]); err != nil {
		return "", fmt.Errorf("cannot make a token: %w", err)
	}
	return tokenPrefix + base64.RawURLEncoding.EncodeToString(bytes[:]), nil
}

// DigestOf returns the digest of token; ok is false for a text that is none.
func DigestOf(token string) (d Digest, ok bool) {
	if len(token) != tokenSize || !strings.HasPrefix(token, tokenPrefix) {
		return d, false
	}
	var text [tokenSize]byte
	copy(text[:], token)
	for _, c := range text[len(tokenPrefix):] {
		if !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '-' || c == '_') {
			return d, false
		}
	}
	return sha256.Sum256(text[:]), true
}

// parseDigest reads a digest as the file has it.
func parseDigest(s string) (d Digest, ok bool) {
	text, found := strings.CutPrefix(s, digestPrefix)
	if !found || len(text) != hex.EncodedLen(len(d)) {
		return d, false
	}
	_, err := hex.Decode(d[:], []byte(text))
	return d, err == nil
}

// bearer returns the digest of the only value of an Authorization header, which must be Bearer and a token.
func bearer(values []string) (d Digest, ok bool) {
	if len(values) != 1 {
		return d, false
	}
	const scheme = "bearer "
	v := values[0]
	if len(v) < len(scheme) || !strings.EqualFold(v[:len(scheme)], scheme) {
		return d, false
	}
	return DigestOf(strings.Trim(v[len(scheme):], " "))
}

// quickScheme and a token is the only form of a header that is remembered, so that a token takes one slot.
const (
	quickScheme = "Bearer "
	quickSize   = len(quickScheme) + tokenSize
	quickProbes = 8
)

// quick has the callers of headers, so that a call costs no SHA-256, the slowest part. It belongs to one Policy. It keeps the
// header's SipHash of 128 bits under a random key of the policy, which a caller without a token cannot collide with. It has
// room for all tokens of the policy; one without a free slot near its place takes the slow way.
type quick struct {
	k0, k1 uint64
	slots  []atomic.Pointer[header]
}

// header is the hash of a header, and its caller.
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

// find returns the caller of an added header, else nil.
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

// add remembers c as the caller of the header.
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
