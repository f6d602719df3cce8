package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// CheckAll spends the costs of all checks if every limit of every one admits them, else of none: then none
// is allowed, and RetryAfter of each is at least the time until all may be tried again. It takes 1 to 10,000
// checks. When no node answers, the FailurePolicy answers each, and what one denies none is allowed.
func (c *Client) CheckAll(ctx context.Context, checks []Check) ([]Decision, error) {
	req := &sluicev1.CheckRequest{AllOrNothing: true}
	var keys []counterKey
	for i := range checks {
		p, key, fault := checks[i].proto()
		if fault != nil {
			fault.Field = fmt.Sprintf("checks[%d].%s", i, fault.Field)
			return nil, fault
		}
		req.Checks = append(req.Checks, p)
		keys = append(keys, key)
	}
	if len(checks) == 0 {
		return nil, invalid("checks", "empty; want at least one")
	}
	decisions := make([]Decision, len(checks))
	err := c.unary(ctx, keys[0], sluicev1.SluiceService_Check_FullMethodName, req, decisions)
	if errors.Is(err, errUnsent) {
		err = nil
		c.standInAll(checks, keys, decisions)
	}
	if err != nil {
		c.stats.count(nil, err)
		return nil, err
	}
	for i := range decisions {
		c.stats.count(&decisions[i], nil)
	}
	return decisions, nil
}

// standInAll answers checks that no node has answered.
func (c *Client) standInAll(checks []Check, keys []counterKey, decisions []Decision) {
	all := true
	for _, reading := range []bool{true, false} { // what is not spent in the end is not spent here either
		for i := range checks {
			decisions[i] = c.standIn(keys[i], max(1, checks[i].Cost), reading)
			all = all && decisions[i].Allowed
		}
		if !all {
			break
		}
	}
	for i := range decisions {
		decisions[i].Allowed = decisions[i].Allowed && all
	}
}

// Reset forgets what was spent of descriptor in domain. Doing it again is harmless, so it is retried;
// ErrUnavailable says that nobody has said that it is done.
func (c *Client) Reset(ctx context.Context, domain string, descriptor ...Entry) error {
	p, key, fault := (&Check{Domain: domain, Descriptor: descriptor}).proto()
	if fault != nil {
		return fault
	}
	defer c.denials.forget(key)
	err := c.unary(ctx, key, sluicev1.SluiceService_Reset_FullMethodName, &sluicev1.ResetRequest{Checks: []*sluicev1.Check{p}}, make([]Decision, 1))
	if errors.Is(err, errUnsent) {
		return fmt.Errorf("%w within %v", ErrUnavailable, c.opts.timeout)
	}
	return err
}

// proto returns c as a generated message, and the key of its counter.
func (c *Check) proto() (*sluicev1.Check, counterKey, *Error) {
	if fault := c.fault(); fault != nil {
		return nil, counterKey{}, fault
	}
	b, fault := appendCounter(nil, c)
	if fault != nil {
		return nil, counterKey{}, fault
	}
	p := &sluicev1.Check{Domain: c.Domain}
	for _, e := range c.Descriptor {
		p.Descriptor_ = append(p.Descriptor_, &sluicev1.Entry{Key: e.Key, Value: e.Value})
	}
	for i := range c.Limits {
		p.Limits = append(p.Limits, c.Limits[i].proto())
	}
	p.Cost = proto.Int64(max(1, c.Cost))
	return p, keyOf(b), nil
}

// unary calls one node after the other until one has answered, and reads its decisions. The error is
// errUnsent when the time is up.
func (c *Client) unary(ctx context.Context, key counterKey, method string, req proto.Message, into []Decision) error {
	ctx, cancel := context.WithDeadlineCause(ctx, time.Now().Add(c.opts.timeout), errUnsent)
	defer cancel()
	var n *node
	for wait := time.Duration(0); ; wait = max(firstWait, min(2*wait, lastWait)) {
		if wait > firstWait {
			sleep(ctx, c.jitter(wait))
		}
		s, _, err := c.find(ctx, key, n)
		if err != nil {
			return err
		}
		n = s.node
		if err = c.invoke(ctx, n, method, req, into); err == nil {
			return nil
		}
		switch e, ok := errors.AsType[*Error](err); {
		case ok:
			return e
		case c.closed.Load():
			return ErrClosed
		case ctx.Err() != nil:
			return ended(ctx)
		}
		c.stats.retries.Add(1)
	}
}

// invoke makes one call. An *Error is final.
func (c *Client) invoke(ctx context.Context, n *node, method string, req proto.Message, into []Decision) error {
	var r reply
	// A node that hangs leaves time for another.
	try, cancel := context.WithTimeout(ctx, c.opts.timeout/2)
	defer cancel()
	if err := n.conn.Invoke(try, method, req, &r, grpc.ForceCodecV2(newCodec())); err != nil {
		if st, _ := status.FromError(err); st.Code() == codes.InvalidArgument {
			for _, d := range st.Details() {
				if e, ok := d.(*sluicev1.Error); ok {
					return invalid(e.GetField(), e.GetMessage())
				}
			}
			return invalid("", st.Message())
		}
		return err
	}
	at := 0
	var names names
	var first error
	err := responseFields(r.bytes, func(b []byte) error {
		if at >= len(into) {
			return errMalformed
		}
		into[at] = Decision{}
		fault, err := readDecision(b, &into[at], &names)
		if e := faultOf(fault); e != nil && first == nil {
			first = e
			if x, ok := e.(*Error); ok && len(into) > 1 {
				first = invalid(fmt.Sprintf("checks[%d].%s", at, x.Field), x.Message)
			}
		}
		at++
		return err
	})
	if err == nil && at != len(into) {
		err = errMalformed
	}
	if err != nil {
		return err
	}
	return first
}
