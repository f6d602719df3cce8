package httpapi

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"

	"github.com/sluice-project/sluice/transport"
)

const (
	typeJSON    = "application/json"
	typeProblem = "application/problem+json"

	// quotaExceeded is the problem type of draft-ietf-httpapi-ratelimit-headers-10.
	quotaExceeded = "https://iana.org/assignments/http-problem-types#quota-exceeded"
)

// problem is a body of RFC 9457.
type problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	// Code, Field and Offset are ours: the kind of error, the field at fault and
	// the byte of the body where it was found.
	Code   string `json:"code,omitempty"`
	Field  string `json:"field,omitempty"`
	Offset *int64 `json:"offset,omitempty"`
	// Violated names the limits that denied, with quotaExceeded.
	Violated []string `json:"violated-policies,omitempty"`
}

// newProblem returns a problem that is no more than its status.
func newProblem(status int, detail string) problem {
	return problem{Type: "about:blank", Title: http.StatusText(status), Status: status, Detail: detail}
}

// problemOf maps the error of a body or of a call.
func problemOf(err error) problem {
	if e, ok := errors.AsType[*bodyError](err); ok {
		p := newProblem(http.StatusBadRequest, e.Error())
		p.Code, p.Field, p.Offset = transport.Invalid.String(), e.Field, &e.Offset
		return p
	}
	if e, ok := errors.AsType[*transport.Error](err); ok {
		p := newProblem(statusOf(e.Code), e.Error())
		p.Code, p.Field = e.Code.String(), e.Field
		return p
	}
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return newProblem(http.StatusRequestEntityTooLarge,
			"the body is larger than "+strconv.FormatInt(e.Limit, 10)+" bytes; split the call")
	}
	return newProblem(http.StatusBadRequest, "the body could not be read: "+err.Error())
}

// statusOf is the HTTP status of an error.
func statusOf(c transport.Code) int {
	switch c {
	case transport.Invalid, transport.UnknownDomain:
		return http.StatusBadRequest
	case transport.Overloaded, transport.Unavailable:
		return http.StatusServiceUnavailable
	case transport.NotFound:
		return http.StatusNotFound
	case transport.Refused:
		return http.StatusConflict
	case transport.Forbidden:
		return http.StatusForbidden
	}
	return http.StatusInternalServerError
}

// refuse answers with a problem. A 503 passes, so it says when to try again.
func refuse(w http.ResponseWriter, p problem) {
	if p.Status == http.StatusServiceUnavailable {
		setRetryAfter(w.Header(), 1)
	}
	write(w, p.Status, typeProblem, p)
}

// write answers with v as JSON.
func write(w http.ResponseWriter, status int, contentType string, v any) {
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
