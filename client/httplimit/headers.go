package httplimit

import (
	"net/http"
	"strconv"

	"github.com/sluicecluster/sluice/client/internal/gate"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/httpfield"
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
	text, w := buf[:0], headerWriter{}
	t := httpfield.Seconds(d.ResetAfter) // until more is available
	switch {
	case d.Allowed:
	case d.Verdict == limit.VerdictNever:
		t = -1
	default:
		t = max(1, httpfield.Seconds(d.RetryAfter))
		text = w.integer(text, headerRetry, t)
		if !h.NoHeaders {
			text = w.integer(text, headerRetryX, t)
		}
	}
	if !h.NoHeaders && d.Counted {
		text = w.limit(text, d, t)
	}
	w.set(header, string(text))
}

// headerWriter knows the headers whose values stand in one text: a string and a slice for each would be most of the cost of
// a request here.
type headerWriter struct {
	names [mostHeaders]string
	ends  [mostHeaders]int
	count int
}

// end makes the text since the last end the value of the header name.
func (w *headerWriter) end(text []byte, name string) []byte {
	w.names[w.count], w.ends[w.count] = name, len(text)
	w.count++
	return text
}

func (w *headerWriter) integer(text []byte, name string, n int64) []byte {
	return w.end(strconv.AppendInt(text, n, 10), name)
}

// limit adds RateLimit-Policy and RateLimit of draft-ietf-httpapi-ratelimit-headers-11, and the X-RateLimit family.
func (w *headerWriter) limit(text []byte, d *limit.Decision, t int64) []byte {
	name := gate.Name(d)
	text = w.end(httpfield.AppendPolicy(text, name, d.Count, d.Burst, d.Period), headerPolicy)
	text = w.end(httpfield.AppendRemaining(text, name, d.Remaining, t), headerRateLimit)
	text = w.integer(text, headerLimit, d.Limit)
	text = w.integer(text, headerRemaining, d.Remaining)
	return w.integer(text, headerReset, httpfield.Seconds(d.ResetAfter))
}

// set sets the headers.
func (w *headerWriter) set(h http.Header, text string) {
	values, from := make([]string, w.count), 0
	for i := range values {
		values[i] = text[from:w.ends[i]]
		from = w.ends[i]
		h[w.names[i]] = values[i : i+1 : i+1]
	}
}
