// Package httpanswer writes the result of a check as HTTP APIs do: the rate limit headers that HTTP clients know, a rule's
// response to denied checks, and problem+json bodies. It starts no goroutine.
package httpanswer

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"net/http"

	"github.com/sluicecluster/sluice/internal/leaf/httpfield"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
)

// DeniedStatus returns the status of denied checks of r's rule, 400 to 599.
func DeniedStatus(r *limiter.Result) int {
	if r.Rule != nil && r.Rule.Response != nil && r.Rule.Response.Status != 0 {
		return r.Rule.Response.Status
	}
	return http.StatusTooManyRequests
}

// Deny writes the response to a denied check: status, the headers and the body of its rule, or if it has no body, the denial
// as a problem.
func Deny(w http.ResponseWriter, r *limiter.Result, status int) {
	custom := &rules.Response{}
	if r.Rule != nil && r.Rule.Response != nil {
		custom = r.Rule.Response
	}
	h := w.Header()
	for _, one := range custom.Headers {
		httpfield.Set(h, one.Name, one.Value) // over ours
	}
	if custom.Body != "" {
		if h.Get("Content-Type") == "" {
			h.Set("Content-Type", "text/plain; charset=utf-8")
		}
		w.WriteHeader(status)
		_, _ = w.Write([]byte(custom.Body))
		return
	}
	Write(w, status, TypeProblem, Denial(r, status))
}

// Denial returns the denied check as a problem.
func Denial(r *limiter.Result, status int) Problem {
	p := Exceeded(status, r.Why())
	if r.Counted() {
		p.Violated = []string{r.LimitName(int(r.Index))}
	}
	return p
}

// Types of bodies.
const (
	TypeJSON    = "application/json"
	TypeProblem = "application/problem+json"
)

// quotaExceeded is the problem type of draft-ietf-httpapi-ratelimit-headers-11.
const quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"

// Problem is a body of RFC 9457.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Code, Field and Offset are ours: the kind of error, the invalid field and its place in the body, in bytes.
	Code   string `json:"code,omitempty"`
	Field  string `json:"field,omitempty"`
	Offset *int64 `json:"offset,omitempty"`
	// Violated names the limits that denied, where a quota was exceeded.
	Violated []string `json:"violated-policies,omitempty"`
}

// NewProblem returns a problem without a type of its own.
func NewProblem(status int, detail string) Problem {
	return Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
}

// Exceeded returns the problem of a spent quota.
func Exceeded(status int, detail string) Problem {
	return Problem{Type: quotaExceeded, Title: "Quota exceeded", Status: status, Detail: detail}
}

// ProblemOf returns an *limiter.Error as a problem. Another error is an internal one.
func ProblemOf(err error) Problem {
	e, ok := errors.AsType[*limiter.Error](err)
	if !ok {
		return NewProblem(http.StatusInternalServerError, err.Error())
	}
	p := NewProblem(StatusOf(e.Code), e.Error())
	p.Type, p.Code, p.Field = errorTypes+e.Code.String(), e.Code.String(), e.Field
	return p
}

// errorTypes and the name of a code are the type of a problem: docs/use/api.md lists the codes.
const errorTypes = limiter.DocsURL + "use/api.md#"

var statuses = map[limiter.Code]int{
	limiter.Invalid: http.StatusBadRequest, limiter.UnknownDomain: http.StatusBadRequest,
	limiter.Overloaded: http.StatusServiceUnavailable, limiter.Unavailable: http.StatusServiceUnavailable,
	limiter.NotFound: http.StatusNotFound, limiter.Rejected: http.StatusConflict,
	limiter.Forbidden: http.StatusForbidden, limiter.Unauthenticated: http.StatusUnauthorized,
	limiter.Unsupported: http.StatusNotImplemented,
}

// StatusOf is the HTTP status of an error.
func StatusOf(c limiter.Code) int { return cmp.Or(statuses[c], http.StatusInternalServerError) }

// Challenge is the header WWW-Authenticate of a 401.
const Challenge = `Bearer realm="sluice"`

// Reject writes a problem as the response. It adds Retry-After to a 503, and Challenge to a 401 without one.
func Reject(w http.ResponseWriter, p Problem) {
	switch {
	case p.Status == http.StatusServiceUnavailable:
		SetRetryAfter(w.Header(), 1)
	case p.Status == http.StatusUnauthorized && w.Header().Get("WWW-Authenticate") == "":
		w.Header().Set("WWW-Authenticate", Challenge)
	}
	Write(w, p.Status, TypeProblem, p)
}

// Entry is one entry of a descriptor.
type Entry struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// Entries returns list in its JSON form; an empty one is [].
func Entries(list []rules.Entry) []Entry {
	out := make([]Entry, len(list))
	for i, e := range list {
		out[i] = Entry(e)
	}
	return out
}

// Write writes v as JSON as the response.
func Write(w http.ResponseWriter, status int, contentType string, v any) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		// A value of ours that JSON cannot express.
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // a client that has gone needs no answer
}
