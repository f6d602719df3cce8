package gossip

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hashicorp/memberlist"
)

// MaxKeys is the most keys of a Keyring: a message encrypted with none of them costs as many attempts.
const MaxKeys = 16

// Keyring holds the keys that gossip is encrypted with. The first, the primary, encrypts this node's messages; all of them
// decrypt. The zero value has no keys. It prints as the number of its keys.
type Keyring struct{ keys [][]byte }

// ParseKeyring reads a keyring: base64 keys (RFC 4648, with padding), one per line, the primary first, of 16, 24 or 32 bytes, for
// AES-128, AES-192 or AES-256 in GCM. It skips empty lines and those that begin with '#'. Errors name the line and never show it.
func ParseKeyring(text []byte) (Keyring, error) {
	var k Keyring
	number := 0
	for line := range bytes.Lines(text) {
		number++
		line = bytes.TrimSpace(line)
		if len(line) == 0 || line[0] == '#' {
			continue
		}
		key := make([]byte, base64.StdEncoding.DecodedLen(len(line)))
		n, err := base64.StdEncoding.Strict().Decode(key, line)
		if err != nil {
			return Keyring{}, fmt.Errorf("line %d is not base64, as `head -c 32 /dev/urandom | base64` prints it", number) // the error would show a part of it
		}
		key = key[:n]
		switch {
		case memberlist.ValidateKey(key) != nil:
			return Keyring{}, fmt.Errorf("line %d is a key of %d bytes: want 16, 24 or 32 (head -c 32 /dev/urandom | base64)", number, n)
		case slices.ContainsFunc(k.keys, func(other []byte) bool { return bytes.Equal(other, key) }):
			return Keyring{}, fmt.Errorf("line %d repeats a key", number)
		case len(k.keys) == MaxKeys:
			return Keyring{}, fmt.Errorf("line %d: more than %d keys", number, MaxKeys)
		}
		k.keys = append(k.keys, key)
	}
	if len(k.keys) == 0 {
		return Keyring{}, errors.New("it has no key")
	}
	return k, nil
}

// NewKeyring returns a keyring of keys, the primary first, of 16, 24 or 32 bytes each.
func NewKeyring(keys ...[]byte) (k Keyring, err error) {
	for i, key := range keys {
		if err := memberlist.ValidateKey(key); err != nil {
			return Keyring{}, fmt.Errorf("gossip: key %d: %w", i, err)
		}
		k.keys = append(k.keys, bytes.Clone(key))
	}
	return k, nil
}

// Len returns the number of keys.
func (k Keyring) Len() int { return len(k.keys) }

// Primary identifies the primary key without revealing it: 8 hex digits of its SHA-256, "" if there is no key.
func (k Keyring) Primary() string {
	if len(k.keys) == 0 {
		return ""
	}
	sum := sha256.Sum256(k.keys[0])
	return hex.EncodeToString(sum[:4])
}

// String returns the number of keys.
func (k Keyring) String() string { return fmt.Sprintf("%d keys", len(k.keys)) }

// GoString prints the same, so that no verb shows keys.
func (k Keyring) GoString() string { return "gossip.Keyring(" + k.String() + ")" }

// keyring is the one in force. memberlist reads its own at every message.
type keyring struct {
	list *memberlist.Keyring
	mu   sync.Mutex // held while list changes
}

// newKeyring returns nil for no keys: nothing is encrypted then.
func newKeyring(k Keyring) (*keyring, error) {
	if k.Len() == 0 {
		return nil, nil
	}
	list, err := memberlist.NewKeyring(k.keys, k.keys[0])
	if err != nil {
		return nil, fmt.Errorf("gossip: Keyring: %w", err)
	}
	return &keyring{list: list}, nil
}

// set replaces memberlist's keys while messages come and go. At every moment the keys that both rings have decrypt, and the
// primary is one of them: that of next once it is known.
//
// When memberlist removes a key it shifts the keys behind it in memory that readers hold, unless it is the last one. So keys to
// remove are moved to the end first.
func (r *keyring) set(next Keyring) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range keyringSteps(r.list.GetKeys(), next.keys) {
		if err := s.do(r.list); err != nil {
			return fmt.Errorf("gossip: Keyring: %w", err)
		}
	}
	return nil
}

// keyStep is one call of memberlist.Keyring.
type keyStep struct {
	call byte // 'a'dd, 'u'se, 'r'emove
	key  []byte
}

func (s keyStep) do(list *memberlist.Keyring) error {
	switch s.call {
	case 'a':
		return list.AddKey(s.key)
	case 'u':
		return list.UseKey(s.key)
	}
	return list.RemoveKey(s.key)
}

// keyringSteps returns the steps from keys, in memberlist's order, the primary first, to next. Adding puts a key at the end, using
// one puts it first, and both keep the order of the others.
func keyringSteps(keys, next [][]byte) (steps []keyStep) {
	keys = slices.Clone(keys)
	has := func(all [][]byte, key []byte) bool { return index(all, key) >= 0 }
	step := func(call byte, key []byte) {
		steps = append(steps, keyStep{call, key})
		if i := index(keys, key); i >= 0 {
			keys = slices.Delete(keys, i, i+1)
		}
		switch call {
		case 'a':
			keys = append(keys, key)
		case 'u':
			keys = slices.Insert(keys, 0, key)
		}
	}
	for _, key := range next {
		if !has(keys, key) {
			step('a', key)
		}
	}
	if !bytes.Equal(keys[0], next[0]) {
		step('u', next[0])
	}
	stays := func(key []byte) bool { return has(next, key) }
	if behind := slices.IndexFunc(keys, func(key []byte) bool { return !stays(key) }); behind >= 0 && slices.ContainsFunc(keys[behind:], stays) {
		// From the back, so that the first is first again. Other nodes may miss a message that is encrypted with a key
		// that was just added.
		for _, key := range slices.Backward(next) {
			step('u', key)
		}
	}
	for len(keys) > len(next) {
		step('r', keys[len(keys)-1])
	}
	return steps
}

func index(keys [][]byte, key []byte) int {
	return slices.IndexFunc(keys, func(k []byte) bool { return bytes.Equal(k, key) })
}

// ErrNotEncrypted means that this node's gossip was started without keys.
var ErrNotEncrypted = errors.New("gossip is not encrypted: keys can be given at the start only")

// SetKeyring replaces the keys for messages from now on. Two nodes communicate as long as each has the other's primary, so
// rotate in three steps, each on all nodes before the next: add the new key behind the primary; make it the primary; remove
// the old one. Encryption cannot be turned on or off: it returns ErrNotEncrypted if Open was given no keys, and an error if k
// has none.
func (g *Gossip) SetKeyring(k Keyring) error {
	if g.keys == nil {
		return fmt.Errorf("gossip: Keyring: %w", ErrNotEncrypted)
	}
	if k.Len() == 0 {
		return errors.New("gossip: Keyring: it has no key")
	}
	if err := g.keys.set(k); err != nil {
		return err
	}
	g.log.Info("gossip keys are in force", "keys", k.Len(), "primary", k.Primary())
	return nil
}

// Keyring returns the keys in force, none if gossip is not encrypted.
func (g *Gossip) Keyring() Keyring {
	if g.keys == nil {
		return Keyring{}
	}
	g.keys.mu.Lock()
	defer g.keys.mu.Unlock()
	return Keyring{g.keys.list.GetKeys()}
}
