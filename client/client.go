// Package sluice asks a sluice cluster from Go.
//
//	c, err := sluice.New("sluice.default.svc:7460")
//	key := c.Key("auth", "auth_type", "login", "user", id)
//	ok, err := key.Allow(ctx)
//
// A Client keeps one stream to each node and packs concurrent checks into requests. Decisions name the owner of the key,
// and the Client sends the next check of the key there. A denial is answered from memory for as long as the node says
// that it stands, 100 ms at most.
//
// When no node answers in time, a FailurePolicy decides, Decision.Degraded says why, and the client logs when that begins
// and ends. An error means that the check is wrong or not permitted, that its context was cancelled, or that the Client is
// closed; of a charge, a refund or a reset also that no node answered. Without an answer nothing is allowed: the results beside an
// error are zero, and the Context of a Slot has ended.
//
// Calls that answer a question say in a field whether it is allowed. Calls that take units to hold return an error if they hold none:
//
//	call                      denied                 unmatched     no node answers
//	Key.Allow, Check, Read    not allowed            allowed       FailurePolicy
//	Key.Wait                  ErrDenied              allowed       FailurePolicy
//	Key.Charge, Refund        allowed                allowed       ErrUnavailable
//	Client.CheckAll           not allowed            allowed       FailurePolicy
//	Client.CheckEach          not allowed            allowed       FailurePolicy
//	Client.Reserve            *DeniedError           allowed       ErrUnavailable
//	Client.Hold               *DeniedError           ErrRejected   ErrUnavailable
//	Client.Acquire            *DeniedError           allowed       ErrUnavailable
//	Client.InFlight           not allowed            allowed       FailurePolicy
//	Reservation.Spend         not allowed            allowed       ErrUnavailable
//	Reservation.Extend        not allowed            allowed       ErrUnavailable
//	Reservation.Settle        allowed                Unlimited     ErrUnavailable
//	httplimit.Middleware      429                    allowed       FailurePolicy
//	httplimit.NewTransport    ErrDenied              allowed       FailurePolicy
//	grpclimit.UnaryServer     ResourceExhausted      allowed       FailurePolicy
//	netlimit.NewListener      closed                 allowed       FailurePolicy
//
// FailurePolicy is what is decided instead: by default allowed, unless the rule has on_failure: closed. Unmatched means that no rule
// matches, or one without limits; the Client logs the former once, and a rule file may deny it. A local.Limiter always answers.
//
// Package limit has the types, without gRPC, package local a limiter in one process from the same rules, and sluicetest one
// for tests. The packages httplimit, grpclimit and netlimit apply limits to servers and clients, and prom and otel export
// metrics.
package sluice

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"
	"golang.org/x/time/rate"

	"github.com/sluicecluster/sluice/client/internal/config"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/lease"
)

// Client asks one cluster. Make it with New and close it with Close. It is safe for concurrent use, and owns its goroutines.
type Client struct {
	opts   config.Options
	target string
	seeds  []*node // the addresses of the target
	fleet  atomic.Pointer[fleet]
	turn   atomic.Uint64 // counts choices of a node, for round robin
	// owners caches the owners of counters.
	owners  *lru.Cache[counterKey, owner]
	denials *denials
	leases  leases
	// local is set once a FailLocal is used; then owners has limits, and locals its limiters.
	local  atomic.Bool
	locals *lru.Cache[counterKey, *rate.Limiter]
	rules  shapes
	outage outage
	stats  counters
	// repeats bounds retries of checks that overloaded nodes have rejected.
	repeats budget
	calls   callPool
	reach   reach
	// patience is the time of a call in nanoseconds.
	patience atomic.Int64
	// checkTimeout is that of the nodes in nanoseconds, once they have told.
	checkTimeout atomic.Int64
	asked        chan struct{} // closed when the nodes were asked for once
	wake         chan struct{} // asks for the nodes soon
	reporter     string        // its name in load reports
	closed       atomic.Bool
	// cause is why the last node could not be reached.
	cause atomic.Pointer[error]

	slots sessions

	ctx    context.Context
	cancel context.CancelFunc
	life   struct {
		sync.Mutex
		closed bool
		group  sync.WaitGroup
	}
}

