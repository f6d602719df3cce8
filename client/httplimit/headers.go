package httplimit

import (
	"net/http"
	"strconv"

	"github.com/sluice-project/sluice/client/internal/gate"
	"github.com/sluice-project/sluice/client/limit"
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

// describe sets the headers about d that the Config allows, as nodes do in transport/internal/httpanswer.
func (h *handler) describe(header http.Header, d *limit.Decision) {
	if h.Shadowban {
		return
	}
	w := headerWriter{header: header}
	var buf [usualHeaderBytes]byte
	w.text = buf[:0]
	if !d.Allowed && d.Verdict != limit.VerdictNever {
		w.text = strconv.AppendInt(w.text, retryAfter(d), 10)
		w.end(headerRetry)
		if !h.NoHeaders {
			w.again(headerRetryX)
		}
	}
	if !h.NoHeaders && d.Counted {
		w.limit(d)
	}
	w.set()
}

// retryAfter returns the seconds, at least 1, after which to try again.
func retryAfter(d *limit.Decision) int64 { return max(1, httpfield.Seconds(d.RetryAfter)) }

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

// limit writes RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11, and the X-RateLimit family.
func (w *headerWriter) limit(d *limit.Decision) {
	name, reset := gate.Name(d), httpfield.Seconds(d.ResetAfter)
	w.text = httpfield.AppendPolicy(w.text, name, d.Count, d.Burst, d.Period)
	w.end(headerPolicy)
	t := reset
	switch {
	case d.Allowed:
	case d.Verdict == limit.VerdictNever:
		t = -1
	default:
		t = retryAfter(d) // Retry-After is not earlier
	}
	w.text = httpfield.AppendRemaining(w.text, name, d.Remaining, t)
	w.end(headerRateLimit)
	w.text = strconv.AppendInt(w.text, d.Limit, 10)
	w.end(headerLimit)
	w.text = strconv.AppendInt(w.text, d.Remaining, 10)
	w.end(headerRemaining)
	w.text = strconv.AppendInt(w.text, reset, 10)
	w.end(headerReset)
}
