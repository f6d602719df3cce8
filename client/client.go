// Package client sends checks to a sluice cluster from Go.
//
// A Client keeps one stream to each node and packs concurrent checks into frames. Decisions name the owner of
// the key, and the Client sends the next check of the key there. A denial is answered from memory for as long as
// the node says that it stands, 100 ms at most.
//
// A FailurePolicy decides when no node answers in time; Decision.Source names what decided. An error means that the
// call was invalid, that its context ended, or that the Client is closed.
//
// A Client is safe for concurrent use and owns its goroutines: Close ends them and waits.
// The packages below this one apply limits to net/http, gRPC, listeners and streams of bytes, and export metrics of
// a Client to Prometheus and OpenTelemetry.
package client

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
	"github.com/sluice-project/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"golang.org/x/time/rate"
)

// Client asks one cluster. Make it with Dial and close it with Close.
type Client struct {
	opts  options
	seeds []*node // the addresses of the target
	fleet atomic.Pointer[fleet]
	turn  atomic.Uint64 // counts choices of a node, for round robin
	// owners caches the owners of counters.
	owners  *lru.Cache[counterKey, owner]
	denials *denials
	// locals are the limiters of FailLocal, nil with other policies.
	locals *lru.Cache[counterKey, *rate.Limiter]
	stats  counters
	// repeats bounds retries of checks that overloaded nodes have rejected.
	repeats  budget
	reach    reach
	wake     chan struct{} // asks for the members soon
	reporter string        // its name in load reports
	closed   atomic.Bool
	// rejection is the last ErrCredentials.
	rejection atomic.Pointer[error]

	ctx    context.Context
	cancel context.CancelFunc
	life   struct {
		sync.Mutex
		closed bool
		group  sync.WaitGroup
	}
}

// Dial returns a Client of the cluster at target: "host:port" of a node's gRPC port or of a load balancer,
// any target that gRPC can resolve ("dns:///sluice:7460"), or several separated by commas. It waits for the cluster's
// members for a second, or until ctx ends. An unreachable cluster is no error: the FailurePolicy answers until a node
// is reached. ErrCredentials means that the nodes reject the client's credentials.
func Dial(ctx context.Context, target string, opts ...Option) (*Client, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	c := &Client{opts: o, wake: make(chan struct{}, 1), denials: newDenials(o.denyCache), reporter: strconv.FormatUint(rand.Uint64(), 36)} // #nosec G404 -- a name, no secret
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.fleet.Store(&fleet{})
	if c.owners, err = lru.New[counterKey, owner](o.owners); err != nil {
		return nil, err
	}
	if o.policy.local() {
		if c.locals, err = lru.New[counterKey, *rate.Limiter](o.owners); err != nil {
			return nil, err
		}
	}
	for _, addr := range strings.Split(target, ",") {
		if addr = strings.TrimSpace(addr); addr == "" {
			c.Close()
			return nil, fmt.Errorf("sluice: target %q: an address is empty", target)
		}
		n, err := c.newNode("", addr)
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("sluice: target %q: %w", addr, err)
		}
		c.seeds = append(c.seeds, n)
	}
	c.connect()
	patience, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	first := make(chan struct{})
	c.spawn(func() {
		c.refresh()
		close(first)
		c.follow()
	})
	c.spawn(c.watch)
	select {
	case <-first:
		c.awaitNodes(patience)
	case <-patience.Done():
	}
	if err := ctx.Err(); err != nil {
		c.Close()
		return nil, err
	}
	if rejection := c.rejection.Load(); rejection != nil && !c.reached() {
		c.Close()
		return nil, *rejection
	}
	return c, nil
}

// reached reports whether there is a stream to a node.
func (c *Client) reached() bool {
	return slices.ContainsFunc(c.allNodes(), func(n *node) bool { return n.current.Load() != nil })
}

// dialPatience is how long Dial waits for the cluster.
const dialPatience = time.Second