// New returns a Client of the cluster at target: "host:port" of a node's gRPC port or of a load balancer, any target that
// gRPC can resolve ("dns:///sluice:7460"), or several separated by commas. It connects in the background: Ready waits for a
// node, and without one the FailurePolicy answers. The error is about the target or an option.
func New(target string, opts ...Option) (*Client, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	c := &Client{
		opts: o, target: target, denials: newDenials(o.DenyCache), asked: make(chan struct{}), wake: make(chan struct{}, 1),
		reporter: strconv.FormatUint(rand.Uint64(), 36), // #nosec G404 -- a name, no secret
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.leases.mu.lines, c.leases.stop = map[counterKey]*line{}, make(chan struct{})
	c.fleet.Store(&fleet{})
	c.patience.Store(int64(o.Timeout))
	if o.Timeout == 0 {
		c.patience.Store(int64(firstTimeout))
	}
	c.owners, _ = lru.New[counterKey, owner](o.Routes) // the error is about Routes, which the options have checked
	c.locals, _ = lru.New[counterKey, *rate.Limiter](o.Routes)
	c.rules.known, _ = lru.New[uint64, shape](maxShapes)
	for addr := range strings.SplitSeq(target, ",") {
		if addr = strings.TrimSpace(addr); addr == "" {
			c.Close()
			return nil, fmt.Errorf("sluice: target %q: an address is empty; want host:port of a node's gRPC port", target)
		}
		n, err := c.newNode("", addr)
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("sluice: target %q: %w", addr, err)
		}
		c.seeds = append(c.seeds, n)
	}
	c.connect()
	c.spawn(func() {
		c.refresh()
		close(c.asked)
		c.follow()
	})
	c.spawn(c.watch)
	return c, nil
}

// Ready waits until a node answers, and a tenth of a second at most for the others, so that the first checks go to the
// owners of their keys. When ctx ends before, the error says why no node answered; when nodes reject the client's
// credentials, it is ErrUnauthenticated at once.
func (c *Client) Ready(ctx context.Context) error {
	for {
		changed := c.reach.next()
		switch {
		case c.closed.Load():
			return ErrClosed
		case c.reached():
			select {
			case <-c.asked:
			case <-ctx.Done():
			}
			c.awaitNodes(ctx)
			return nil
		}
		if cause := c.cause.Load(); cause != nil && isRejection(*cause) {
			return *cause
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if cause := c.cause.Load(); cause != nil {
				return fmt.Errorf("%w at %s: %w", ErrUnavailable, c.target, *cause)
			}
			return fmt.Errorf("%w at %s: %w", ErrUnavailable, c.target, ctx.Err())
		}
	}
}

// reached reports whether there is a stream to a node.
func (c *Client) reached() bool {
	return slices.ContainsFunc(c.allNodes(), func(n *node) bool { return n.current.Load() != nil })
}

// Close ends calls in flight with ErrClosed, and waits for the Client's goroutines. It may be called again.
func (c *Client) Close() error {
	if !c.closed.Swap(true) {
		c.endLeases()
	}
	c.life.Lock()
	c.life.closed = true
	c.life.Unlock()
	c.cancel()
	c.closeNodes()
	c.reach.note(false)
	c.life.group.Wait()
	c.closeNodes() // of members that were being added
	return nil
}

func (c *Client) closeNodes() {
	for _, n := range c.allNodes() {
		n.close()
	}
}

// spawn runs f in a goroutine that Close waits for, unless the Client is closed.
func (c *Client) spawn(f func()) bool {
	c.life.Lock()
	defer c.life.Unlock()
	if c.life.closed {
		return false
	}
	c.life.group.Go(f)
	return true
}

