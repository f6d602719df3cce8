package sluice

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// Outcomes of a call on a stream, used inside the package.
var (
	// errUnsent: the check was certainly not decided.
	errUnsent = errors.New("not sent")
	// errAmbiguous and errGaveUp (the time is up): the check was sent without an answer; it may have been charged.
	errAmbiguous = errors.New("the check was sent, and the connection ended before the answer")
	errGaveUp    = errors.New("the check was sent, and not answered in time")
	// errSilent: as errGaveUp, and there is time to ask another node.
	errSilent = errors.New("the check was sent, and the node has answered nothing for half of the time")
	// errBusy: a full queue; nothing was charged.
	errBusy = errors.New("the node is overloaded")
)

// Waits between attempts, doubling. The first goes to another node at once.
const (
	firstWait = 5 * time.Millisecond
	lastWait  = 200 * time.Millisecond
)

// request is one or more calls that are sent together: as checks among others, or with fields as a request of their own.
type request struct {
	calls  []*call
	fields []byte // other fields of a sluice.v1.CheckRequest
	repeat bool   // it may be sent again after a lost answer
	node   *node  // the node that was asked last
	known  bool   // it was asked as the owner
	last   error  // how the last attempt ended, if one was made
}

// retry goes on after an attempt to send x to n that ended with err, and applies the failure policy when the time is up.
func (c *Client) retry(ctx context.Context, q *Check, x *call, n *node, err error, d *Decision) error {
	r := &request{calls: []*call{x}, repeat: repeatable(q)}
	if q.IdempotencyKey != "" {
		r.fields = idempotent(q.IdempotencyKey)
	}
	switch err = c.exchange(ctx, r, n, err); {
	case err == nil:
		c.take(r.calls[0], q, r.node, r.known, d)
		return nil
	case err != errUnsent:
		return err
	}
	cause := c.unavailable(r.last)
	if q.Verb == limit.VerbCheck || q.Verb == limit.VerbRead {
		*d = c.standIn(ctx, q, x.key, q.Verb == limit.VerbRead, cause)
		return nil
	}
	if r.repeat && r.last != nil {
		return fmt.Errorf("%w; it may have been done, and may be repeated", cause)
	}
	return fmt.Errorf("%w; it was not done", cause)
}

// repeatable reports whether q may be sent again after a lost answer.
func repeatable(q *Check) bool {
	return q.Verb == limit.VerbCheck || q.Verb == limit.VerbRead || q.Verb == limit.VerbReset || q.IdempotencyKey != ""
}

// exchange sends r to one node after another until one has answered; n is the node of an attempt before that ended with err.
// The error is errUnsent when the time is up, and only the failure policy can answer.
func (c *Client) exchange(ctx context.Context, r *request, n *node, err error) error {
	began := time.Now()
	if x := r.calls[0]; err != errGaveUp && err != errSilent && !x.asked.IsZero() {
		began = x.asked
	}
	until := began.Add(time.Duration(c.patience.Load()))
	if deadline, ok := ctx.Deadline(); ok {
		if soon := deadline.Add(-early(time.Until(deadline))); soon.Before(until) {
			until = soon
		}
	}
	ctx, cancel := context.WithDeadlineCause(ctx, until, errUnsent)
	defer cancel()
	for wait := time.Duration(0); ; wait = max(firstWait, min(2*wait, lastWait)) {
		if err != errUnsent {
			r.last = err
		}
		if err == errGaveUp && r.repeat && !errors.Is(ctx.Err(), context.Canceled) {
			return errUnsent
		}
		if final := c.final(ctx, r, err); final != nil {
			return final
		}
		if errors.Is(err, errBusy) && !c.repeats.take(time.Now(), c.stats.answered()) {
			return errUnsent
		}
		if !pause.For(ctx, c.jitter(wait)) {
			err = errUnsent
			continue
		}
		s, known, found := c.find(ctx, r.calls[0].key, n)
		if found != nil {
			return found
		}
		if n != nil {
			c.stats.retries.Add(1)
		}
		n, r.node, r.known = s.node, s.node, known
		// The old stream may still answer the old calls.
		for i, x := range r.calls {
			r.calls[i] = &call{body: x.body, key: x.key, wait: c.hurry(ctx), done: make(chan struct{}, 1)}
		}
		if err = c.attempt(ctx, s, r); err == nil {
			return nil
		}
	}
}

// attempt sends r once and waits for the decisions.
func (c *Client) attempt(ctx context.Context, s *stream, r *request) error {
	submit := s.submitOwn
	if r.fields == nil {
		submit = func(r *request) error { return s.submit(r.calls[0], r.known) }
	}
	if err := submit(r); err != nil {
		return err
	}
	var failed error
	for i, x := range r.calls {
		select {
		case <-x.done:
		case <-ctx.Done():
			return errGaveUp
		}
		err := x.outcome()
		if err == errAmbiguous || err == errUnsent {
			return err
		}
		if err != nil && failed == nil {
			if failed = err; len(r.calls) > 1 {
				failed = within(err, i)
			}
		}
	}
	return failed
}

// final returns the error of a request after an attempt that ended with err: nil means to retry, errUnsent that the time is
// up.
func (c *Client) final(ctx context.Context, r *request, err error) error {
	if c.closed.Load() {
		return ErrClosed
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	if !r.repeat && !errors.Is(err, errUnsent) && !errors.Is(err, errBusy) {
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

// errorOf returns a node's error about a check, or nil.
func errorOf(f *sluicev1.Error) error {
	switch f.GetCode() {
	case sluicev1.ErrorCode_ERROR_CODE_UNSPECIFIED:
		if f == nil {
			return nil
		}
	case sluicev1.ErrorCode_ERROR_CODE_OVERLOADED:
		return errBusy
	case sluicev1.ErrorCode_ERROR_CODE_UNAVAILABLE:
		return fmt.Errorf("%w: %s", ErrNoOwner, f.GetMessage())
	}
	_, field, found := strings.Cut(f.GetField(), "].") // checks[3].descriptor: without the index in the frame
	if !found || !strings.HasPrefix(f.GetField(), "checks[") {
		field = f.GetField()
	}
	return &Error{Code: codeOf(f.GetCode()), Field: field, Message: f.GetMessage()}
}

// codeOf returns the Code of c, which has the same number.
func codeOf(c sluicev1.ErrorCode) limit.Code {
	if c < 0 || c > sluicev1.ErrorCode_ERROR_CODE_UNSUPPORTED {
		return limit.CodeUnknown
	}
	return limit.Code(c) // #nosec G115 -- in range
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