// Close ends calls in flight with ErrClosed, and waits for the Client's goroutines.
func (c *Client) Close() error {
	c.life.Lock()
	c.life.closed = true
	c.life.Unlock()
	c.closed.Store(true)
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

// Allow spends 1 of what descriptor has in domain, and reports whether it may.
func (c *Client) Allow(ctx context.Context, domain string, descriptor ...Entry) (bool, error) {
	d, err := c.do(ctx, &Check{Domain: domain, Descriptor: descriptor}, sluicev1.Verb_VERB_CHECK)
	return d.Allowed, err
}

// Check spends the cost if every limit admits it. A retry after an answer that was lost may spend it
// twice, and never admits it twice.
func (c *Client) Check(ctx context.Context, q Check) (Decision, error) {
	return c.do(ctx, &q, sluicev1.Verb_VERB_CHECK)
}

// Read answers as Check would and spends nothing.
func (c *Client) Read(ctx context.Context, q Check) (Decision, error) {
	return c.do(ctx, &q, sluicev1.Verb_VERB_READ)
}

// Charge spends the cost whatever the limits say, after the fact, and may leave a debt. It is not
// retried once it may have been done: then the error is ErrUnavailable.
func (c *Client) Charge(ctx context.Context, q Check) (Decision, error) {
	return c.do(ctx, &q, sluicev1.Verb_VERB_CHARGE)
}

// Refund gives the cost back, up to the full limit. Errors are as with Charge.
func (c *Client) Refund(ctx context.Context, q Check) (Decision, error) {
	return c.do(ctx, &q, sluicev1.Verb_VERB_REFUND)
}

// do decides q, counts the decision and tells the observer.
func (c *Client) do(ctx context.Context, q *Check, verb sluicev1.Verb) (d Decision, err error) {
	var began time.Time
	if c.opts.observer != nil {
		began = time.Now()
	}
	err = c.decide(ctx, q, verb, &d)
	c.stats.count(&d, err)
	if c.opts.observer != nil {
		c.observe(ctx, began, Event{Domain: q.Domain, Verb: verbs[verb], Cost: max(1, q.Cost), Decision: d, Err: err})
	}
	return d, err
}

// decide sends q until a node or the failure policy has decided.
func (c *Client) decide(ctx context.Context, q *Check, verb sluicev1.Verb, d *Decision) error {
	if c.closed.Load() {
		return ErrClosed
	}
	if invalid := q.validate(); invalid != nil {
		return invalid
	}
	x := calls.Get().(*call)
	var invalid *Error
	if x.body, invalid = appendCounter(x.body[:0], q); invalid != nil {
		calls.Put(x)
		return invalid
	}
	key, cost := keyOf(x.body), max(1, q.Cost)
	switch verb {
	case sluicev1.Verb_VERB_CHECK:
		if remembered, ok := c.denials.get(key, cost, time.Now); ok {
			*d = remembered
			calls.Put(x)
			return nil
		}
	case sluicev1.Verb_VERB_CHARGE, sluicev1.Verb_VERB_REFUND:
		defer c.denials.forget(key)
	}
	x.body = appendSpending(x.body, cost, verb)
	s, known := c.pick(key, nil)
	if s == nil {
		return c.retry(ctx, q, verb, key, x, nil, errUnsent, d)
	}
	if err := s.roundTrip(ctx, x, known); err != nil {
		return c.retry(ctx, q, verb, key, x, s.node, err, d)
	}
	c.take(x, key, cost, verb, s.node, known, d)
	x.release()
	return nil
}

// take sets d to the decision of n on x, and remembers what it says of the owner and of later checks.
func (c *Client) take(x *call, key counterKey, cost int64, verb sluicev1.Verb, n *node, known bool, d *Decision) {
	*d = x.decision
	c.learn(key, n, known, d)
	if verb == sluicev1.Verb_VERB_CHECK {
		c.denials.note(key, cost, d, x.asked)
	}
}

// roundTrip sends x and waits for the decision. Unless the error is errGaveUp, the stream does not use x any more.
func (s *stream) roundTrip(ctx context.Context, x *call, known bool) error {
	if err := s.submit(x, known); err != nil {
		return err
	}
	if gone := ctx.Done(); gone == nil {
		<-x.done
	} else {
		select {
		case <-x.done:
		case <-gone:
			return errGaveUp
		}
	}
	if x.err != nil {
		return x.err
	}
	return errorOf(x.failure)
}

// errorOf returns a node's error about a check as an error of this package, or nil.
func errorOf(f *sluicev1.Error) error {
	switch f.GetCode() {
	case sluicev1.ErrorCode_ERROR_CODE_UNSPECIFIED:
		return nil
	case sluicev1.ErrorCode_ERROR_CODE_OVERLOADED:
		return errBusy
	case sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE:
		return fmt.Errorf("%w: %s", errNoOwner, f.GetMessage())
	}
	_, field, found := strings.Cut(f.GetField(), "].") // checks[3].descriptor: without the index in the frame
	if !found || !strings.HasPrefix(f.GetField(), "checks[") {
		field = f.GetField()
	}
	return invalid(field, f.GetMessage())
}

// Waits between attempts, doubling. The first goes to another node at once.
const (
	firstWait = 5 * time.Millisecond
	lastWait  = 200 * time.Millisecond
)

// retry goes on after an attempt at n that ended with err, and applies the failure policy when the time is up.
func (c *Client) retry(ctx context.Context, q *Check, verb sluicev1.Verb, key counterKey, x *call, n *node, err error, d *Decision) error {
	began := time.Now()
	if err != errGaveUp && !x.asked.IsZero() {
		began = x.asked
	}
	ctx, cancel := context.WithDeadlineCause(ctx, began.Add(c.opts.timeout), errUnsent)
	defer cancel()
	body := x.body
	for wait := time.Duration(0); ; wait = max(firstWait, min(2*wait, lastWait)) {
		if final := c.final(ctx, verb, err); final != nil {
			if final == errUnsent {
				break
			}
			return final
		}
		if errors.Is(err, errBusy) && !c.repeats.take(time.Now(), c.stats.answered()) {
			break
		}
		if !pause.For(ctx, c.jitter(wait)) {
			err = errUnsent
			continue
		}
		var s *stream
		var known bool
		if s, known, err = c.find(ctx, key, n); err != nil {
			if err == errUnsent {
				break
			}
			return err
		}
		if n != nil {
			c.stats.retries.Add(1)
		}
		n = s.node
		// The old stream may still answer the old call.
		x = &call{body: body, done: make(chan struct{}, 1)}
		if err = s.roundTrip(ctx, x, known); err == nil {
			c.take(x, key, max(1, q.Cost), verb, n, known, d)
			return nil
		}
	}
	if !retryable(verb) {
		return fmt.Errorf("%w within %v; it was not done", ErrUnavailable, c.opts.timeout)
	}
	*d = c.standIn(key, max(1, q.Cost), verb == sluicev1.Verb_VERB_READ)
	return nil
}

// retryable: doing verb twice admits nothing twice.
func retryable(verb sluicev1.Verb) bool {
	return verb == sluicev1.Verb_VERB_CHECK || verb == sluicev1.Verb_VERB_READ
}

// final returns the error of the call after an attempt that ended with err: nil means to retry, errUnsent that the
// time is up.
func (c *Client) final(ctx context.Context, verb sluicev1.Verb, err error) error {
	if c.closed.Load() {
		return ErrClosed
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if !retryable(verb) && !errors.Is(err, errUnsent) && !errors.Is(err, errBusy) {
		if err == errGaveUp && ended(ctx) != errUnsent {
			err = ctx.Err()
		}
		return fmt.Errorf("%w: %w; it may have been done", ErrUnavailable, err)
	}
	if ctx.Err() != nil {
		return ended(ctx)
	}
	return nil
}

// verbs are their names.
var verbs = map[sluicev1.Verb]string{
	sluicev1.Verb_VERB_CHECK: "check", sluicev1.Verb_VERB_READ: "read",
	sluicev1.Verb_VERB_CHARGE: "charge", sluicev1.Verb_VERB_REFUND: "refund",
}
