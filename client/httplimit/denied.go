package httplimit

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net/http"
	"strings"

	"github.com/sluicecluster/sluice/client/internal/gate"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/httpfield"
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
func (h *handler) deny(w http.ResponseWriter, r *http.Request, d *limit.Decision) {
	if h.Shadowban {
		write(w, http.StatusOK, "", h.ShadowBody)
		return
	}
	h.describe(w.Header(), d)
	if h.Denied != nil {
		h.Denied(w, r, *d)
		return
	}
	if denyRPC(w, r) {
		return
	}
	status := http.StatusTooManyRequests
	if d.Response != nil {
		if d.Response.Status != 0 {
			status = d.Response.Status
		}
		for _, h := range d.Response.Header {
			httpfield.Set(w.Header(), h.Name, h.Value)
		}
		if d.Response.Body != "" {
			if w.Header().Get("Content-Type") == "" {
				w.Header().Set("Content-Type", "text/plain; charset=utf-8")
			}
			write(w, status, "", d.Response.Body)
			return
		}
	}
	p := problem{Type: quotaExceeded, Title: "Quota exceeded", Status: status, Detail: "try again later"}
	switch {
	case d.Source == limit.SourceUnmatched:
		p.Detail = "no rule matches, and the rules of the domain deny such checks"
	case d.Verdict == limit.VerdictNever:
		p.Detail = "the amount is more than the limit can ever admit"
	}
	if d.Counted {
		p.Violated = []string{gate.Name(d)}
	}
	writeProblem(w, p)
}

// denyRPC answers a denied RPC with the code resource_exhausted of its protocol, and reports whether r is one: of gRPC or gRPC-Web,
// by a response of trailers only, or of Connect, whose streams have an error in their last message.
func denyRPC(w http.ResponseWriter, r *http.Request) bool {
	const message = "the rate limit is exceeded"
	const body = `{"code":"resource_exhausted","message":"` + message + `"}`
	h, kind := w.Header(), r.Header.Get("Content-Type")
	switch {
	case strings.HasPrefix(kind, "application/grpc"):
		h.Set("Grpc-Status", "8")
		h.Set("Grpc-Message", message)
		write(w, http.StatusOK, kind, "")
	case strings.HasPrefix(kind, "application/connect+"):
		const last = `{"error":` + body + `}`
		envelope := binary.BigEndian.AppendUint32([]byte{2}, uint32(len(last))) // 2 is the flag of the last message
		write(w, http.StatusOK, kind, string(envelope)+last)
	case r.Header.Get("Connect-Protocol-Version") != "", r.Method == http.MethodGet && r.URL.Query().Get("connect") == "v1":
		write(w, http.StatusTooManyRequests, "application/json", body)
	default:
		return false
	}
	return true
}

func writeProblem(w http.ResponseWriter, p problem) {
	body, _ := json.Marshal(p) // of strings and numbers, so there is no error
	write(w, p.Status, "application/problem+json", string(body))
}

func write(w http.ResponseWriter, status int, kind, body string) {
	if kind != "" {
		w.Header().Set("Content-Type", kind)
	}
	w.WriteHeader(status)
	_, _ = io.WriteString(w, body) // an error means that the client has gone
}
