package envoy

import (
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/sluice-project/sluice/limiter"
)

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
