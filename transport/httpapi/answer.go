package httpapi

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/sluicecluster/sluice/internal/leaf/httpfield"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
	"github.com/sluicecluster/sluice/transport/internal/httpbody"
)

// decision is the result of one check. Durations are in seconds.
type decision struct {
	Allowed bool   `json:"allowed"`
	Verdict string `json:"verdict,omitempty"`
	// Left out unless limiter.Result.Counted.
	Limit      *int64     `json:"limit,omitempty"`
	Remaining  *int64     `json:"remaining,omitempty"`
	ResetAfter float64    `json:"reset_after,omitempty"`
	RetryAfter float64    `json:"retry_after,omitempty"`
	DeniedFor  float64    `json:"denied_for,omitempty"`
	Staleness  float64    `json:"staleness,omitempty"`
	Delay      float64    `json:"delay,omitempty"`
	Period     float64    `json:"period,omitempty"`
	Count      int64      `json:"count,omitempty"`
	Burst      int64      `json:"burst,omitempty"`
	Rule       string     `json:"rule,omitempty"`
	LimitName  string     `json:"limit_name,omitempty"`
	Source     string     `json:"source,omitempty"`
	Owner      string     `json:"owner,omitempty"`
	OnFailure  string     `json:"on_failure,omitempty"`
	Response   *response  `json:"response,omitempty"`
	Error      *errorJSON `json:"error,omitempty"`
}

// response is a rule's response to a denied check.
type response struct {
	Status  int      `json:"status,omitempty"`
	Headers []header `json:"headers,omitempty"`
	Body    string   `json:"body,omitempty"`
}

type header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// responseOf returns the response that goes with r, nil if there is none or it takes more than the room that is left.
func responseOf(r *limiter.Result, room *int) *response {
	p := r.Response()
	if p == nil {
		return nil
	}
	size := len(p.Body)
	for i := range p.Headers {
		size += len(p.Headers[i].Name) + len(p.Headers[i].Value)
	}
	if size > *room {
		return nil
	}
	*room -= size
	out := &response{Status: p.Status, Body: p.Body}
	for _, h := range p.Headers {
		out.Headers = append(out.Headers, header(h))
	}
	return out
}

// errorJSON is why a check among many has no decision.
type errorJSON struct {
	Code    string `json:"code"`
	Field   string `json:"field,omitempty"`
	Message string `json:"message"`
}

// errorJSONAt is e, which is about check i.
func errorJSONAt(e *limiter.Error, i int) *errorJSON {
	return &errorJSON{Code: e.Code.String(), Field: e.Path(i), Message: e.Message}
}

// decisions is the response to many checks.
type decisions struct {
	Allowed    bool       `json:"allowed"`
	RetryAfter float64    `json:"retry_after,omitempty"`
	Decisions  []decision `json:"decisions"`
}

// denial is a denied check as a problem.
type denial struct {
	httpanswer.Problem
	decision
}

// denials is a call that is not allowed as a problem.
type denials struct {
	httpanswer.Problem
	decisions
}

// decisionOf returns result i in its JSON form. It points into r.
func decisionOf(r *limiter.Result, i int) decision {
	d := decision{Rule: r.RuleName()}
	if r.Rule != nil && r.Rule.StatesOnFailure {
		d.OnFailure = r.Rule.OnFailure.String()
	}
	if r.Err != nil {
		d.Error = errorJSONAt(r.Err, i)
		return d
	}
	d.Allowed = r.Allowed
	d.Verdict = r.Verdict().String()
	d.DeniedFor, d.Staleness = r.DeniedFor.Seconds(), r.Staleness.Seconds()
	d.Source, d.Owner = r.Source.String(), r.Owner
	if wait, ok := r.RetryIn(); ok {
		d.RetryAfter = wait.Seconds()
	}
	if r.Counted() {
		d.Limit, d.Remaining = &r.Limit, &r.Remaining
		d.ResetAfter, d.Delay, d.Period = r.ResetAfter.Seconds(), r.Delay.Seconds(), r.Period.Seconds()
		l := r.Limits.At(int(r.Index))
		d.Count, d.Burst, d.LimitName = l.Count, l.Burst, r.LimitName(int(r.Index))
	}
	return d
}

// answerOne writes the result of the only check of b. With deny, a denial is a problem of status 429.
func answerOne(w http.ResponseWriter, b *limiter.Batch, deny bool) {
	r := &b.Results[0]
	if r.Err != nil {
		httpanswer.Reject(w, problemOf(r.Err))
		return
	}
	httpanswer.SetHeaders(w.Header(), r)
	d, room := decisionOf(r, 0), limiter.MaxResponses
	d.Response = responseOf(r, &room)
	if deny && !r.Allowed {
		httpanswer.Write(w, http.StatusTooManyRequests, httpanswer.TypeProblem, denial{httpanswer.Denial(r, http.StatusTooManyRequests), d})
		return
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, d)
}

// answerMany writes the results of b as answerAll does.
func answerMany(w http.ResponseWriter, b *limiter.Batch, deny bool) {
	all := decisionsOf(w, b)
	answerAll(w, deny, all, all)
}

// decisionsOf returns the results of b, and sets the header of the time until all may be allowed, if it is known.
func decisionsOf(w http.ResponseWriter, b *limiter.Batch) decisions {
	all := decisions{Decisions: make([]decision, len(b.Results))}
	room := limiter.MaxResponses
	for i := range b.Results {
		all.Decisions[i] = decisionOf(&b.Results[i], i)
		all.Decisions[i].Response = responseOf(&b.Results[i], &room)
	}
	allowed, wait, known := limiter.Overall(b.Results)
	if all.Allowed = allowed; known {
		all.RetryAfter = wait.Seconds()
		httpanswer.SetRetryAfter(w.Header(), max(httpfield.Seconds(wait), 1))
	}
	return all
}

// answerAll writes body, which has all. With deny, all are a problem of status 429 unless they are allowed.
func answerAll(w http.ResponseWriter, deny bool, all decisions, body any) {
	if deny && !all.Allowed {
		p := httpanswer.Exceeded(http.StatusTooManyRequests, "one or more checks were not allowed; see decisions")
		httpanswer.Write(w, p.Status, httpanswer.TypeProblem, denials{p, all})
		return
	}
	httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, body)
}

// problemOf maps the error of a body or of a call.
func problemOf(err error) httpanswer.Problem {
	if e, ok := errors.AsType[*bodyError](err); ok {
		p := httpanswer.ProblemOf(&limiter.Error{Code: limiter.Invalid, Message: e.Error()})
		p.Field, p.Offset = e.Field, &e.Offset
		return p
	}
	if e, ok := errors.AsType[*limiter.Error](err); ok {
		return httpanswer.ProblemOf(e)
	}
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return httpanswer.NewProblem(http.StatusRequestEntityTooLarge,
			"the body is larger than "+strconv.FormatInt(e.Limit, 10)+" bytes; split the call")
	}
	if code, text, ok := httpbody.Status(err); ok {
		return httpanswer.NewProblem(code, text)
	}
	return httpanswer.NewProblem(http.StatusBadRequest, "the body could not be read: "+err.Error())
}

// Shed wraps h to reject the requests that may be shed with 503 and Retry-After while admit returns false. Their bodies are
// not read.
func Shed(h http.Handler, may func(*http.Request) bool, admit func() bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if may(r) && !admit() {
			Reject(w, limiter.ErrBusy)
			return
		}
		h.ServeHTTP(w, r)
	})
}
