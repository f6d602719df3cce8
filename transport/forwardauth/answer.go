package forwardauth

import (
	"net/http"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// answer responds to a call by the results of b.
func (a *API) answer(w http.ResponseWriter, r *http.Request, auth *rules.Authorize, b *limiter.Batch) {
	denied := worst(b)
	// One denial decides, whatever the other results are. But an error in an all-or-nothing batch denies all of it.
	if e := failure(b); e != nil && (denied == nil || b.AllOrNothing) {
		httpanswer.Reject(w, httpanswer.ProblemOf(e))
		return
	}
	if denied == nil {
		if least := tightest(b); least != nil {
			httpanswer.SetHeadersOf(w.Header(), least, b.Results)
		}
		w.WriteHeader(http.StatusOK)
		return
	}
	if b.AllOrNothing && limited(b) > 1 {
		now := limiter.NewBatch()
		defer now.Release()
		if found := a.lookAgain(r, b, now); found != nil {
			b, denied = now, found
		}
	}
	status := auth.DeniedStatus
	if status == 0 {
		status = httpanswer.DeniedStatus(denied)
	}
	httpanswer.SetHeadersOf(w.Header(), denied, b.Results)
	httpanswer.Deny(w, denied, status)
}

// lookAgain reads the counters of b's checks into now, and returns the worst denial, nil if there is none now. The results of
// an all-or-nothing batch do not tell which check failed it, and so which rule has the response.
func (a *API) lookAgain(r *http.Request, b, now *limiter.Batch) *limiter.Result {
	now.OneRequest, now.API = true, b.API
	for i := range b.Checks {
		was := &b.Checks[i]
		c := now.Add()
		c.Domain, c.Verb, c.NoDelay = was.Domain, bucket.Read, true
		c.Descriptor = append(c.Descriptor, was.Descriptor...)
	}
	if err := a.config.Limiter.Check(r.Context(), now); err != nil {
		return nil
	}
	return worst(now)
}

// limited returns how many results of b have a limit.
func limited(b *limiter.Batch) (n int) {
	for i := range b.Results {
		if b.Results[i].Limits != nil {
			n++
		}
	}
	return n
}

// worst returns the denial that lasts longest, nil if there is none. An unlimited check is only ever denied with others.
func worst(b *limiter.Batch) (longest *limiter.Result) {
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err != nil || r.Allowed || r.Limits == nil && !r.DeniedUnmatched() {
			continue
		}
		if longest == nil || !longest.Never() && (r.Never() || r.RetryAfter > longest.RetryAfter) {
			longest = r
		}
	}
	return longest
}

// tightest returns the result with the least remaining, nil if none has a limit. One that counted goes before others.
func tightest(b *limiter.Batch) (least *limiter.Result) {
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err != nil || r.Limits == nil {
			continue
		}
		switch {
		case least == nil, r.Counted() && !least.Counted(),
			r.Counted() && r.Remaining < least.Remaining:
			least = r
		}
	}
	return least
}

// failure returns why a check has no decision, nil if all have one: invalid ones go before undecided ones.
func failure(b *limiter.Batch) (first *limiter.Error) {
	for i := range b.Results {
		if e := b.Results[i].Err; e != nil && (first == nil || e.Code < first.Code) {
			first = e
		}
	}
	return first
}
