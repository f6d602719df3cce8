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
	"github.com/sluice-project/sluice/internal/leaf/descvalue"
	"github.com/sluice-project/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// CheckAll spends the costs of all checks if every limit of every one admits them, else of none: then none
// is allowed, and RetryAfter of each is at least the time until all may be tried again. It takes 1 to 10,000
// checks. When no node answers, the FailurePolicy answers each, and if it denies one, none is allowed.
func (c *Client) CheckAll(ctx context.Context, checks []Check) ([]Decision, error) {
	began := time.Now()
	decisions, err := c.checkAll(ctx, checks)
	if err != nil {
		// One event is about all of them.
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

// observe passes e, of a call that began at began, to the observer, if any.
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
		p, key, invalid := checks[i].proto()
		if invalid != nil {
			invalid.Field = fmt.Sprintf("checks[%d].%s", i, invalid.Field)
			return nil, invalid
		}
		req.Checks = append(req.Checks, p)
		keys = append(keys, key)
	}
	decisions := make([]Decision, len(checks))
	n, err := c.unary(ctx, keys[0], sluicev1.RateLimitService_Check_FullMethodName, req, decisions)
	switch {
	case errors.Is(err, errUnsent):
		c.standInAll(checks, keys, decisions)
	case err != nil:
		return nil, err
	default:
		// What others have denied for good is never admitted either: its own decision does not say so.
		never := slices.ContainsFunc(decisions, func(d Decision) bool { return d.RetryAfter == Never })
		for i := range decisions {
			if never {
				decisions[i].RetryAfter = Never
			}
			c.learn(keys[i], n, false, &decisions[i])
		}
	}
	return decisions, nil
}

// standInAll applies the failure policy to an atomic batch: it reads first and spends only if all are allowed.
func (c *Client) standInAll(checks []Check, keys []counterKey, decisions []Decision) {
	all := true
	for _, reading := range []bool{true, false} {
		for i := range checks {
			decisions[i] = c.standIn(keys[i], max(1, checks[i].Cost), reading)
			all = all && decisions[i].Allowed
		}
		if !all {
			break
		}
	}
	if all {
		return
	}
	var wait time.Duration
	for i := range decisions {
		wait = max(wait, decisions[i].RetryAfter)
	}
	for i := range decisions {
		decisions[i].Allowed, decisions[i].RetryAfter = false, wait
	}
}

// Reset deletes the counters of descriptor in domain. It is idempotent, so it is retried; ErrUnavailable says that no
// node has confirmed it.
func (c *Client) Reset(ctx context.Context, domain string, descriptor ...Entry) error {
	began := time.Now()
	d, err := c.reset(ctx, &Check{Domain: domain, Descriptor: descriptor})
	if err != nil {
		c.stats.count(nil, err)
	}
	d.Allowed = err == nil
	c.observe(ctx, began, Event{Domain: domain, Verb: "reset", Decision: d, Err: err})
	return err
}

func (c *Client) reset(ctx context.Context, q *Check) (Decision, error) {
	var d [1]Decision
	p, key, invalid := q.proto()
	if invalid != nil {
		return d[0], invalid
	}
	p.Verb = sluicev1.Verb_VERB_RESET
	defer c.denials.forget(key)
	_, err := c.unary(ctx, key, sluicev1.RateLimitService_Check_FullMethodName, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{p}}, d[:])
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
	if invalid := c.validate(); invalid != nil {
		return nil, counterKey{}, invalid
	}
	b, invalid := appendCounter(nil, c)
	if invalid != nil {
		return nil, counterKey{}, invalid
	}
	p := &sluicev1.Check{Domain: c.Domain, Cost: proto.Int64(max(1, c.Cost))}
	for _, e := range c.Descriptor {
		p.Descriptor_ = append(p.Descriptor_, &sluicev1.Entry{Key: e.Key, Value: descvalue.Of(e.Value)})
	}
	for i := range c.Limits {
		p.Limits = append(p.Limits, c.Limits[i].proto())
	}
	return p, keyOf(b), nil
}

// unary calls one node after the other until one responds, reads its decisions, and returns the node. The error is that
// of inTurns.
func (c *Client) unary(ctx context.Context, key counterKey, method string, req proto.Message, into []Decision) (*node, error) {
	return c.inTurns(ctx, key, func(ctx context.Context, n *node) error { return c.invoke(ctx, n, method, req, into) })
}

