package api

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	commonv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"github.com/sluicecluster/sluice/internal/load"
	gubernatorv1 "github.com/sluicecluster/sluice/proto/gubernator/v1"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"google.golang.org/grpc"
)

// unary makes unary gRPC calls.
type unary[Request, Response any] struct {
	*connections
	config  Config
	method  string
	request func(c *Config, checks int) *Request // without keys; used again for each call of a caller
	name    func(r *Request, keys []string)      // sets the keys
	count   func(r *Response, checks int, seen *load.Counts) error
}

// open connects u.
func (u *unary[Request, Response]) open(c Config) (_ API, err error) {
	u.config = c
	u.connections, err = connect(c)
	return u, err
}

// NewCaller implements load.Target.
func (u *unary[Request, Response]) NewCaller(checks int) load.Caller {
	return &unaryCaller[Request, Response]{u, u.take(), u.request(&u.config, checks)}
}

type unaryCaller[Request, Response any] struct {
	*unary[Request, Response]
	conns   []*grpc.ClientConn
	message *Request
}

// Call implements load.Caller.
func (c *unaryCaller[Request, Response]) Call(ctx context.Context, node int, keys []string, seen *load.Counts) error {
	if c.config.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.config.Timeout)
		defer cancel()
	}
	c.name(c.message, keys)
	res := new(Response)
	if err := c.conns[node].Invoke(ctx, c.method, c.message, res); err != nil {
		return err
	}
	return c.count(res, len(keys), seen)
}

func openGRPC(c Config) (API, error) {
	u := &unary[sluicev1.CheckRequest, sluicev1.CheckResponse]{
		method: sluicev1.RateLimitService_Check_FullMethodName, request: request, name: name, count: count,
	}
	return u.open(c)
}

// request has so many checks, whose keys name sets.
func request(c *Config, checks int) *sluicev1.CheckRequest {
	req := &sluicev1.CheckRequest{Checks: make([]*sluicev1.Check, checks)}
	var limits []*sluicev1.Limit
	for _, l := range c.Limits {
		limits = append(limits, &sluicev1.Limit{
			Algorithm: sluicev1.Algorithm_ALGORITHM_FIXED_WINDOW, Count: l.Count, PeriodNs: int64(l.Period),
		})
	}
	for i := range req.Checks {
		req.Checks[i] = &sluicev1.Check{Domain: c.Domain, Descriptor_: []*sluicev1.Entry{{Key: c.Key}}, Limits: limits}
	}
	return req
}

func name(req *sluicev1.CheckRequest, keys []string) {
	for i, k := range keys {
		req.Checks[i].Descriptor_[0].Value = k
	}
}

// count adds the decisions of res, which must be want.
func count(res *sluicev1.CheckResponse, want int, seen *load.Counts) error {
	if e := res.GetError(); e != nil {
		return errorOf(e)
	}
	if n := len(res.GetDecisions()); n != want {
		return fmt.Errorf("%d decisions for %d checks", n, want)
	}
	for _, d := range res.GetDecisions() {
		Count(d, seen)
	}
	return nil
}

// Count adds a decision of sluice's own API.
func Count(d *sluicev1.Decision, seen *load.Counts) {
	if e := d.GetError(); e != nil {
		seen.Fail(1, errorOf(e))
		return
	}
	seen.Count(sourceOf(d.GetSource()), d.GetAllowed())
}

func errorOf(e *sluicev1.Error) error {
	return errors.New(strings.TrimPrefix(e.GetField()+": "+e.GetMessage(), ": "))
}

// sources are the sources of sluice's own API by their number.
var sources = func() []load.Source {
	all := make([]load.Source, len(sluicev1.Source_name))
	for n, name := range sluicev1.Source_name {
		all[n] = load.SourceNamed(strings.ToLower(strings.TrimPrefix(name, "SOURCE_")))
	}
	return all
}()

func sourceOf(s sluicev1.Source) load.Source {
	if s < 0 || int(s) >= len(sources) {
		return load.Untold
	}
	return sources[s]
}

// openGubernator calls V1.GetRateLimits, with windows that begin with their first hit.
func openGubernator(c Config) (API, error) {
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

func countGubernator(res *gubernatorv1.GetRateLimitsResp, checks int, seen *load.Counts) error {
	if n := len(res.GetResponses()); n != checks {
		return fmt.Errorf("%d answers for %d checks", n, checks)
	}
	for _, r := range res.GetResponses() {
		if r.GetError() != "" {
			seen.Fail(1, errors.New(r.GetError()))
			continue
		}
		source := load.Owned
		if r.GetMetadata()["owner"] != "" {
			source = load.Forwarded
		}
		seen.Count(source, r.GetStatus() == gubernatorv1.Status_UNDER_LIMIT)
	}
	return nil
}

// envoyUnits are the periods that a descriptor's own limit can have.
var envoyUnits = map[time.Duration]typev3.RateLimitUnit{
	time.Second: typev3.RateLimitUnit_SECOND, time.Minute: typev3.RateLimitUnit_MINUTE,
	time.Hour: typev3.RateLimitUnit_HOUR, 24 * time.Hour: typev3.RateLimitUnit_DAY,
}

// openEnvoy calls as Envoy's rate limit filter does. Its responses have no source.
func openEnvoy(c Config) (API, error) {
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

func countEnvoy(res *ratelimitv3.RateLimitResponse, checks int, seen *load.Counts) error {
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
