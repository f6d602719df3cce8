package door

import (
	"errors"
	"fmt"
	"time"

	"github.com/sluice-project/sluice/internal/load"
	gubernatorv1 "github.com/sluice-project/sluice/proto/gubernator/v1"
)

// openGubernator asks by V1.GetRateLimits, of windows that begin with their first hit.
func openGubernator(c Config) (Door, error) {
	if p := c.Limits[0].Period; p%time.Millisecond != 0 {
		return nil, fmt.Errorf("limits: a period of %v; gubernator counts in whole milliseconds", p)
	}
	u := &unary[gubernatorv1.GetRateLimitsReq, gubernatorv1.GetRateLimitsResp]{
		method: gubernatorv1.V1_GetRateLimits_FullMethodName,
		request: func(c *Config, checks int) *gubernatorv1.GetRateLimitsReq {
			r := &gubernatorv1.GetRateLimitsReq{}
			for range checks {
				r.Requests = append(r.Requests, &gubernatorv1.RateLimitReq{
					Name: c.Domain, Hits: 1, Limit: c.Limits[0].Count, Duration: c.Limits[0].Period.Milliseconds(),
				})
			}
			return r
		},
		name: func(r *gubernatorv1.GetRateLimitsReq, keys []string) {
			for i, k := range keys {
				r.Requests[i].UniqueKey = k
			}
		},
		count: countGubernator,
	}
	return u.open(c)
}

func countGubernator(res *gubernatorv1.GetRateLimitsResp, checks int, seen *load.Tally) error {
	if n := len(res.GetResponses()); n != checks {
		return fmt.Errorf("%d answers for %d checks", n, checks)
	}
	for _, r := range res.GetResponses() {
		if r.GetError() != "" {
			seen.Fail(1, errors.New(r.GetError()))
			continue
		}
		source := load.Held
		if r.GetMetadata()["owner"] != "" {
			source = load.Forwarded
		}
		seen.Count(source, r.GetStatus() == gubernatorv1.Status_UNDER_LIMIT)
	}
	return nil
}
