package door

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/internal/load"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// unary asks by one unary gRPC call.
type unary[Request, Response any] struct {
	*connections
	config Config
	method string
	// request makes a request of so many checks, whose keys name sets. A caller uses its request again.
	request func(c *Config, checks int) *Request
	name    func(r *Request, keys []string)
	// count adds the decisions of a response to that many checks.
	count func(r *Response, checks int, seen *load.Tally) error
}

// open connects u as c says.
func (u *unary[Request, Response]) open(c Config) (_ Door, err error) {
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
func (c *unaryCaller[Request, Response]) Call(ctx context.Context, node int, keys []string, seen *load.Tally) error {
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

func openGRPC(c Config) (Door, error) {
	u := &unary[sluicev1.CheckRequest, sluicev1.CheckResponse]{
		method: sluicev1.SluiceService_Check_FullMethodName, request: request, name: name, count: count,
	}
	return u.open(c)
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
func Count(d *sluicev1.Decision, seen *load.Tally) {
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