// jitter returns d, a tenth more or less.
func (c *Client) jitter(d time.Duration) time.Duration {
	return d + time.Duration((rand.Float64()-0.5)*0.2*float64(d)) // #nosec G404 -- a pause
}

// Key returns the Key of a domain and a descriptor, given as keys and values in turns. Making one costs little: a Key for
// each request is fine.
func (c *Client) Key(domain string, descriptor ...string) Key {
	k := limit.NewKey(c, domain, descriptor...)
	if c == nil || c.opts.NoLeases || len(c.opts.Observers) > 0 {
		return k
	}
	return k.WithCell(new(lease.Cell))
}

// Check decides one check; the methods of Key are shorter.
func (c *Client) Check(ctx context.Context, q Check) (Decision, error) {
	var began time.Time
	if len(c.opts.Observers) > 0 {
		began = time.Now()
	}
	var d Decision
	err := c.decide(ctx, &q, &d)
	c.told(ctx, began, &q, &d, err)
	return d, err
}

// told counts a decision, or an error if err is not nil, and tells the observers.
func (c *Client) told(ctx context.Context, began time.Time, q *Check, d *Decision, err error) {
	c.stats.count(d, err)
	if len(c.opts.Observers) > 0 {
		e := Event{Domain: q.Domain, Verb: q.Verb, Amount: q.Amount, Err: err}
		if err == nil {
			e.Decision = *d
		}
		c.observe(ctx, began, e)
	}
}

// observe passes e, of a call that began at began, to the observers.
func (c *Client) observe(ctx context.Context, began time.Time, e Event) {
	e.Took = time.Since(began)
	for _, o := range c.opts.Observers {
		o.Decided(ctx, e)
	}
}

// usable returns ErrClosed for a Client that is closed, or not made by New.
func (c *Client) usable() error {
	if c == nil || c.owners == nil || c.closed.Load() {
		return ErrClosed
	}
	return nil
}

// prepare encodes q into x, and sets its counter's key.
func (c *Client) prepare(x *call, q *Check) error {
	if err := q.Validate(); err != nil {
		return err
	}
	if q.OnFailure.Kind == limit.SourceFailLocal || c.opts.Policy.Kind == limit.SourceFailLocal {
		c.local.Store(true)
	}
	var err error
	if x.body, err = appendCounter(x.body[:0], q); err != nil {
		return err
	}
	x.key = keyOf(x.body)
	x.body = appendSpending(x.body, q)
	return nil
}

// remembered sets d to a denial of q that still stands.
func (c *Client) remembered(key counterKey, q *Check, d *Decision) (ok bool) {
	if q.Verb == limit.VerbCheck {
		*d, ok = c.denials.get(key, q.Amount, time.Now)
	}
	return ok
}

// decide sends q until a node or a failure policy has decided.
func (c *Client) decide(ctx context.Context, q *Check, d *Decision) error {
	if err := c.usable(); err != nil {
		return err
	}
	if cell := q.Cell(); cell != nil && leasable(q) {
		if l := cell.Line.Load(); l != nil && spend(l, q.Amount, d) {
			return nil
		}
	}
	x := c.calls.get()
	if err := c.prepare(x, q); err != nil {
		c.calls.put(x)
		return err
	}
	if c.leased(ctx, x.key, q, d) || c.remembered(x.key, q, d) {
		c.calls.put(x)
		return nil
	}
	if err := ctx.Err(); err != nil { // a check that is sent now would be spent for nobody
		c.calls.put(x)
		return err
	}
	if q.Verb != limit.VerbCheck && q.Verb != limit.VerbRead {
		defer c.denials.forget(x.key)
	}
	if q.IdempotencyKey != "" {
		return c.retry(ctx, q, x, nil, errUnsent, d)
	}
	s, known := c.pick(x.key, nil)
	if s == nil {
		return c.retry(ctx, q, x, nil, errUnsent, d)
	}
	x.wait = c.hurry(ctx)
	err := s.submit(x, known)
	if err == nil {
		err = c.await(ctx, x, s.node, x.wait, repeatable(q))
	}
	if err != nil {
		return c.retry(ctx, q, x, s.node, err, d)
	}
	c.take(x, q, s.node, known, d)
	if d.Allowed {
		c.warm(x, q, d)
	} else {
		c.leased(ctx, x.key, q, d) // the units may be in a lease that was given meanwhile
	}
	c.calls.put(x)
	return nil
}

