package door

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/internal/load"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// own asks by SluiceService.Check.
type own struct {
	*connections
	config Config
}

func openGRPC(c Config) (Door, error) {
	conns, err := connect(c)
	if err != nil {
		return nil, err
	}
	return &own{conns, c}, nil
}

// NewCaller implements load.Target.
func (o *own) NewCaller(checks int) load.Caller {
	return &ownCaller{conns: o.take(), timeout: o.config.Timeout, request: request(&o.config, checks)}
}

type ownCaller struct {
	conns   []*grpc.ClientConn
	timeout time.Duration
	request *sluicev1.CheckRequest
}

// Call implements load.Caller.
func (c *ownCaller) Call(ctx context.Context, node int, keys []string, seen *load.Tally) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	name(c.request, keys)
	res, err := sluicev1.NewSluiceServiceClient(c.conns[node]).Check(ctx, c.request)
	if err != nil {
		return err
	}
	return count(res, len(keys), seen)
}

// request has so many checks, whose keys are still to be named.
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

// count adds the decisions of res, which are to be so many.
func count(res *sluicev1.CheckResponse, want int, seen *load.Tally) error {
	if e := res.GetError(); e != nil {
		return faultOf(e)
	}
	if n := len(res.GetDecisions()); n != want {
		return fmt.Errorf("%d decisions for %d checks", n, want)
	}
	for _, d := range res.GetDecisions() {
		if e := d.GetError(); e != nil {
			seen.Fail(1, faultOf(e))
			continue
		}
		seen.Count(sourceOf(d.GetSource()), d.GetAllowed())
	}
	return nil
}

func faultOf(e *sluicev1.Error) error {
	if e.GetField() == "" {
		return errors.New(e.GetMessage())
	}
	return fmt.Errorf("%s: %s", e.GetField(), e.GetMessage())
}

func sourceOf(s sluicev1.Source) load.Source {
	switch s {
	case sluicev1.Source_SOURCE_HELD:
		return load.Held
	case sluicev1.Source_SOURCE_FORWARDED:
		return load.Forwarded
	case sluicev1.Source_SOURCE_SHARE:
		return load.Share
	case sluicev1.Source_SOURCE_CLOSED:
		return load.Closed
	case sluicev1.Source_SOURCE_OPEN:
		return load.Open
	case sluicev1.Source_SOURCE_UNRULED:
		return load.Unruled
	case sluicev1.Source_SOURCE_LEASE:
		return load.Lease
	case sluicev1.Source_SOURCE_EVENTUAL:
		return load.Eventual
	}
	return load.Untold
}
