package door

import (
	"context"
	"fmt"
	"math"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/internal/load"
)

// envoy asks as Envoy's rate limit filter does. It does not learn who decided.
type envoy struct {
	own
	limit *commonv3.RateLimitDescriptor_RateLimitOverride
}

// envoyUnits are the periods that a descriptor's own limit can have.
var envoyUnits = map[time.Duration]typev3.RateLimitUnit{
	time.Second: typev3.RateLimitUnit_SECOND, time.Minute: typev3.RateLimitUnit_MINUTE,
	time.Hour: typev3.RateLimitUnit_HOUR, 24 * time.Hour: typev3.RateLimitUnit_DAY,
}

func openEnvoy(c Config) (Door, error) {
	e := &envoy{}
	if len(c.Limits) > 0 {
		l := c.Limits[0]
		unit, ok := envoyUnits[l.Period]
		if !ok {
			return nil, fmt.Errorf("limits: a period of %v; Envoy has 1s, 1m, 1h and 24h", l.Period)
		}
		if l.Count > math.MaxUint32 {
			return nil, fmt.Errorf("limits: a count of %d; Envoy's is at most %d", l.Count, uint32(math.MaxUint32))
		}
		e.limit = &commonv3.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: uint32(l.Count), Unit: unit}
	}
	conns, err := connect(c)
	if err != nil {
		return nil, err
	}
	e.own = own{conns, c}
	return e, nil
}

// NewCaller implements load.Target.
func (e *envoy) NewCaller(checks int) load.Caller {
	c := &envoyCaller{conns: e.take(), timeout: e.config.Timeout, request: &ratelimitv3.RateLimitRequest{Domain: e.config.Domain}}
	for range checks {
		c.request.Descriptors = append(c.request.Descriptors, &commonv3.RateLimitDescriptor{
			Entries: []*commonv3.RateLimitDescriptor_Entry{{Key: e.config.Key}}, Limit: e.limit,
		})
	}
	return c
}

type envoyCaller struct {
	conns   []*grpc.ClientConn
	timeout time.Duration
	request *ratelimitv3.RateLimitRequest
}

// Call implements load.Caller.
func (c *envoyCaller) Call(ctx context.Context, node int, keys []string, seen *load.Tally) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for i, k := range keys {
		c.request.Descriptors[i].Entries[0].Value = k
	}
	res, err := ratelimitv3.NewRateLimitServiceClient(c.conns[node]).ShouldRateLimit(ctx, c.request)
	if err != nil {
		return err
	}
	if n := len(res.GetStatuses()); n != len(keys) {
		return fmt.Errorf("%d statuses for %d descriptors", n, len(keys))
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
