package door

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/internal/load"
	gubernatorv1 "github.com/sluice-project/sluice/proto/gubernator/v1"
)

// gubernator asks by V1.GetRateLimits, of windows that begin with their first hit.
type gubernator struct{ own }

func openGubernator(c Config) (Door, error) {
	if p := c.Limits[0].Period; p%time.Millisecond != 0 {
		return nil, fmt.Errorf("limits: a period of %v; gubernator counts in whole milliseconds", p)
	}
	conns, err := connect(c)
	if err != nil {
		return nil, err
	}
	return &gubernator{own{conns, c}}, nil
}

// NewCaller implements load.Target.
func (g *gubernator) NewCaller(checks int) load.Caller {
	c := &gubernatorCaller{conns: g.take(), timeout: g.config.Timeout, request: &gubernatorv1.GetRateLimitsReq{}}
	limit := g.config.Limits[0]
	for range checks {
		c.request.Requests = append(c.request.Requests, &gubernatorv1.RateLimitReq{
			Name: g.config.Domain, Hits: 1, Limit: limit.Count, Duration: limit.Period.Milliseconds(),
		})
	}
	return c
}

type gubernatorCaller struct {
	conns   []*grpc.ClientConn
	timeout time.Duration
	request *gubernatorv1.GetRateLimitsReq
}

// Call implements load.Caller.
func (c *gubernatorCaller) Call(ctx context.Context, node int, keys []string, seen *load.Tally) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	for i, k := range keys {
		c.request.Requests[i].UniqueKey = k
	}
	res, err := gubernatorv1.NewV1Client(c.conns[node]).GetRateLimits(ctx, c.request)
	if err != nil {
		return err
	}
	if n := len(res.GetResponses()); n != len(keys) {
		return fmt.Errorf("%d answers for %d checks", n, len(keys))
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
