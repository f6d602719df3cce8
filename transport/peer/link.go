package peer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	peerv1 "github.com/sluicecluster/sluice/proto/peer/v1"
)

// retry delays attempts to connect. The first one after a loss is made at once, on the next call; those after a failed one
// wait, twice as long each time, and calls in between fail.
type retry struct {
	failures int       // since the last connection
	err      error     // of the last attempt
	retryAt  time.Time // when the next one may begin
}

const (
	firstBackoff = 10 * time.Millisecond
	lastBackoff  = time.Second
)

// failed notes a failed attempt. longest, at most lastBackoff, bounds the wait.
func (b *retry) failed(err error, longest time.Duration) {
	wait := min(longest, firstBackoff<<min(b.failures, 7)) // 10 ms · 2⁷ is past lastBackoff
	*b = retry{failures: b.failures + 1, err: err, retryAt: time.Now().Add(wait)}
}

// waits reports whether the next attempt may not begin yet.
func (b *retry) waits() bool { return b.failures > 0 && time.Now().Before(b.retryAt) }

// signal makes a receive on c, which has room for one value, succeed once.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// link carries one kind of records to one address: a queue, and a session while there is one.
type link struct {
	pool *Pool
	addr string
	// trips is the number of round trips until an answer: one, or two where it waits for a replica.
	trips time.Duration

	mu struct {
		sync.Mutex
		// closed is why, once it is.
		closed  error
		dialing bool
		session *session
		waiting queue
		retry   retry
	}
}

// call is Pool.Call for the records of one frame. limits is their number of limits.
func (l *link) call(ctx context.Context, records []check.Record, limits int, replies []check.Reply) error {
	if err := ctx.Err(); err != nil {
		return l.failure(check.ErrUnsent, err)
	}
	c := l.pool.calls.Get().(*call)
	c.records, c.limits, c.replies = records, limits, replies
	l.mu.Lock()
	if err := l.rejectionLocked(len(records)); err != nil {
		l.mu.Unlock()
		l.pool.release(c)
		return err
	}
	l.mu.waiting.push(c)
	s := l.mu.session
	var lead bool
	switch {
	case s != nil:
		lead = s.maySendLocked(true)
	case !l.mu.dialing:
		l.mu.dialing = true
		l.pool.wg.Go(l.connect)
	}
	l.mu.Unlock()
	if lead {
		s.send()
	}
	select {
	case err := <-c.done:
		l.pool.release(c)
		return err
	case <-ctx.Done():
		return l.abandon(c, ctx.Err())
	}
}

// rejectionLocked reports why n more records cannot be queued, or nil.
func (l *link) rejectionLocked(n int) error {
	switch {
	case l.mu.closed != nil:
		return l.failure(check.ErrUnsent, l.mu.closed)
	case l.mu.session == nil && !l.mu.dialing && l.mu.retry.waits():
		return l.mu.retry.err
	case l.mu.waiting.records+n > l.pool.cfg.MaxQueue:
		l.pool.stats.overloaded.Add(1)
		return fmt.Errorf("peer %s: %w: %d records wait", l.addr, check.ErrOverloaded, l.mu.waiting.records)
	}
	return nil
}

// abandon leaves c, whose context ended with cause.
func (l *link) abandon(c *call, cause error) error {
	l.mu.Lock()
	waited := c.queued
	if waited {
		l.mu.waiting.remove(c)
	}
	s := l.mu.session
	limit := l.pool.stallAfter(l.addr)
	stalled := s != nil && len(s.inFlight) > 0 && time.Since(s.inFlight[0].sent) > limit
	l.mu.Unlock()
	if stalled {
		s.lose(fmt.Errorf("no answer for %v", limit))
	}
	if waited {
		l.pool.stats.abandoned.Add(1)
		return l.failure(check.ErrUnsent, cause)
	}
	inTime, sent := c.abandon()
	switch {
	case !inTime:
		err := <-c.done
		l.pool.release(c)
		return err
	case sent:
		l.pool.stats.abandoned.Add(1)
		return l.failure(check.ErrAmbiguous, cause)
	}
	l.pool.stats.abandoned.Add(1)
	return l.failure(check.ErrUnsent, cause)
}

// connect opens a session for the calls that wait, and receives for it until it is lost. It is a goroutine of the pool.
func (l *link) connect() {
	s, err := l.open()
	l.mu.Lock()
	l.mu.dialing = false
	if l.mu.closed != nil {
		err = l.mu.closed
	}
	if err != nil {
		unsent := l.failure(check.ErrUnsent, err)
		l.mu.retry.failed(unsent, lastBackoff)
		calls := l.mu.waiting.takeAll()
		first := l.mu.retry.failures == 1
		l.mu.Unlock()
		if s != nil {
			s.close()
		}
		l.pool.stats.failed.Add(1)
		if first && !errors.Is(err, context.Canceled) {
			l.pool.warn("peer cannot be reached", l.addr, "error", err)
		}
		finishAll(calls, unsent)
		return
	}
	l.mu.session, l.mu.retry = s, retry{}
	l.mu.Unlock()
	l.pool.stats.dialled.Add(1)
	l.pool.wg.Go(s.sendLoop)
	signal(s.wake)
	s.receive()
}

func (l *link) open() (*session, error) {
	stream, c, err := dial(l.pool.ctx, l.pool, l.addr, peerv1.PeerServiceClient.Exchange)
	if err != nil {
		return nil, err
	}
	s := &session{connection: c, link: l, stream: stream, wake: make(chan struct{}, 1), limits: numbering{maxLimits: l.pool.cfg.MaxLimits}}
	s.next = time.AfterFunc(time.Hour, func() { signal(s.wake) })
	return s, nil
}

// errSilent is why a link was hung up.
var errSilent = errors.New("the process is silent")

// hangUp ends the session, if there is one.
func (l *link) hangUp() {
	l.mu.Lock()
	s := l.mu.session
	l.mu.Unlock()
	if s != nil {
		s.lose(errSilent)
	}
}

// close ends the link for good.
func (l *link) close(why error) {
	l.mu.Lock()
	l.mu.closed = why
	s := l.mu.session
	// While an attempt to connect is under way, it fails the calls that wait.
	var calls []*call
	if s == nil && !l.mu.dialing {
		calls = l.mu.waiting.takeAll()
	}
	l.mu.Unlock()
	if s != nil {
		s.lose(why)
	}
	finishAll(calls, l.failure(check.ErrUnsent, why))
}

// failure returns the error of a call. kind is check.ErrUnsent or check.ErrAmbiguous.
func (l *link) failure(kind, cause error) error {
	return fmt.Errorf("peer %s: %w: %w", l.addr, kind, cause)
}
