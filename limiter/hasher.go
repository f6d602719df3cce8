package limiter

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/dchest/siphash"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
)

// MinSecret is the least length of a cluster secret, in bytes.
const MinSecret = 32

// Labels of keys that are derived from the secret, by HKDF-SHA-256 (RFC 5869). A label changes only with the placement number:
// nodes that derive different keys must not meet.
const (
	labelCounterKey  = "sluice counter key v1"
	labelFingerprint = "sluice secret fingerprint v1"
	labelRedaction   = "sluice redaction v1"
	labelProof       = "sluice peer proof v1"
	labelGossip      = "sluice gossip key v1"
)

// Hasher makes counter keys: SipHash-2-4 with a 128-bit result, keyed from the cluster secret, so that only nodes with the secret can
// choose descriptors that collide or land on one node. It also hashes private values, under a key of their own. It is a value,
// safe for concurrent use.
type Hasher struct {
	k0, k1  uint64
	private [2]uint64
}

// NewHasher derives a Hasher from the cluster secret, at least MinSecret bytes.
func NewHasher(secret []byte) (Hasher, error) {
	b, err := derive(secret, labelCounterKey, 16)
	if err != nil {
		return Hasher{}, err
	}
	r, err := derive(secret, labelRedaction, 16)
	if err != nil {
		return Hasher{}, err
	}
	return Hasher{
		k0: binary.LittleEndian.Uint64(b), k1: binary.LittleEndian.Uint64(b[8:]),
		private: [2]uint64{binary.LittleEndian.Uint64(r), binary.LittleEndian.Uint64(r[8:])},
	}, nil
}

// Key returns the counter key of the bytes in name.
func (h Hasher) Key(name []byte) bucket.Key {
	lo, hi := siphash.Hash128(h.k0, h.k1, name)
	return bucket.Key{Hi: hi, Lo: lo}
}

// sealBytes is the length of the hash that seal appends.
const sealBytes = 16

// seal appends to b a keyed hash of it, and unseal takes it off and reports whether it is that of the rest, of 2 bytes or more.
func (h Hasher) seal(b []byte) []byte {
	sum := h.Key(b)
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(b, sum.Hi), sum.Lo)
}

func (h Hasher) unseal(b []byte) (rest []byte, ok bool) {
	if len(b) < sealBytes+2 {
		return nil, false
	}
	rest = b[:len(b)-sealBytes]
	sum := h.Key(rest)
	given := b[len(rest):]
	return rest, (binary.LittleEndian.Uint64(given)^sum.Hi)|(binary.LittleEndian.Uint64(given[8:])^sum.Lo) == 0
}

// Fingerprint returns 16 bytes that identify a secret and do not reveal a random one. Snapshots have it, so that counters are
// not read under other keys. It never leaves the machine.
func Fingerprint(secret []byte) ([]byte, error) {
	return derive(secret, labelFingerprint, 16)
}

// ProofKey returns the key, of 32 bytes, by which nodes prove to each other that they know the secret.
func ProofKey(secret []byte) ([]byte, error) { return derive(secret, labelProof, 32) }

// GossipKey returns the key, of 32 bytes, that encrypts gossip where there is no keyring.
func GossipKey(secret []byte) ([]byte, error) { return derive(secret, labelGossip, 32) }

func derive(secret []byte, label string, n int) ([]byte, error) {
	if len(secret) < MinSecret {
		return nil, fmt.Errorf("cluster secret: %d bytes; want at least %d random ones", len(secret), MinSecret)
	}
	b, err := hkdf.Key(sha256.New, secret, nil, label, n)
	if err != nil {
		return nil, fmt.Errorf("cluster secret: %w", err)
	}
	return b, nil
}

// A private value is shown as redacted and redactedBytes of its hash in hex.
const (
	redacted      = "redacted:"
	redactedBytes = 6
)

// AppendShown appends the value of e, entry i of a descriptor of domain that rule applies to, as people may see it: the pattern
// or the block of addresses of values that share a counter, and a keyed hash if it is private (rules.Set.Redacts). No other way
// may lead a descriptor's value into a log, a trace, or a response to a caller that has not sent it. rule and set may be nil.
// With room in dst it does not allocate.
func (h Hasher) AppendShown(dst []byte, set *rules.Set, rule *rules.Rule, domain string, i int, e rules.Entry) []byte {
	at := len(dst)
	dst = rule.AppendValue(dst, i, e.Value)
	if !set.Redacts(rule, domain, i, e.Key) {
		return dst
	}
	// The key's length separates ("a", "bc") from ("ab", "c"). A user has the same hash in all domains.
	named := append(dst, e.Key...)
	named = append(named, byte(len(e.Key)), byte(len(e.Key)>>8))
	sum, _ := siphash.Hash128(h.private[0], h.private[1], named[at:])
	var b [8]byte
	for j := range b {
		b[j] = byte(sum >> (8 * j))
	}
	return hex.AppendEncode(append(dst[:at], redacted...), b[:redactedBytes])
}

// shown returns descriptor as people may see it.
func (l *Limiter) shown(set *rules.Set, rule *rules.Rule, domain string, descriptor []rules.Entry) []rules.Entry {
	out := make([]rules.Entry, len(descriptor))
	var buf []byte
	for i, e := range descriptor {
		buf = l.config.Hasher.AppendShown(buf[:0], set, rule, domain, i, e)
		out[i] = rules.Entry{Key: e.Key, Value: string(buf)}
	}
	return out
}