// hurry returns how long a call waits because of the deadline of ctx, 0 if that is not before the time of any call.
func (c *Client) hurry(ctx context.Context) time.Duration {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	left := time.Until(deadline)
	if left >= time.Duration(c.patience.Load()) {
		return 0
	}
	return max(1, left-early(left))
}

// await waits for the decision of n, for wait if that is not 0 or until ctx ends. A check that may be made again, repeat, waits for half
// of its time if n answers nothing meanwhile and there is another node. Unless the error is errGaveUp or errSilent, the stream does
// not use x any more.
func (c *Client) await(ctx context.Context, x *call, n *node, wait time.Duration, repeat bool) error {
	ended := ctx.Done()
	if ended == nil {
		<-x.done
		return x.outcome()
	}
	select { // an answer that is there goes before a time that is up
	case <-x.done:
		return x.outcome()
	default:
	}
	var late, half <-chan time.Time
	sent := time.Now()
	if wait > 0 {
		t := time.NewTimer(wait)
		defer t.Stop()
		late = t.C
		if repeat {
			h := time.NewTimer(wait / 2)
			defer h.Stop()
			half = h.C
		}
	}
	for {
		select {
		case <-x.done:
			return x.outcome()
		case <-half:
			if n.silentSince(sent) {
				n.avoid()
				if s, _ := c.pick(x.key, n); s != nil && s.node != n {
					return errSilent
				}
			}
			half = nil
			continue
		case <-ended:
		case <-late:
			if n.silentSince(sent) {
				n.avoid()
			}
		}
		return errGaveUp
	}
}

// early is how long before a deadline, that is left away, a failure policy answers, so that the caller can use its answer.
func early(left time.Duration) time.Duration { return min(10*time.Millisecond, max(left, 0)/10) }

// take sets d to the decision of n on x, and remembers what it says of the owner, of the rule and of later checks.
func (c *Client) take(x *call, q *Check, n *node, known bool, d *Decision) {
	*d = x.answer.Decision
	c.learn(x.key, n, known, d)
	c.rules.learn(q, d, x.answer.onFailure)
	c.outage.answered(c.log)
	if q.Verb == limit.VerbCheck {
		c.denials.note(x.key, q.Amount, d, x.answer.deniedFor, x.asked)
	}
	c.noteSource(q, d)
}

// noteSource sets d.Degraded, and logs that no rule matches q.
func (c *Client) noteSource(q *Check, d *Decision) {
	switch d.Source {
	case limit.SourceShare, limit.SourceClosed, limit.SourceOpen:
		d.Degraded = ErrNoOwner
	case limit.SourceUnmatched:
		if d.Rule == "" {
			c.rules.warn(q, d, c.log)
		}
	}
}

// CheckAll decides 1 to 10,000 checks as one: all are allowed, or nothing is spent. They may be of several domains, and are
// checks and reads. When no node answers, the FailurePolicy answers each, and if it denies one, none is allowed.
func (c *Client) CheckAll(ctx context.Context, checks ...Check) (Batch, error) {
	began := time.Now()
	decisions, err := c.checkAll(ctx, checks)
	if err != nil {
		// One event is about all of them.
		var all Check
		for i := range checks {
			all.Domain = checks[0].Domain
			all.Amount += checks[i].Amount
		}
		c.told(ctx, began, &all, nil, err)
		return Batch{}, err
	}
	for i := range decisions {
		c.told(ctx, began, &checks[i], &decisions[i], nil)
	}
	return limit.NewBatch(decisions), nil
}

