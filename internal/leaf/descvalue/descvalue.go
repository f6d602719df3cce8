// Package descvalue replaces descriptor values that are too long or not UTF-8 by short ones. All APIs and the SDK call it, so that
// such a value fails no check and has one counter. It is pure.
package descvalue

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode/utf8"
)

const (
	// Max is how many bytes a value may have to be counted as it is.
	Max = 1 << 10
	// kept is how many bytes of a longer one stand before its hash, so that patterns with a prefix match it and people
	// recognize it.
	kept = 512
)

// Of returns v, or for a v of more than Max bytes or that is not UTF-8, its first 512 bytes, "#" and its Hash. The result is UTF-8
// of at most Max bytes, Of(Of(v)) is Of(v), and two values that are shortened have different results.
func Of(v string) string {
	if len(v) <= Max && utf8.ValidString(v) {
		return v
	}
	return strings.ToValidUTF8(v[:min(len(v), kept)], "?") + "#" + Hash(v)
}

// Hash returns the first 128 bits of v's SHA-256, in hexadecimal.
func Hash(v string) string {
	sum := sha256.Sum256([]byte(v))
	return hex.EncodeToString(sum[:16])
}
