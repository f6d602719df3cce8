// Package httpanswer is how HTTP APIs tell what became of a check: the rate limit
// headers that HTTP clients know, the answer that a rule gives to who is denied, and
// problem+json bodies. Which checks there are, and the bodies of those that were
// allowed, are each API's. It starts no goroutine.
package httpanswer

import (
	"bytes"
	"encoding/json"
	"errors"
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
	// Code, Field and Offset are ours: the kind of error, the field at fault and
	// the byte of the body where it was found.
	Code   string `json:"code,omitempty"`
	Field  string `json:"field,omitempty"`
	Offset *int64 `json:"offset,omitempty"`
	// Violated names the limits that denied, where a quota was exceeded.
	Violated []string `json:"violated-policies,omitempty"`
}

// NewProblem returns a problem that is no more than its status.
func NewProblem(status int, detail string) Problem {
	return Problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
}

// Exceeded returns the problem of a quota that is spent.
func Exceeded(status int, detail string) Problem {
	return Problem{Type: quotaExceeded, Title: "Quota exceeded", Status: status, Detail: detail}
}

// ProblemOf maps an error of a limiter.Service, an *limiter.Error. Another is the
// server's own fault.
func ProblemOf(err error) Problem {
	e, ok := errors.AsType[*limiter.Error](err)
	if !ok {
		return NewProblem(http.StatusInternalServerError, err.Error())
	}
	p := NewProblem(StatusOf(e.Code), e.Error())
	p.Code, p.Field = e.Code.String(), e.Field
	return p
}

// StatusOf is the HTTP status of an error.
func StatusOf(c limiter.Code) int {
	switch c {
	case limiter.Invalid, limiter.UnknownDomain:
		return http.StatusBadRequest
	case limiter.Overloaded, limiter.Unavailable:
		return http.StatusServiceUnavailable
	case limiter.NotFound:
		return http.StatusNotFound
	case limiter.Rejected:
		return http.StatusConflict
	case limiter.Forbidden:
		return http.StatusForbidden
	case limiter.Unauthenticated:
		return http.StatusUnauthorized
	}
	return http.StatusInternalServerError
}

// Challenge is what a 401 says of credentials, in the header WWW-Authenticate.
const Challenge = `Bearer realm="sluice"`

// Reject answers with a problem. A 503 passes, so it says when to try again; a 401 says what credentials are
// wanted, unless the API has.
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

// Write answers with v as JSON.
func Write(w http.ResponseWriter, status int, contentType string, v any) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		// Only a value of ours that JSON cannot spell gets here.
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(body.Bytes()) // a client that has gone needs no answer
}
