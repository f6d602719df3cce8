// Package httpfield writes the fields of HTTP responses that tell clients about limits, for nodes and for the SDK, which so have
// the same values for a limit. It does not decide which fields are sent.
package httpfield

import (
	"math"
	"math/bits"
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
	plain := 0 // up to here it is appended
	for i := range len(s) {
		c := s[i]
		if c >= 0x20 && c < 0x7f && c != '"' && c != '\\' {
			continue
		}
		b = append(b, s[plain:i]...)
		if plain = i + 1; c == '"' || c == '\\' {
			b = append(b, '\\', c)
		} else {
			b = append(b, '%', hex[c>>4], hex[c&15])
		}
	}
	b = append(b, s[plain:]...)
	return append(b, '"')
}

// AppendPolicy appends a limit as an item of RateLimit-Policy (draft-ietf-httpapi-ratelimit-headers-11). q is the most that can
// be admitted at once, and w the time in which that refills, so that remaining never exceeds q and q ÷ w is the sustained
// rate. w is left out below one second, where whole seconds would state a wrong rate, and without a period (0).
func AppendPolicy(b []byte, name string, count, burst int64, period time.Duration) []byte {
	if burst > 0 && count > 0 {
		count, period = burst, Scale(period, burst, count)
	}
	b = AppendInteger(append(AppendString(b, name), ";q="...), count)
	if period >= time.Second {
		b = AppendInteger(append(b, ";w="...), Seconds(period))
	}
	return b
}

// AppendRemaining appends what remains of a limit as an item of RateLimit, with the seconds t until there is more; 0 or more, or
// no time makes a difference.
func AppendRemaining(b []byte, name string, remaining, t int64) []byte {
	b = AppendInteger(append(AppendString(b, name), ";r="...), remaining)
	if t >= 0 {
		b = AppendInteger(append(b, ";t="...), t)
	}
	return b
}

// Scale returns d × num ÷ den, rounded down, at most the longest duration. All are positive.
func Scale(d time.Duration, num, den int64) time.Duration {
	hi, lo := bits.Mul64(uint64(d), uint64(num))
	if hi >= uint64(den) {
		return math.MaxInt64
	}
	quo, _ := bits.Div64(hi, lo, uint64(den))
	return time.Duration(min(quo, math.MaxInt64))
}
