package envoy

import (
	"cmp"
	"math"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/httpfield"
	"github.com/sluicecluster/sluice/limiter"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
)

// limited reports whether a limit applied to r: of a rule that is not unlimited and that no other rule of the request
// replaced, or of the descriptor itself; or whether the descriptor is invalid, or denied without a rule.
func limited(r *limiter.Result) bool {
	return r.Err == nil && (r.Limits != nil || r.Source == check.Closed || r.DeniedUnmatched())
}

// counted reports whether r also has what remains: a fallback does not.
func counted(r *limiter.Result) bool { return limited(r) && r.Counted() }

// over reports whether r is over its limit. A rule in shadow mode never is, not even in an all-or-nothing batch that failed.
func over(r *limiter.Result) bool {
	return limited(r) && !r.Allowed && (r.Rule == nil || !r.Rule.Shadow)
}

// denies reports whether r is over its limit by itself, and not only because its all-or-nothing batch failed.
func denies(r *limiter.Result) bool { return over(r) && r.Verdict() != limiter.DeniedByOthers }

// exceeded reports whether the request is over: a descriptor that is not in quota mode is, or all that are in it. In an
// all-or-nothing batch one of any is enough. One that failed is not over.
func exceeded(b *limiter.Batch) bool {
	quotas, left := false, false
	for i := range b.Results {
		r := &b.Results[i]
		if r.Rule != nil && r.Rule.Quota && r.Limits != nil && !b.AllOrNothing {
			quotas, left = true, left || !over(r)
		} else if over(r) {
			return true
		}
	}
	return quotas && !left
}

// codeOf has the gRPC code of an error of a check. Envoy takes each for a failure of the service, but retries by code.
var codeOf = map[limiter.Code]codes.Code{
	limiter.Invalid: codes.InvalidArgument, limiter.UnknownDomain: codes.InvalidArgument,
	limiter.Overloaded: codes.Unavailable, limiter.Unavailable: codes.Unavailable,
	limiter.Forbidden: codes.PermissionDenied, limiter.Unauthenticated: codes.Unauthenticated, limiter.Unsupported: codes.Unimplemented,
}

// errorOf returns e, about a field of the request or "" for all of it, as a gRPC status.
func errorOf(e *limiter.Error, field string) error {
	message := e.Message
	if field != "" {
		message = field + ": " + message
	}
	return status.Error(cmp.Or(codeOf[e.Code], codes.Internal), message)
}

// descriptorStatus is the status of one descriptor and all that it points to.
type descriptorStatus struct {
	status ratelimitv3.RateLimitResponse_DescriptorStatus
	limit  ratelimitv3.RateLimitResponse_RateLimit
	reset  durationpb.Duration
}

// answer returns Envoy's response to req, whose decided checks b has.
func (a *API) answer(b *limiter.Batch, req *ratelimitv3.RateLimitRequest, denied bool) *ratelimitv3.RateLimitResponse {
	memory := make([]descriptorStatus, len(b.Results))
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
	if a.config.ResponseHeaders {
		addHeaders(res, b, denied)
	}
	if a.config.DynamicMetadata {
		res.DynamicMetadata = metadata(b, req)
	}
	return res
}

// fill fills the empty t from r.
func (t *descriptorStatus) fill(r *limiter.Result) {
	s := &t.status
	switch {
	case r.Err != nil:
		return // the code of an undecided descriptor is UNKNOWN
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
	if counted(r) || over(r) && !r.DeniedUnmatched() {
		wait := untilReset(r)
		t.reset.Seconds, t.reset.Nanos = int64(wait/time.Second), int32(wait%time.Second)
		s.DurationUntilReset = &t.reset
	}
}

// untilReset returns the time until the limit of r resets, or, when it is over, until the same hits would be admitted, which
// Envoy can make its client's Retry-After. Hits that never will be admitted wait for the reset, or where nothing is spent for
// a period, or a minute if there is none: 0 would invite them.
func untilReset(r *limiter.Result) time.Duration {
	switch {
	case r.Allowed || r.Rule != nil && r.Rule.Shadow:
		return r.ResetAfter
	case !r.Never():
		return r.RetryAfter
	case r.ResetAfter > 0:
		return r.ResetAfter
	}
	return cmp.Or(r.Period, time.Minute)
}

// deny adds the body and the headers of the first rule that denies and has a response. Envoy's configuration chooses the
// status.
func deny(res *ratelimitv3.RateLimitResponse, b *limiter.Batch) {
	for i := range b.Results {
		r := &b.Results[i]
		if !denies(r) || r.Rule == nil || r.Rule.Response == nil {
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

// addHeaders adds the headers of the decisive descriptor, in the names and the order of envoyproxy/ratelimit.
func addHeaders(res *ratelimitv3.RateLimitResponse, b *limiter.Batch, denied bool) {
	r := decisive(b, denied)
	if r == nil {
		return
	}
	res.ResponseHeadersToAdd = append(res.ResponseHeadersToAdd,
		header("RateLimit-Limit", strconv.FormatUint(uint64(narrow(r.Limit)), 10)),
		header("RateLimit-Remaining", strconv.FormatUint(uint64(narrow(r.Remaining)), 10)),
		header("RateLimit-Reset", strconv.FormatInt(httpfield.Seconds(untilReset(r)), 10)))
}

// decisive returns the result to report: of a denied request the one that denies and takes longest to reset, else the
// one with the least remaining. The first of equals; nil if nothing was counted.
func decisive(b *limiter.Batch, denied bool) *limiter.Result {
	var best *limiter.Result
	for i := range b.Results {
		r := &b.Results[i]
		switch {
		case !counted(r) || denied && !denies(r):
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
