package forwardauth

import (
	"net/http"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport/internal/httpanswer"
)

// answer responds to a call by the results of b.
func answer(w http.ResponseWriter, auth *rules.Authorize, b *limiter.Batch) {
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
	status := auth.DeniedStatus
	if status == 0 {
		status = httpanswer.DeniedStatus(denied)
	}
	httpanswer.SetHeadersOf(w.Header(), denied, b.Results)
	httpanswer.Deny(w, denied, status)
}

// worst returns the denial that lasts longest, nil if there is none. Checks that are only denied with others do not count.
func worst(b *limiter.Batch) (longest *limiter.Result) {
	for i := range b.Results {
		r := &b.Results[i]
		if v := r.Verdict(); v != limiter.Denied && v != limiter.DeniedNever {
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
