package envoy

import (
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/rules"
)

// undecidedRetry is after how long a request may come back of which a descriptor has no decision.
const undecidedRetry = time.Second

// settleUndecided answers the descriptors that have no decision, each for itself: an error of the whole call makes Envoy pass the
// request under failure_mode_deny: false, so one must not be had by making one descriptor fail. A rule admits if it is
// on_failure: open or in shadow mode; all else is over: other rules, limits that a descriptor brought, and a descriptor that is
// wrong. Hits that could not be given back stay undecided.
func settleUndecided(b *limiter.Batch, req *ratelimitv3.RateLimitRequest) {
	for i := range b.Results {
		r := &b.Results[i]
		if verb, _ := spends(req, i); r.Err == nil || verb == bucket.Refund && r.Err.Code != limiter.Invalid {
			continue
		}
		r.Err = nil
		if r.Rule != nil && (r.Rule.Shadow || r.Rule.OnFailure == rules.FailOpen) {
			r.Allowed, r.Source = true, check.Open
			continue
		}
		r.Allowed, r.Source, r.RetryAfter = false, check.Closed, undecidedRetry
	}
}

// failure returns the error of the whole call where no descriptor has an answer, and none is held to a limit: what is wrong
// with one goes before what no node could decide.
func failure(b *limiter.Batch) error {
	var first *limiter.Error
	at := 0
	for i := range b.Results {
		r := &b.Results[i]
		if r.Err == nil || r.Limits != nil {
			return nil
		}
		if first == nil || r.Err.Code < first.Code {
			first, at = r.Err, i
		}
	}
	if first.Field == "domain" { // of the request, as in fault
		return errorOf(first, first.Field)
	}
	return errorOf(first, descriptorPath(at, first.Field))
}
