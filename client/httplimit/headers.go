package httplimit

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/internal/leaf/httpfield"
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
		w.text = strconv.AppendInt(w.text, max(1, httpfield.Seconds(d.RetryAfter)), 10)
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
	case client.SourceOwned, client.SourceForwarded, client.SourceShare, client.SourceDenyCache, client.SourceFailLocal:
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
	w.text = httpfield.AppendInteger(append(httpfield.AppendString(w.text, name), ";q="...), d.Limit)
	if d.Period >= time.Second {
		w.text = httpfield.AppendInteger(append(w.text, ";w="...), httpfield.Seconds(d.Period))
	}
	w.end(headerPolicy)
	reset := httpfield.Seconds(d.ResetAfter)
	w.text = httpfield.AppendInteger(append(httpfield.AppendString(w.text, name), ";r="...), d.Remaining)
	switch {
	case d.Allowed:
		w.text = httpfield.AppendInteger(append(w.text, ";t="...), reset)
	case d.RetryAfter != client.Never: // Retry-After is not earlier
		w.text = httpfield.AppendInteger(append(w.text, ";t="...), max(1, httpfield.Seconds(d.RetryAfter)))
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
