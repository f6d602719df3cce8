package httpapi

import (
	"errors"
	"net/http"
	"strconv"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/leaf/httpfield"
	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
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
	Allowed   bool       `json:"allowed"`
	Decisions []decision `json:"decisions"`
}

// denial is a denied check as a problem.
type denial struct {
	httpanswer.Problem
	decision
}

// denials is a denied all-or-nothing call as a problem.
type denials struct {
	httpanswer.Problem
	decisions
}

// decisionOf returns result i in its JSON form. It points into r.
func decisionOf(r *limiter.Result, i int) decision {
	d := decision{Rule: r.RuleName()}
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

// answerOne writes the result of the only check of b.
func answerOne(w http.ResponseWriter, b *limiter.Batch) {
	r := &b.Results[0]
	httpanswer.SetHeaders(w.Header(), r)
	switch {
	case r.Err != nil:
		httpanswer.Reject(w, problemOf(r.Err))
	case r.Allowed:
		httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, decisionOf(r, 0))
	default:
		d, room := decisionOf(r, 0), limiter.MaxResponses
		d.Response = responseOf(r, &room)
		httpanswer.Write(w, http.StatusTooManyRequests, httpanswer.TypeProblem, denial{httpanswer.Denial(r, http.StatusTooManyRequests), d})
	}
}

// answerMany writes the results of b: with 200, or for an all-or-nothing call that failed with a problem beside them.
func answerMany(w http.ResponseWriter, b *limiter.Batch) {
	all := decisions{Allowed: true, Decisions: make([]decision, len(b.Results))}
	room := limiter.MaxResponses
	for i := range b.Results {
		all.Decisions[i] = decisionOf(&b.Results[i], i)
		all.Decisions[i].Response = responseOf(&b.Results[i], &room)
		all.Allowed = all.Allowed && b.Results[i].Allowed
	}
	if !b.AllOrNothing || !failed(b) {
		httpanswer.Write(w, http.StatusOK, httpanswer.TypeJSON, all)
		return
	}
	p, after := failure(b)
	if after > 0 {
		httpanswer.SetRetryAfter(w.Header(), after)
	}
	httpanswer.Write(w, p.Status, httpanswer.TypeProblem, denials{p, all})
}

// failed reports whether a check of verb Check was not allowed, or a check of any verb is invalid.
func failed(b *limiter.Batch) bool {
	for i := range b.Results {
		r := &b.Results[i]
		if b.Checks[i].Verb == bucket.Check && !r.Allowed || r.Err != nil && httpanswer.StatusOf(r.Err.Code) == http.StatusBadRequest {
			return true
		}
	}
	return false
}

// failure returns why an all-or-nothing call failed, and the seconds after which to try again, 0 for never. Invalid checks
// go before undecided ones, and those before denials. The results do not tell which check was denied, so the problem names
// no policy.
func failure(b *limiter.Batch) (p httpanswer.Problem, after int64) {
	p.Status = http.StatusTooManyRequests
	never := ""
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err == nil {
			if !r.Allowed {
				after = max(after, httpfield.Seconds(r.RetryAfter))
				if r.Never() {
					never = r.Why()
				}
			}
			continue
		}
		status := httpanswer.StatusOf(r.Err.Code)
		if (status == http.StatusBadRequest || b.Checks[i].Verb == bucket.Check) && (p.Code == "" || status < p.Status) {
			p = problemOf(r.Err)
			p.Field = r.Err.Path(i)
		}
	}
	switch {
	case p.Status == http.StatusServiceUnavailable:
		return p, 1
	case p.Status != http.StatusTooManyRequests:
		return p, 0
	case never != "":
		return httpanswer.Exceeded(p.Status, never+"; nothing was charged"), 0
	}
	return httpanswer.Exceeded(p.Status, "one or more checks were denied; nothing was charged"), max(after, 1)
}

// problemOf maps the error of a body or of a call.
func problemOf(err error) httpanswer.Problem {
	if e, ok := errors.AsType[*bodyError](err); ok {
		p := httpanswer.NewProblem(http.StatusBadRequest, e.Error())
		p.Code, p.Field, p.Offset = limiter.Invalid.String(), e.Field, &e.Offset
		return p
	}
	if e, ok := errors.AsType[*limiter.Error](err); ok {
		return httpanswer.ProblemOf(e)
	}
	if e, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return httpanswer.NewProblem(http.StatusRequestEntityTooLarge,
			"the body is larger than "+strconv.FormatInt(e.Limit, 10)+" bytes; split the call")
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
