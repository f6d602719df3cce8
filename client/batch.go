package client

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"github.com/sluice-project/sluice/internal/shortvalue"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
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

// What the budget of repeats is made of.
const (
	budgetPart   = 10  // one repeat for so many checks that were answered
	budgetRate   = 10  // and so many a second, for clients that ask little
	budgetMost   = 100 // at once
	budgetAtOnce = 10  // at the start
)

// budget bounds how often checks are repeated that a busy node has turned away: callers that repeat all
// of them would keep it busy. The zero budget is full of budgetAtOnce.
type budget struct {
	mu struct {
		sync.Mutex
		begun    bool
		left     float64
		at       time.Time
		answered uint64
	}
}

// take reports whether one more repeat is in the budget, when so many checks have been answered until now.
func (b *budget) take(now time.Time, answered uint64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.begun {
		earned := float64(answered-b.mu.answered)/budgetPart + budgetRate*now.Sub(b.mu.at).Seconds()
		b.mu.left = min(budgetMost, b.mu.left+max(0, earned))
	} else {
		b.mu.begun, b.mu.left = true, budgetAtOnce
	}
	b.mu.at, b.mu.answered = now, answered
	if b.mu.left < 1 {
		return false
	}
	b.mu.left--
	return true
}

// answered is how many checks nodes have decided.
func (s *counters) answered() (n uint64) {
	for i := range s.allowed {
		switch Source(i) {
		case SourceFailOpen, SourceFailClosed, SourceFailLocal:
			continue
		}
		n += s.allowed[i].Load() + s.denied[i].Load()
	}
	return n
}

// maxSpread is the most that Wait comes later than it might, so that many who wait for one limit
// do not come back all at once.
const maxSpread = 100 * time.Millisecond

// Wait asks until q is admitted, and then waits for as long as a leaky queue wants it to. It returns at
// once, with what was decided, when the context's deadline is earlier than the limit would admit q or than its turn
// comes (ErrWouldExceedDeadline), and when the limit never will (ErrNever); else its error is the context's, or
// Check's. What was admitted to a queue stays charged, whatever the error: those behind it were told their times.
func (c *Client) Wait(ctx context.Context, q Check) (Decision, error) {
	for {
		d, err := c.Check(ctx, q)
		switch {
		case err != nil:
			return d, err
		case d.Allowed:
			if d.Delay <= 0 {
				return d, nil
			}
			if tooLate(ctx, d.Delay) {
				return d, ErrWouldExceedDeadline
			}
			if !sleep(ctx, d.Delay) {
				return d, ctx.Err()
			}
			return d, nil
		case d.RetryAfter == Never:
			return d, ErrNever
		}
		wait := max(d.RetryAfter, time.Millisecond)
		if tooLate(ctx, wait) {
			return d, ErrWouldExceedDeadline
		}
		spread := rand.N(min(wait/10, maxSpread) + 1) // #nosec G404 -- a pause
		if !sleep(ctx, wait+spread) {
			return d, ctx.Err()
		}
	}
}

// tooLate reports whether ctx ends before wait has passed.
func tooLate(ctx context.Context, wait time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < wait
}

// counterKey names a counter within this client: two hashes of its domain, descriptor and limits, with
// seeds that nobody else knows.
type counterKey [2]uint64

// seeds of counterKeys.
var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func keyOf(counter []byte) counterKey {
	return counterKey{maphash.Bytes(seeds[0], counter), maphash.Bytes(seeds[1], counter)}
}

// denial is one that a node has given, and for how long it stands.
type denial struct {
	decision Decision
	cost     int64
	at       time.Time
}

// denials remembers them. A nil one remembers nothing.
type denials struct {
	byKey *lru.Cache[counterKey, *denial]
}

func newDenials(entries int) *denials {
	if entries == 0 {
		return nil
	}
	// The only error is about entries, which the options have checked.
	byKey, err := lru.New[counterKey, *denial](entries)
	if err != nil {
		return nil
	}
	return &denials{byKey}
}

// get answers a check of cost from memory: more than what was denied is denied too, as long as the
// node has said. What it says of the time is as of now.
func (m *denials) get(key counterKey, cost int64, now func() time.Time) (d Decision, ok bool) {
	if m == nil {
		return d, false
	}
	x, ok := m.byKey.Get(key)
	if !ok || cost < x.cost {
		return d, false
	}
	gone := now().Sub(x.at)
	if gone < 0 || gone >= x.decision.deniedFor {
		return d, false
	}
	d = x.decision
	d.Source = SourceDenyCache
	d.deniedFor -= gone
	if d.RetryAfter != Never {
		d.RetryAfter -= gone
	}
	d.ResetAfter = max(0, d.ResetAfter-gone)
	return d, true
}

// note remembers d, the answer to a check of cost, if it is a denial that stands for a while. It was
// asked at asked: what has passed since is time that the denial may not stand any more.
func (m *denials) note(key counterKey, cost int64, d *Decision, asked time.Time) {
	if m == nil || d.Allowed || d.deniedFor <= 0 {
		return
	}
	m.byKey.Add(key, &denial{*d, cost, asked})
}

// forget drops what is known of a counter that was given something back, or was reset.
func (m *denials) forget(key counterKey) {
	if m != nil {
		m.byKey.Remove(key)
	}
}