// inTurns runs call for one node after the other until one succeeds, and returns that node. The error is errUnsent when
// the time is up, or the *Error of a call.
func (c *Client) inTurns(ctx context.Context, key counterKey, call func(context.Context, *node) error) (*node, error) {
	ctx, cancel := context.WithDeadlineCause(ctx, time.Now().Add(c.opts.timeout), errUnsent)
	defer cancel()
	var n *node
	for wait := time.Duration(0); ; wait = max(firstWait, min(2*wait, lastWait)) {
		if wait > firstWait {
			pause.For(ctx, c.jitter(wait))
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

// invoke makes one call. An *Error is not to be retried.
func (c *Client) invoke(ctx context.Context, n *node, method string, req proto.Message, into []Decision) error {
	var r reply
	// There is time for another node when this one hangs.
	try, cancel := context.WithTimeout(ctx, c.opts.timeout/2)
	defer cancel()
	if err := n.conn.Invoke(try, method, req, &r, grpc.ForceCodecV2(newCodec())); err != nil {
		return finalOf(err, codes.InvalidArgument)
	}
	_, decisions, _, err := readResponse(r.bytes, nil)
	if err != nil || len(decisions) != len(into) {
		return errMalformed
	}
	var names names
	var first error
	for i, b := range decisions {
		into[i] = Decision{}
		failure, err := readDecision(b, &into[i], &names)
		if err != nil {
			return err
		}
		if e := errorOf(failure); e != nil && first == nil {
			first = e
			if x, ok := e.(*Error); ok && len(into) > 1 {
				first = invalid(fmt.Sprintf("checks[%d].%s", i, x.Field), x.Message)
			}
		}
	}
	return first
}

// finalOf returns err as an *Error if it has one of the codes final, which every node would return, else as it is.
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

const (
	budgetPart   = 10  // one retry for so many decided checks
	budgetRate   = 10  // and so many a second, for clients of little load
	budgetMost   = 100 // at once
	budgetAtOnce = 10  // at the start
)

// budget bounds retries of checks that overloaded nodes have rejected, which would keep them overloaded. The zero budget
// has budgetAtOnce.
type budget struct {
	mu struct {
		sync.Mutex
		begun    bool
		left     float64
		at       time.Time
		answered uint64
	}
}

// take reports whether one more retry is in the budget. answered is the number of checks that nodes have decided until now.
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

// maxSpread is the longest random delay of Wait, so that waiters for one limit do not all retry at once.
const maxSpread = 100 * time.Millisecond

// Wait retries q until it is admitted, and then waits for the Delay of a leaky queue. It returns at once, with the
// decision, when the limit would admit q, or the Delay end, after the context's deadline (ErrWouldExceedDeadline) or never
// (ErrNever); other errors are the context's, or Check's. A check admitted to a queue stays charged, whatever the
// error: later checks have their Delay already.
func (c *Client) Wait(ctx context.Context, q Check) (Decision, error) {
	for {
		d, err := c.Check(ctx, q)
		switch {
		case err != nil:
			return d, err
		case d.Allowed:
			if d.Delay > 0 && tooLate(ctx, d.Delay) {
				return d, ErrWouldExceedDeadline
			}
			if d.Delay > 0 && !pause.For(ctx, d.Delay) {
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
		if !pause.For(ctx, wait+spread) {
			return d, ctx.Err()
		}
	}
}

// tooLate reports whether ctx ends before wait has passed.
func tooLate(ctx context.Context, wait time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < wait
}

// counterKey identifies a counter within this client: two hashes of its domain, descriptor and limits, with secret seeds.
type counterKey [2]uint64

var seeds = [2]maphash.Seed{maphash.MakeSeed(), maphash.MakeSeed()}

func keyOf(counter []byte) counterKey {
	return counterKey{maphash.Bytes(seeds[0], counter), maphash.Bytes(seeds[1], counter)}
}

// denial is a decision of a node and its valid time.
type denial struct {
	decision Decision
	cost     int64
	at       time.Time
}

// denials is the denial cache. A nil one is empty.
type denials struct {
	byKey *lru.Cache[counterKey, *denial]
}

func newDenials(entries int) *denials {
	if entries == 0 {
		return nil
	}
	byKey, _ := lru.New[counterKey, *denial](entries) // the error is about entries, which the options have checked
	return &denials{byKey}
}

// get returns the denial of a check of at least the denied cost, while it is valid, with its times as of now.
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

// note remembers d, the decision of a check of cost, if it is a denial that stands for a while, from asked on, when the
// check was sent.
func (m *denials) note(key counterKey, cost int64, d *Decision, asked time.Time) {
	if m == nil || d.Allowed || d.deniedFor <= 0 {
		return
	}
	m.byKey.Add(key, &denial{*d, cost, asked})
}

// forget removes the denial of a counter that was refunded, charged or reset.
func (m *denials) forget(key counterKey) {
	if m != nil {
		m.byKey.Remove(key)
	}
}
