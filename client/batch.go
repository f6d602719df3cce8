package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-project/sluice/internal/shortvalue"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// CheckAll spends the costs of all checks if every limit of every one admits them, else of none: then none
// is allowed, and RetryAfter of each is at least the time until all may be tried again. It takes 1 to 10,000
// checks. When no node answers, the FailurePolicy answers each, and what one denies none is allowed.
func (c *Client) CheckAll(ctx context.Context, checks []Check) ([]Decision, error) {
	began := time.Now()
	decisions, err := c.checkAll(ctx, checks)
	if err != nil {
		// It is one answer, about all of them.
		e := Event{Verb: verbs[sluicev1.Verb_VERB_CHECK], Err: err}
		for i := range checks {
			e.Domain = checks[0].Domain
			e.Cost += max(1, checks[i].Cost)
		}
		c.stats.count(nil, err)
		c.observe(ctx, began, e)
		return nil, err
	}
	for i := range decisions {
		c.stats.count(&decisions[i], nil)
		c.observe(ctx, began, Event{
			Domain: checks[i].Domain, Verb: verbs[sluicev1.Verb_VERB_CHECK], Cost: max(1, checks[i].Cost), Decision: decisions[i],
		})
	}
	return decisions, nil
}

// observe tells the observer, if there is one, about e, which was asked at began.
func (c *Client) observe(ctx context.Context, began time.Time, e Event) {
	if c.opts.observer != nil {
		e.Took = time.Since(began)
		c.opts.observer.Decided(ctx, e)
	}
}

func (c *Client) checkAll(ctx context.Context, checks []Check) ([]Decision, error) {
	if len(checks) == 0 {
		return nil, invalid("checks", "empty; want at least one")
	}
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
	decisions := make([]Decision, len(checks))
	n, err := c.unary(ctx, keys[0], sluicev1.SluiceService_Check_FullMethodName, req, decisions)
	switch {
	case errors.Is(err, errUnsent):
		c.standInAll(checks, keys, decisions)
	case err != nil:
		return nil, err
	default:
		for i := range decisions {
			c.learn(keys[i], n, false, &decisions[i])
		}
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
	var wait time.Duration
	for i := range decisions {
		wait = max(wait, decisions[i].RetryAfter)
	}
	for i := range decisions {
		if !all {
			decisions[i].Allowed, decisions[i].RetryAfter = false, wait
		}
	}
}

// Reset forgets what was spent of descriptor in domain. Doing it again is harmless, so it is retried;
// ErrUnavailable says that nobody has said that it is done.
func (c *Client) Reset(ctx context.Context, domain string, descriptor ...Entry) error {
	began := time.Now()
	d, err := c.reset(ctx, &Check{Domain: domain, Descriptor: descriptor})
	if err != nil {
		c.stats.count(nil, err)
	}
	d.Allowed = err == nil // an answer has nothing against it
	c.observe(ctx, began, Event{Domain: domain, Verb: "reset", Decision: d, Err: err})
	return err
}

func (c *Client) reset(ctx context.Context, q *Check) (Decision, error) {
	var d [1]Decision
	p, key, fault := q.proto()
	if fault != nil {
		return d[0], fault
	}
	defer c.denials.forget(key)
	_, err := c.unary(ctx, key, sluicev1.SluiceService_Reset_FullMethodName, &sluicev1.ResetRequest{Checks: []*sluicev1.Check{p}}, d[:])
	switch {
	case errors.Is(err, errUnsent):
		return Decision{}, fmt.Errorf("%w within %v", ErrUnavailable, c.opts.timeout)
	case err != nil:
		return Decision{}, err
	}
	return d[0], nil
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
		p.Descriptor_ = append(p.Descriptor_, &sluicev1.Entry{Key: e.Key, Value: shortvalue.Of(e.Value)})
	}
	for i := range c.Limits {
		p.Limits = append(p.Limits, c.Limits[i].proto())
	}
	p.Cost = proto.Int64(max(1, c.Cost))
	return p, keyOf(b), nil
}

// unary calls one node after the other until one has answered, reads its decisions, and returns the node. The
// error is errUnsent when the time is up.
func (c *Client) unary(ctx context.Context, key counterKey, method string, req proto.Message, into []Decision) (*node, error) {
	return c.inTurns(ctx, key, func(ctx context.Context, n *node) error { return c.invoke(ctx, n, method, req, into) })
}

// inTurns has one node after the other called until one has answered, and returns it. The error is errUnsent
// when the time is up, or the *Error of a call.
func (c *Client) inTurns(ctx context.Context, key counterKey, call func(context.Context, *node) error) (*node, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, time.Now().Add(c.opts.timeout), errUnsent)
	defer cancel()
	var n *node
	for wait := time.Duration(0); ; wait = max(firstWait, min(2*wait, lastWait)) {
		if wait > firstWait {
			sleep(ctx, c.jitter(wait))
		}
		s, _, err := c.find(ctx, key, n)
		if err != nil {
			return nil, err
		}
		n = s.node
		if err = call(ctx, n); err == nil {
			return n, nil
		}
		switch e, ok := errors.AsType[*Error](err); {
		case ok:
			return nil, e
		case c.closed.Load():
			return nil, ErrClosed
		case ctx.Err() != nil:
			return nil, ended(ctx)
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
		return finalOf(err, codes.InvalidArgument)
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

// finalOf returns err as an *Error if it has one of the codes that asking another node does not help, else as
// it is.
func finalOf(err error, final ...codes.Code) error {
	st, _ := status.FromError(err)
	if !slices.Contains(final, st.Code()) {
		return err
	}
	for _, d := range st.Details() {
		if e, ok := d.(*sluicev1.Error); ok {
			return invalid(e.GetField(), e.GetMessage())
		}
	}
	return invalid("", st.Message())
}