func (c *Client) checkAll(ctx context.Context, checks []Check) ([]Decision, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	calls, err := c.callsOf(checks)
	if err != nil {
		return nil, err
	}
	for i := range checks {
		if v := checks[i].Verb; v != limit.VerbCheck && v != limit.VerbRead {
			return nil, limit.Invalid(fmt.Sprintf("checks[%d].verb", i), v.String()+"; want check or read, since nothing denies the others")
		}
	}
	r := &request{calls: calls, fields: allOrNothing(), repeat: true}
	decisions := make([]Decision, len(checks))
	switch err = c.exchange(ctx, r, nil, errUnsent); {
	case err == errUnsent:
		c.standInAll(ctx, checks, calls, decisions, c.unavailable(r.last))
	case err != nil:
		return nil, err
	default:
		for i, x := range r.calls {
			c.take(x, &checks[i], r.node, false, &decisions[i])
		}
	}
	return decisions, nil
}

// callsOf returns the calls of checks. The error names the check.
func (c *Client) callsOf(checks []Check) ([]*call, error) {
	if len(checks) == 0 || len(checks) > maxBatch {
		return nil, limit.Invalid("checks", fmt.Sprintf("%d; want 1 to %d", len(checks), maxBatch))
	}
	calls := make([]*call, len(checks))
	for i := range checks {
		calls[i] = newCall()
		if err := c.prepare(calls[i], &checks[i]); err != nil {
			return nil, within(err, i)
		}
	}
	return calls, nil
}

const maxBatch = 10_000

// within returns err as one about checks[i].
func within(err error, i int) error {
	if e, ok := err.(*Error); ok {
		e = &Error{Code: e.Code, Field: fmt.Sprintf("checks[%d].%s", i, e.Field), Message: e.Message}
		e.Field = strings.TrimSuffix(e.Field, ".")
		return e
	}
	return fmt.Errorf("checks[%d]: %w", i, err)
}

// CheckEach decides 1 to 10,000 checks, each by itself. The error joins those of the checks, whose decisions are zero.
func (c *Client) CheckEach(ctx context.Context, checks ...Check) ([]Decision, error) {
	if err := c.usable(); err != nil {
		return nil, err
	}
	began := time.Now()
	calls, err := c.callsOf(checks)
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		return nil, err
	}
	decisions, errs := make([]Decision, len(checks)), make([]error, len(checks))
	sent, known := make([]*stream, len(checks)), make([]bool, len(checks))
	for i, x := range calls {
		q := &checks[i]
		if c.remembered(x.key, q, &decisions[i]) {
			continue
		}
		errs[i] = errUnsent
		if q.IdempotencyKey != "" {
			continue
		}
		if sent[i], known[i] = c.pick(x.key, nil); sent[i] != nil {
			x.wait = c.hurry(ctx)
			errs[i] = sent[i].submit(x, known[i])
		}
	}
	for i, x := range calls {
		q, n := &checks[i], (*node)(nil)
		if sent[i] != nil {
			n = sent[i].node
		}
		if errs[i] == nil && n != nil {
			if errs[i] = c.await(ctx, x, n, c.hurry(ctx), repeatable(q)); errs[i] == nil {
				c.take(x, q, n, known[i], &decisions[i])
			}
		}
		if errs[i] != nil {
			if errs[i] = c.retry(ctx, q, x, n, errs[i], &decisions[i]); errs[i] != nil {
				errs[i] = within(errs[i], i)
			}
		}
		if q.Verb != limit.VerbCheck && q.Verb != limit.VerbRead {
			c.denials.forget(x.key)
		}
		c.told(ctx, began, q, &decisions[i], errs[i])
	}
	return decisions, errors.Join(errs...)
}
