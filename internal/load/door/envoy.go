package door

import (
	"fmt"
	"math"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/sluice-project/sluice/internal/load"
)

// envoyUnits are the periods that a descriptor's own limit can have.
var envoyUnits = map[time.Duration]typev3.RateLimitUnit{
	time.Second: typev3.RateLimitUnit_SECOND, time.Minute: typev3.RateLimitUnit_MINUTE,
	time.Hour: typev3.RateLimitUnit_HOUR, 24 * time.Hour: typev3.RateLimitUnit_DAY,
}

// openEnvoy asks as Envoy's rate limit filter does. It does not learn who decided.
func openEnvoy(c Config) (Door, error) {
	var limit *commonv3.RateLimitDescriptor_RateLimitOverride
	if len(c.Limits) > 0 {
		l := c.Limits[0]
		unit, ok := envoyUnits[l.Period]
		if !ok {
			return nil, fmt.Errorf("limits: a period of %v; Envoy has 1s, 1m, 1h and 24h", l.Period)
		}
		if l.Count > math.MaxUint32 {
			return nil, fmt.Errorf("limits: a count of %d; Envoy's is at most %d", l.Count, uint32(math.MaxUint32))
		}
		limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(l.Count), Unit: unit}
	}
	u := &unary[ratelimitv3.RateLimitRequest, ratelimitv3.RateLimitResponse]{
		method: ratelimitv3.RateLimitService_ShouldRateLimit_FullMethodName,
		request: func(c *Config, checks int) *ratelimitv3.RateLimitRequest {
			r := &ratelimitv3.RateLimitRequest{Domain: c.Domain}
			for range checks {
				r.Descriptors = append(r.Descriptors, &commonv3.RateLimitDescriptor{
					Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: c.Key}}, Limit: limit,
				})
			}
			return r
		},
		name: func(r *ratelimitv3.RateLimitRequest, keys []string) {
			for i, k := range keys {
				r.Descriptors[i].Entries[0].Value = k
			}
		},
		count: countEnvoy,
	}
	return u.open(c)
}

func countEnvoy(res *ratelimitv3.RateLimitResponse, checks int, seen *load.Tally) error {
	if n := len(res.GetStatuses()); n != checks {
		return fmt.Errorf("%d statuses for %d descriptors", n, checks)
	}
	for _, s := range res.GetStatuses() {
		switch s.GetCode() {
		case ratelimitv3.RateLimitResponse_OK:
			seen.Count(load.Untold, true)
		case ratelimitv3.RateLimitResponse_OVER_LIMIT:
			seen.Count(load.Untold, false)
		default:
			seen.Fail(1, fmt.Errorf("status %v", s.GetCode()))
		}
	}
	return nil
}
