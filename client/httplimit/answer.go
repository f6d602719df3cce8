package httplimit

import (
	"encoding/json"
	"net/http"
	"strconv"

	"github.com/sluice-project/sluice/client"
)

// quotaExceeded is the problem type of draft-ietf-httpapi-ratelimit-headers-11.
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
	g.describe(w.Header(), d)
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
			put(w.Header(), h.Name, h.Value)
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
		p.Violated = []string{string(appendName(nil, d))}
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
