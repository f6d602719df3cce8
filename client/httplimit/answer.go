package httplimit

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-project/sluice/client"
)

// quotaExceeded is the problem type of draft-ietf-httpapi-ratelimit-headers-10.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// problem is the body of a denial (RFC 9457).
type problem struct {
	Type     string   `json:"type,omitempty"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Detail   string   `json:"detail,omitempty"`
	Violated []string `json:"violated-policies,omitempty"`
}

// deny answers a denied request.
func (g *gate) deny(w http.ResponseWriter, r *http.Request, d *client.Decision) {
	if g.Shadowban {
		// No header gives it away.
		w.WriteHeader(http.StatusOK)
		_, _ = w.Write([]byte(g.ShadowBody)) // an error means that nobody reads it
		return
	}
	setHeaders(w.Header(), d)
	if g.Denied != nil {
		g.Denied(w, r, *d)
		return
	}
	status := http.StatusTooManyRequests
	if d.Response != nil {
		if d.Response.Status != 0 {
			status = d.Response.Status
		}
		for _, h := range d.Response.Header {
			w.Header().Set(h.Name, h.Value)
		}
		if d.Response.Body != "" {
			if w.Header().Get("Content-Type") == "" {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			}
			w.WriteHeader(status)
			_, _ = w.Write([]byte(d.Response.Body))
			return
		}
	}
	p := problem{Type: quotaExceeded, Title: "Quota exceeded", Status: status, Detail: "try again later"}
	if d.RetryAfter == client.Never {
		p.Detail = "the cost is more than the limit can ever admit"
	}
	if d.Rule != "" {
		p.Violated = []string{policyName(d)}
	}
	write(w, p)
}

// tooLarge answers a request whose body is above the cap.
func tooLarge(w http.ResponseWriter, most int64) {
	write(w, problem{
		Title: "Content too large", Status: http.StatusRequestEntityTooLarge,
		Detail: "the body has more than " + strconv.FormatInt(most, 10) + " bytes",
	})
}

func write(w http.ResponseWriter, p problem) {
	body, err := json.Marshal(p)
	if err != nil { // of strings and numbers, so never
		body = nil
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(body)
}

// setHeaders says how things stand: RateLimit-Policy and RateLimit of
// draft-ietf-httpapi-ratelimit-headers-10, the X-RateLimit family, and Retry-After when denied or to wait. Where
// nobody knows the counter it says nothing of it.
func setHeaders(h http.Header, d *client.Decision) {
	after := d.RetryAfter
	if d.Allowed {
		after = d.Delay
	}
	if after > 0 && after != client.Never {
		s := strconv.FormatInt(max(1, seconds(after)), 10)
		h.Set("Retry-After", s)
		h.Set("X-RateLimit-Retry-After", s)
	}
	switch d.Source {
	case client.SourceHeld, client.SourceForwarded, client.SourceShare, client.SourceDenyCache, client.SourceFailLocal:
	default:
		return
	}
	if d.Period <= 0 {
		return
	}
	reset := seconds(d.ResetAfter)
	more := reset
	if !d.Allowed && d.RetryAfter != client.Never {
		more = max(1, seconds(d.RetryAfter))
	}
	name := quoted(policyName(d))
	policy := name + ";q=" + integer(d.Limit)
	if d.Period >= time.Second {
		policy += ";w=" + integer(seconds(d.Period))
	}
	h.Set("RateLimit-Policy", policy)
	h.Set("RateLimit", name+";r="+integer(d.Remaining)+";t="+integer(more))
	h.Set("X-RateLimit-Limit", strconv.FormatInt(d.Limit, 10))
	h.Set("X-RateLimit-Remaining", strconv.FormatInt(d.Remaining, 10))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(reset, 10))
}

// policyName names the limit that decided: the rule, and which of its limits if not the first.
func policyName(d *client.Decision) string {
	switch {
	case d.Rule == "" && d.LimitIndex == 0:
		return "limit"
	case d.Rule == "":
		return "limit#" + strconv.Itoa(d.LimitIndex+1)
	case d.LimitIndex > 0:
		return d.Rule + "#" + strconv.Itoa(d.LimitIndex+1)
	}
	return d.Rule
}

// seconds returns d in whole seconds, rounded up so that nobody comes too early.
func seconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}

// integer spells n as an integer of RFC 9651, which has at most 15 digits.
func integer(n int64) string {
	return strconv.FormatInt(min(max(n, 0), 999_999_999_999_999), 10)
}

// quoted spells s as a string of RFC 9651; bytes that it cannot hold are percent-encoded.
func quoted(s string) string {
	const hex = "0123456789ABCDEF"
	out := []byte{'"'}
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			out = append(out, '\\', c)
		case c >= 0x20 && c < 0x7f:
			out = append(out, c)
		default:
			out = append(out, '%', hex[c>>4], hex[c&15])
		}
	}
	return string(append(out, '"'))
}
