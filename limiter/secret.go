package limiter

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"github.com/dchest/siphash"

	"github.com/sluice-project/sluice/bucket"
)

// MinSecret is the least length of a cluster secret, in bytes.
const MinSecret = 32

// What is derived from the secret, by HKDF-SHA-256 (RFC 5869). A label changes
// only with the placement number: nodes that derive different keys must not meet.
const (
	labelCounterKey  = "sluice counter key v1"
	labelFingerprint = "sluice secret fingerprint v1"
	labelRedaction   = "sluice redaction v1"
	labelProof       = "sluice peer proof v1"
	labelGossip      = "sluice gossip key v1"
)

// Hasher makes counter keys: SipHash-2-4 with a 128-bit result, keyed from the
// cluster secret, so that nobody without it can choose descriptors that collide
// or land on one node. It also makes what stands for private values, under a key of its own. It is a value, safe for
// concurrent use.
type Hasher struct {
	k0, k1 uint64
	// private is the key of what stands for private values.
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

// Fingerprint returns 16 bytes that are equal where secrets are, and from which
// the secret cannot be found as long as it is random. Snapshots have it, so that counters are
// not read under other keys. It never leaves the machine.
func Fingerprint(secret []byte) ([]byte, error) {
	return derive(secret, labelFingerprint, 16)
}

// ProofKey returns the key, of 32 bytes, that nodes prove with to each other that they know the secret.
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
