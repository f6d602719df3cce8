// Package httpfield writes the fields of HTTP responses that tell clients about limits, for nodes and for the SDK. It decides
// neither which fields are sent nor their values.
package httpfield

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Set sets a field in this spelling, and deletes it in others. Header.Set would make Ratelimit of RateLimit.
func Set(h http.Header, name, value string) {
	for other := range h {
		if strings.EqualFold(other, name) {
			delete(h, other)
		}
	}
	h[name] = []string{value}
}

// Seconds returns d in whole seconds, rounded up, so that a retry is not early.
func Seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// AppendInteger appends n as an integer of RFC 9651, which has at most 15 digits.
func AppendInteger(b []byte, n int64) []byte {
	return strconv.AppendInt(b, min(max(n, 0), 999_999_999_999_999), 10)
}

// AppendString appends s as a string of RFC 9651: printable ASCII, with quotes and backslashes escaped. Other bytes are
// percent-encoded, as in URLs.
func AppendString[T string | []byte](b []byte, s T) []byte {
	const hex = "0123456789ABCDEF"
	b = append(b, '"')
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b = append(b, '\\', c)
		case c >= 0x20 && c < 0x7f:
			b = append(b, c)
		default:
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	return append(b, '"')
}
