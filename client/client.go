// Package client asks a sluice cluster from Go.
//
// A Client keeps one stream to each node that it asks. Concurrent calls travel together: a check
// is sent at once while few frames are unanswered, and gathers with others while they are.
// Answers name the node that holds the key, and the Client asks that node next time, so most
// checks are decided where they arrive. A denial is answered from memory for as long as the node
// says that it stands, 100 ms at most.
//
// What happens when no node answers in time is the caller's choice, see FailurePolicy, and every
// Decision says in Source who decided it. An error means that the call was wrong, that its
// context ended, or that the Client is closed.
//
// A Client is safe for concurrent use and owns its goroutines: Close ends them and waits.
// The packages below this one bring limits to net/http, gRPC, listeners and streams of bytes, and
// what a Client does to Prometheus and OpenTelemetry.
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
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"golang.org/x/time/rate"
)

// Client asks one cluster. Make it with Dial and close it with Close.
type Client struct {
	opts  options
	seeds []*node // the addresses of the target
	fleet atomic.Pointer[fleet]
	turn  atomic.Uint64
	// owners remembers who decides which counter.
	owners  *lru.Cache[counterKey, owner]
	denials *denials
	// locals are the limiters that stand in for nodes, nil unless the policy is FailLocal.
	locals *lru.Cache[counterKey, *rate.Limiter]
	stats  counters
	// repeats bounds those of checks that busy nodes have turned away.
	repeats budget
	reach   reach
	wake    chan struct{} // asks for the members soon
	// reporter is what it is called where it reports loads.
	reporter string
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

// Dial returns a Client of the cluster at target: "host:port" of a node's gRPC port or of a
// service in front of them all, any target that gRPC can resolve ("dns:///sluice:7460"), or several
// separated by commas. It waits until the cluster has named its members, at most until ctx ends or
// for a second: a cluster that is not there is no error here, but the FailurePolicy's to
// answer, until it is. One that does not take the client's credentials is: ErrCredentials.
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
	patience, enough := context.WithTimeout(ctx, dialPatience)
	defer enough()
	first := make(chan struct{})
	c.spawn(func() {
		c.refresh()
		close(first)
		c.follow()
	})
	c.spawn(c.watch)
	select {
	case <-first:
		c.settle(patience)
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
	return slices.ContainsFunc(c.everyone(), func(n *node) bool { return n.current.Load() != nil })
}

// dialPatience is how long Dial waits for the cluster.
const dialPatience = time.Second

// Close ends what is under way with ErrClosed, and waits until nothing of the Client runs.
func (c *Client) Close() error {
	c.life.Lock()
	c.life.closed = true
	c.life.Unlock()
	c.closed.Store(true)
	c.cancel()
	c.closeNodes()
	c.reach.note(false)
	c.life.group.Wait()
	c.closeNodes() // of members that were being learnt
	return nil
}

func (c *Client) closeNodes() {
	for _, n := range c.everyone() {
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
	d, err := c.ask(ctx, &Check{Domain: domain, Descriptor: descriptor}, sluicev1.Verb_VERB_CHECK)
	return d.Allowed, err
}

// Check spends the cost if every limit admits it. A retry after an answer that was lost may spend it
// twice, and never admits it twice.
func (c *Client) Check(ctx context.Context, q Check) (Decision, error) {
	return c.ask(ctx, &q, sluicev1.Verb_VERB_CHECK)
}

// Read answers as Check would and spends nothing.
func (c *Client) Read(ctx context.Context, q Check) (Decision, error) {
	return c.ask(ctx, &q, sluicev1.Verb_VERB_READ)
}

// Charge spends the cost whatever the limits say, after the fact, and may leave a debt. It is not
// repeated once it may have been done: ErrUnavailable says that nobody knows.
func (c *Client) Charge(ctx context.Context, q Check) (Decision, error) {
	return c.ask(ctx, &q, sluicev1.Verb_VERB_CHARGE)
}

// Refund gives the cost back, never above full. Errors are as with Charge.
func (c *Client) Refund(ctx context.Context, q Check) (Decision, error) {
	return c.ask(ctx, &q, sluicev1.Verb_VERB_REFUND)
}

// ask asks about q, and observes.
func (c *Client) ask(ctx context.Context, q *Check, verb sluicev1.Verb) (d Decision, err error) {
	if c.opts.observer == nil {
		err = c.decide(ctx, q, verb, &d)
		c.stats.count(&d, err)
		return d, err
	}
	began := time.Now()
	err = c.decide(ctx, q, verb, &d)
	c.stats.count(&d, err)
	c.opts.observer.Decided(ctx, Event{
		Domain: q.Domain, Verb: verbs[verb], Cost: max(1, q.Cost), Decision: d, Err: err, Took: time.Since(began),
	})
	return d, err
}

// decide asks about q until somebody has decided, the time is up, or it is certain that nobody can.
func (c *Client) decide(ctx context.Context, q *Check, verb sluicev1.Verb, d *Decision) error {
	if c.closed.Load() {
		return ErrClosed
	}
	if fault := q.fault(); fault != nil {
		return fault
	}
	x := calls.Get().(*call)
	var fault *Error
	if x.body, fault = appendCounter(x.body[:0], q); fault != nil {
		calls.Put(x)
		return fault
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
		return c.again(ctx, q, verb, key, x, nil, errUnsent, d)
	}
	err := s.ask(ctx, x, known)
	if err == nil {
		*d = x.decision
		c.learn(key, s.node, known, d)
		if verb == sluicev1.Verb_VERB_CHECK {
			c.denials.note(key, cost, d, x.asked)
		}
		x.release()
		return nil
	}
	return c.again(ctx, q, verb, key, x, s.node, err, d)
}

// ask asks the node. If the error is not that of ctx, x was answered, or not taken.
func (s *stream) ask(ctx context.Context, x *call, known bool) error {
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
	return faultOf(x.fault)
}

// faultOf returns why a check that was answered has no decision, or nil.
func faultOf(f *sluicev1.Error) error {
	switch f.GetCode() {
	case sluicev1.ErrorCode_ERROR_CODE_UNSPECIFIED:
		return nil
	case sluicev1.ErrorCode_ERROR_CODE_OVERLOADED:
		return errBusy
	case sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE:
		return fmt.Errorf("%w: %s", errNoOwner, f.GetMessage())
	}
	_, field, found := strings.Cut(f.GetField(), "].") // checks[3].descriptor: its place in the frame says nothing
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

// again goes on after an attempt at n that ended with err, and with the failure policy when the time is up.
func (c *Client) again(ctx context.Context, q *Check, verb sluicev1.Verb, key counterKey, x *call, n *node, err error, d *Decision) error {
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
		if wait > 0 && !sleep(ctx, c.jitter(wait)) {
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
		// Whoever still knows the old call may answer it, so this is another.
		x = &call{body: body, done: make(chan struct{}, 1)}
		if err = s.ask(ctx, x, known); err == nil {
			*d = x.decision
			c.learn(key, n, known, d)
			if verb == sluicev1.Verb_VERB_CHECK {
				c.denials.note(key, max(1, q.Cost), d, x.asked)
			}
			return nil
		}
	}
	if verb != sluicev1.Verb_VERB_CHECK && verb != sluicev1.Verb_VERB_READ {
		return fmt.Errorf("%w within %v; it was not done", ErrUnavailable, c.opts.timeout)
	}
	*d = c.standIn(key, max(1, q.Cost), verb == sluicev1.Verb_VERB_READ)
	return nil
}

// final returns what to answer after an attempt that ended with err: nil is to go on, errUnsent that the
// time is up.
func (c *Client) final(ctx context.Context, verb sluicev1.Verb, err error) error {
	if c.closed.Load() {
		return ErrClosed
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	repeatable := verb == sluicev1.Verb_VERB_CHECK || verb == sluicev1.Verb_VERB_READ
	if !repeatable && !errors.Is(err, errUnsent) && !errors.Is(err, errBusy) {
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

// sleep waits for d, and reports false when ctx ended before.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// verbs are their names.
var verbs = map[sluicev1.Verb]string{
	sluicev1.Verb_VERB_CHECK: "check", sluicev1.Verb_VERB_READ: "read",
	sluicev1.Verb_VERB_CHARGE: "charge", sluicev1.Verb_VERB_REFUND: "refund",
}
