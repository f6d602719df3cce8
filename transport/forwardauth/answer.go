package forwardauth

import (
	"net/http"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport/internal/httpanswer"
)

// answer answers a call whose checks b has had decided.
func (d *API) answer(w http.ResponseWriter, r *http.Request, a *rules.Authorize, b *limiter.Batch) {
	denied := worst(b)
	// One denial settles it, whatever became of the other descriptors. But among all or nothing, those are
	// denied for the sake of the one that failed.
	if e := failure(b); e != nil && (denied == nil || a.AllOrNothing) {
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
	if a.AllOrNothing && limited(b) > 1 {
		now := limiter.NewBatch()
		defer now.Release()
		if found := d.lookAgain(r, b, now); found != nil {
			b, denied = now, found
		}
	}
	deny(w, a, b, denied)
}

// lookAgain reads, into now, what b has checked, and returns the worst denial, nil if there is none any more: of
// checks that were all denied together the results do not say whose fault it was, and whose rule is to answer.
func (d *API) lookAgain(r *http.Request, b, now *limiter.Batch) *limiter.Result {
	now.OneRequest, now.API = true, b.API
	for i := range b.Checks {
		was := &b.Checks[i]
		c := now.Add()
		c.Domain, c.Verb, c.NoDelay = was.Domain, bucket.Read, true
		c.Descriptor = append(c.Descriptor, was.Descriptor...)
	}
	if err := d.config.Limiter.Check(r.Context(), now); err != nil {
		return nil
	}
	return worst(now)
}

// deny rejects by the rule of denied, which is a result of b.
func deny(w http.ResponseWriter, a *rules.Authorize, b *limiter.Batch, denied *limiter.Result) {
	status := a.DeniedStatus
	if status == 0 {
		status = httpanswer.DeniedStatus(denied)
	}
	httpanswer.SetHeadersOf(w.Header(), denied, b.Results)
	httpanswer.Deny(w, denied, status, func(p httpanswer.Problem) any { return p })
}

// limited returns how many results of b were held to a limit.
func limited(b *limiter.Batch) (n int) {
	for i := range b.Results {
		if b.Results[i].Limits != nil {
			n++
		}
	}
	return n
}

// worst returns the denial that lasts longest, nil if there is none. What no limit is held to is
// denied with others only.
func worst(b *limiter.Batch) (longest *limiter.Result) {
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err != nil || r.Allowed || r.Limits == nil {
			continue
		}
		if longest == nil || !longest.Never() && (r.Never() || r.RetryAfter > longest.RetryAfter) {
			longest = r
		}
	}
	return longest
}

// tightest returns the result that leaves the least, nil if none was held to a limit. One that
// counted goes before those that did not.
func tightest(b *limiter.Batch) (least *limiter.Result) {
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err != nil || r.Limits == nil {
			continue
		}
		switch {
		case least == nil, httpanswer.Counted(r) && !httpanswer.Counted(least),
			httpanswer.Counted(r) && r.Remaining < least.Remaining:
			least = r
		}
	}
	return least
}

// failure returns why a check has no decision, nil if all have one: what is wrong with one
// goes before what no node could decide.
func failure(b *limiter.Batch) (first *limiter.Error) {
	for i := range b.Results {
		if e := b.Results[i].Err; e != nil && (first == nil || e.Code < first.Code) {
			first = e
		}
	}
	return first
}
