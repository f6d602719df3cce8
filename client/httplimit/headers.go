package httplimit

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-project/sluice/client"
)

// The names are sent with this spelling, as keys of http.Header: Header.Set would make Ratelimit of RateLimit.
const (
	headerPolicy     = "RateLimit-Policy"
	headerRateLimit  = "RateLimit"
	headerLimit      = "X-RateLimit-Limit"
	headerRemaining  = "X-RateLimit-Remaining"
	headerReset      = "X-RateLimit-Reset"
	headerRetry      = "Retry-After"
	headerRetryX     = "X-RateLimit-Retry-After"
	mostHeaders      = 7
	usualHeaderBytes = 256
)

// describe sets the headers about d that the Config allows.
func (g *gate) describe(h http.Header, d *client.Decision) {
	if g.Shadowban {
		return
	}
	w := headerWriter{header: h}
	var buf [usualHeaderBytes]byte
	w.text = buf[:0]
	if !d.Allowed && d.RetryAfter != client.Never {
		w.text = strconv.AppendInt(w.text, max(1, seconds(d.RetryAfter)), 10)
		w.end(headerRetry)
		if !g.NoHeaders {
			w.again(headerRetryX)
		}
	}
	if !g.NoHeaders && counted(d) {
		w.limit(d)
	}
	w.set()
}

// counted reports whether d is of a limit and its counter.
func counted(d *client.Decision) bool {
	switch d.Source {
	case client.SourceHeld, client.SourceForwarded, client.SourceShare, client.SourceDenyCache, client.SourceFailLocal:
		return d.Period > 0
	}
	return false
}

// headerWriter collects the values of headers in one string: a string and a slice for each would be most of the cost of
// a request here.
type headerWriter struct {
	header http.Header
	text   []byte
	names  [mostHeaders]string
	from   [mostHeaders]int
	to     [mostHeaders]int
	count  int
}

// end makes the text since the last end the value of the header name.
func (w *headerWriter) end(name string) {
	from := 0
	if w.count > 0 {
		from = w.to[w.count-1]
	}
	w.names[w.count], w.from[w.count], w.to[w.count] = name, from, len(w.text)
	w.count++
}

// again sets the value of the last header for another name too.
func (w *headerWriter) again(name string) {
	last := w.count - 1
	w.names[w.count], w.from[w.count], w.to[w.count] = name, w.from[last], w.to[last]
	w.count++
}

// put sets a header under a name that goes out as it is spelled, over one that was set in another spelling.
func put(h http.Header, name, value string) {
	for other := range h {
		if strings.EqualFold(other, name) {
			delete(h, other)
		}
	}
	h[name] = []string{value}
}

// set writes the headers.
func (w *headerWriter) set() {
	if w.count == 0 {
		return
	}
	text, values := string(w.text), make([]string, w.count)
	for i := range values {
		values[i] = text[w.from[i]:w.to[i]]
		w.header[w.names[i]] = values[i : i+1 : i+1]
	}
}

// limit writes RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11, and the X-RateLimit family. Periods
// below a second are left out, since headers have whole seconds.
func (w *headerWriter) limit(d *client.Decision) {
	var buf [64]byte
	name := appendName(buf[:0], d)
	w.text = appendInteger(append(appendQuoted(w.text, name), ";q="...), d.Limit)
	if d.Period >= time.Second {
		w.text = appendInteger(append(w.text, ";w="...), seconds(d.Period))
	}
	w.end(headerPolicy)
	reset := seconds(d.ResetAfter)
	w.text = appendInteger(append(appendQuoted(w.text, name), ";r="...), d.Remaining)
	switch {
	case d.Allowed:
		w.text = appendInteger(append(w.text, ";t="...), reset)
	case d.RetryAfter != client.Never: // Retry-After is not earlier
		w.text = appendInteger(append(w.text, ";t="...), max(1, seconds(d.RetryAfter)))
	} // else it is never admitted
	w.end(headerRateLimit)
	w.text = strconv.AppendInt(w.text, d.Limit, 10)
	w.end(headerLimit)
	w.text = strconv.AppendInt(w.text, d.Remaining, 10)
	w.end(headerRemaining)
	w.text = strconv.AppendInt(w.text, reset, 10)
	w.end(headerReset)
}

// appendName appends the name of the deciding limit: that of the rule, with the limit's number if it is not the first.
func appendName(b []byte, d *client.Decision) []byte {
	if d.Rule == "" {
		b = append(b, "limit"...)
	} else {
		b = append(b, d.Rule...)
	}
	if d.LimitIndex > 0 {
		b = strconv.AppendInt(append(b, '#'), int64(d.LimitIndex)+1, 10)
	}
	return b
}

// seconds returns d in whole seconds, rounded up so that clients do not retry too early.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// appendInteger appends n as an integer of RFC 9651, which has at most 15 digits.
func appendInteger(b []byte, n int64) []byte {
	return strconv.AppendInt(b, min(max(n, 0), 999_999_999_999_999), 10)
}

// appendQuoted appends s as a string of RFC 9651; other bytes are percent-encoded.
func appendQuoted(b, s []byte) []byte {
	const hex = "0123456789ABCDEF"
	b = append(b, '"')
	for _, c := range s {
		switch {
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
