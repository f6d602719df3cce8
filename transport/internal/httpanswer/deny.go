package httpanswer

import (
	"net/http"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/rules"
)

// DeniedStatus returns the status that the rule of r has for what it denies, 400 to 599.
func DeniedStatus(r *limiter.Result) int {
	if r.Rule != nil && r.Rule.Response != nil && r.Rule.Response.Status != 0 {
		return r.Rule.Response.Status
	}
	return http.StatusTooManyRequests
}

// Deny answers a denied check with status and, beside what SetHeaders has set, the headers
// and the body of its rule. Where the rule has no body it is what body makes of the problem
// that the denial is.
func Deny(w http.ResponseWriter, r *limiter.Result, status int, body func(Problem) any) {
	custom := &rules.Response{}
	if r.Rule != nil && r.Rule.Response != nil {
		custom = r.Rule.Response
	}
	h := w.Header()
	for _, one := range custom.Headers {
		put(h, one.Name, one.Value) // the rule's word goes before ours
	}
	if custom.Body != "" {
		if h.Get("Content-Type") == "" {
			h.Set("Content-Type", "text/plain; charset=utf-8")
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(custom.Body))
		return
	}
	Write(w, status, TypeProblem, body(denialOf(r, status)))
}

// denialOf returns the problem that a denied check is.
func denialOf(r *limiter.Result, status int) Problem {
	detail := "try again later"
	if r.Never() {
		detail = "the cost is more than the limit can ever admit"
	}
	p := Exceeded(status, detail)
	if Counted(r) {
		p.Violated = []string{PolicyName(r, int(r.Index))}
	}
	return p
}
