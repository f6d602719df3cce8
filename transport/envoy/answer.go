package envoy

import (
	"math"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/limiter"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// limited reports whether r was held to a limit: a rule applied that is not unlimited and
// that no other rule of the request replaced, or the descriptor brought its own, or is wrong.
func limited(r *limiter.Result) bool {
	return r.Err == nil && (r.Limits != nil || r.Source == check.Closed)
}

// counted reports whether r also says what is left: not when on_failure or on_partition
// answered without looking at a counter.
func counted(r *limiter.Result) bool {
	return limited(r) && r.Source != check.Open && r.Source != check.Closed
}

// over reports whether r is over its limit. A rule in shadow mode never is, whatever
// became of the rest of an all-or-nothing batch.
func over(r *limiter.Result) bool {
	return limited(r) && !r.Allowed && (r.Rule == nil || !r.Rule.Shadow)
}

// exceeded reports whether the request as a whole is over: a descriptor that is not in
// quota mode is over, or all that are in it. One that failed is not over.
func exceeded(b *limiter.Batch) bool {
	quotas, spent := 0, 0
	for i := range b.Results {
		r := &b.Results[i]
		switch {
		case r.Rule == nil || !r.Rule.Quota || r.Limits == nil:
			if over(r) {
				return true
			}
		case over(r):
			quotas, spent = quotas+1, spent+1
		default:
			quotas++
		}
	}
	return quotas > 0 && spent == quotas
}

// codeOf is the gRPC code of an error. Envoy takes each for a failure of the service, but
// retries by code.
func codeOf(c limiter.Code) codes.Code {
	switch c {
	case limiter.Invalid, limiter.UnknownDomain:
		return codes.InvalidArgument
	case limiter.Overloaded:
		return codes.ResourceExhausted
	case limiter.Unavailable:
		return codes.Unavailable
	case limiter.Forbidden:
		return codes.PermissionDenied
	case limiter.Unauthenticated:
		return codes.Unauthenticated
	}
	return codes.Internal
}

// errorOf returns e, about a field of the request, as a gRPC status.
func errorOf(e *limiter.Error, field string) error {
	return status.Error(codeOf(e.Code), field+": "+e.Message)
}

// told is the status of one descriptor and all that it points to.
type told struct {
	status ratelimitv3.RateLimitResponse_DescriptorStatus
	limit  ratelimitv3.RateLimitResponse_RateLimit
	reset  durationpb.Duration
}

// answer says in Envoy's words what became of req, whose checks b has had decided.
func (d *API) answer(b *limiter.Batch, req *ratelimitv3.RateLimitRequest, denied bool) *ratelimitv3.RateLimitResponse {
	memory := make([]told, len(b.Results))
	res := &ratelimitv3.RateLimitResponse{
		OverallCode: ratelimitv3.RateLimitResponse_OK,
		Statuses:    make([]*ratelimitv3.RateLimitResponse_DescriptorStatus, len(b.Results)),
	}
	for i := range memory {
		memory[i].fill(&b.Results[i])
		res.Statuses[i] = &memory[i].status
	}
	if denied {
		res.OverallCode = ratelimitv3.RateLimitResponse_OVER_LIMIT
		deny(res, b)
	}
	if d.config.ResponseHeaders {
		addHeaders(res, b, denied)
	}
	if d.config.DynamicMetadata {
		res.DynamicMetadata = metadata(b, req)
	}
	return res
}

// fill makes t, which is empty, say what r is.
func (t *told) fill(r *limiter.Result) {
	s := &t.status
	switch {
	case r.Err != nil:
		return // the code of a descriptor that nobody decided is UNKNOWN
	case over(r):
		s.Code = ratelimitv3.RateLimitResponse_OVER_LIMIT
	default:
		s.Code = ratelimitv3.RateLimitResponse_OK
	}
	if r.Rule != nil && r.Rule.Unlimited {
		s.LimitRemaining = math.MaxUint32
	}
	if counted(r) {
		describe(&t.limit, r)
		s.CurrentLimit, s.LimitRemaining = &t.limit, narrow(r.Remaining)
	}
	if counted(r) || over(r) {
		wait := untilReset(r)
		t.reset.Seconds, t.reset.Nanos = int64(wait/time.Second), int32(wait%time.Second)
		s.DurationUntilReset = &t.reset
	}
}

// untilReset returns the time until the limit of r is whole again, or, when it is over,
// until the same hits would be admitted: Envoy can make that its client's Retry-After. Hits
// that never will be are to wait for a whole limit, and where that is whole, for a period,
// so that nobody takes 0 for an invitation.
func untilReset(r *limiter.Result) time.Duration {
	switch {
	case r.Allowed || r.Rule != nil && r.Rule.Shadow:
		return r.ResetAfter
	case !r.Never():
		return r.RetryAfter
	case r.ResetAfter > 0:
		return r.ResetAfter
	}
	return r.Period
}

// deny adds the body and the headers that the first rule with a response wants for a
// request that is over. Its status is for Envoy's configuration to choose.
func deny(res *ratelimitv3.RateLimitResponse, b *limiter.Batch) {
	for i := range b.Results {
		r := &b.Results[i]
		if !over(r) || r.Rule == nil || r.Rule.Response == nil {
			continue
		}
		if r.Rule.Response.Body != "" {
			res.RawBody = []byte(r.Rule.Response.Body)
		}
		for _, h := range r.Rule.Response.Headers {
			res.ResponseHeadersToAdd = append(res.ResponseHeadersToAdd, header(h.Name, h.Value))
		}
		return
	}
}

// addHeaders tells Envoy's client how the descriptor stands that it should heed. Names and
// order are those of envoyproxy/ratelimit.
func addHeaders(res *ratelimitv3.RateLimitResponse, b *limiter.Batch, denied bool) {
	r := decisive(b, denied)
	if r == nil {
		return
	}
	wait := untilReset(r)
	seconds := int64(wait / time.Second)
	if wait%time.Second > 0 { // rounded up, so that nobody comes too early
		seconds++
	}
	res.ResponseHeadersToAdd = append(res.ResponseHeadersToAdd,
		header("RateLimit-Limit", strconv.FormatUint(uint64(narrow(r.Limit)), 10)),
		header("RateLimit-Remaining", strconv.FormatUint(uint64(narrow(r.Remaining)), 10)),
		header("RateLimit-Reset", strconv.FormatInt(seconds, 10)))
}

// decisive returns the result that says most about the request: of those that are over the
// one to wait for longest, if the request is; else the one with the least remaining. Between
// equals it is the first. nil if nothing was counted.
func decisive(b *limiter.Batch, denied bool) *limiter.Result {
	var best *limiter.Result
	for i := range b.Results {
		r := &b.Results[i]
		switch {
		case !counted(r) || denied && !over(r):
		case best == nil,
			denied && untilReset(r) > untilReset(best),
			!denied && r.Remaining < best.Remaining:
			best = r
		}
	}
	return best
}

func header(name, value string) *corev3.HeaderValue {
	return &corev3.HeaderValue{Key: name, Value: value}
}
