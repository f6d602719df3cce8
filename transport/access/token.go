package access

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"strings"
)

// A token is tokenPrefix and 32 random bytes in URL-safe base64 without padding: 256 bits that nobody chooses. A door takes
// nothing else for one, so that a short or guessable word in the file opens no door; and scanners of source
// code can find those that were left there.
//
// The file has the SHA-256 of each. What makes passwords expensive to check, as bcrypt does, is for words that can be
// guessed by trying; 256 random bits cannot, and every call would pay for it.
const (
	tokenPrefix = "sluice_"
	tokenRandom = 32
	tokenSize   = len(tokenPrefix) + 43
)

// digestPrefix stands before a digest in the file.
const digestPrefix = "sha256:"

// Digest is the SHA-256 of a token, which is all that is known of it here. Callers are looked up by it: how long that
// takes tells of the digest at most, and nobody finds a token by its digest.
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
