package httplimit

import (
	"net/http"
	"strconv"

	"github.com/sluice-project/sluice/client/internal/gate"
	"github.com/sluice-project/sluice/client/limit"
	"github.com/sluice-project/sluice/internal/httpfield"
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
	var buf [usualHeaderBytes]byte
	w := headerWriter{text: buf[:0]}
	t := httpfield.Seconds(d.ResetAfter) // until more is available
	switch {
	case d.Allowed:
	case d.Verdict == limit.VerdictNever:
		t = -1
	default:
		t = max(1, httpfield.Seconds(d.RetryAfter))
		w.integer(headerRetry, t)
		if !h.NoHeaders {
			w.integer(headerRetryX, t)
		}
	}
	if !h.NoHeaders && d.Counted {
		w.limit(d, t)
	}
	w.set(header)
}

// headerWriter collects the values of headers in one string: a string and a slice for each would be most of the cost of
// a request here.
type headerWriter struct {
	text  []byte
	names [mostHeaders]string
	ends  [mostHeaders]int
	count int
}

// end makes the text since the last end the value of the header name.
func (w *headerWriter) end(name string) {
	w.names[w.count], w.ends[w.count] = name, len(w.text)
	w.count++
}

func (w *headerWriter) integer(name string, n int64) {
	w.text = strconv.AppendInt(w.text, n, 10)
	w.end(name)
}

// limit adds RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11, and the X-RateLimit family.
func (w *headerWriter) limit(d *limit.Decision, t int64) {
	name := gate.Name(d)
	w.text = httpfield.AppendPolicy(w.text, name, d.Count, d.Burst, d.Period)
	w.end(headerPolicy)
	w.text = httpfield.AppendRemaining(w.text, name, d.Remaining, t)
	w.end(headerRateLimit)
	w.integer(headerLimit, d.Limit)
	w.integer(headerRemaining, d.Remaining)
	w.integer(headerReset, httpfield.Seconds(d.ResetAfter))
}

// set sets the headers.
func (w *headerWriter) set(h http.Header) {
	text, values, from := string(w.text), make([]string, w.count), 0
	for i := range values {
		values[i] = text[from:w.ends[i]]
		from = w.ends[i]
		h[w.names[i]] = values[i : i+1 : i+1]
	}
}
