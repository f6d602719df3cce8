package peer

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/check"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
)

// Attempts to connect: the first after a loss is made at once, on the next call;
// those after a failed one wait, twice as long each time. Calls in between fail.
const (
	firstBackoff = 10 * time.Millisecond
	lastBackoff  = time.Second
)

// link is the way of one kind of records to one address: a queue, and a session
// while there is one.
type link struct {
	pool *Pool
	addr string
	// trips is how many round trips an answer takes: one, and another one where it waits for a replica.
	trips time.Duration

	mu struct {
		sync.Mutex
		// closed is why, once it is.
		closed  error
		dialing bool
		session *session
		waiting queue

		// failures counts attempts since the last connection; lastErr is the
		// latest one's, and retryAt when the next may begin.
		failures int
		lastErr  error
		retryAt  time.Time
	}
}

// call is Pool.Call for records of a frame, which have so many limits.
func (l *link) call(ctx context.Context, records []check.Record, limits int, replies []check.Reply) error {
	if err := ctx.Err(); err != nil {
		return l.gaveUp(check.ErrUnsent, err)
	}
	c := l.pool.newCall(records, limits, replies)
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
		lead = s.leadLocked(true)
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
		return l.unsent(l.mu.closed)
	case l.mu.session == nil && !l.mu.dialing && l.mu.failures > 0 && time.Now().Before(l.mu.retryAt):
		return l.mu.lastErr
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
	stalled := s != nil && s.stalledLocked(time.Now())
	l.mu.Unlock()
	if stalled {
		s.lose(fmt.Errorf("no answer for %v", l.pool.stallAfter(l.addr)))
	}
	if waited {
		l.pool.stats.abandoned.Add(1)
		return l.gaveUp(check.ErrUnsent, cause)
	}
	inTime, sent := c.abandon()
	if !inTime {
		err := <-c.done
		l.pool.release(c)
		return err
	}
	l.pool.stats.abandoned.Add(1)
	if !sent {
		return l.gaveUp(check.ErrUnsent, cause)
	}
	return l.gaveUp(check.ErrAmbiguous, cause)
}

// connect makes a session for the calls that wait, and then receives for it until
// it is lost. It is a goroutine of the pool.
func (l *link) connect() {
	s, err := l.open()
	l.mu.Lock()
	l.mu.dialing = false
	if l.mu.closed != nil {
		err = l.mu.closed
	}
	if err != nil {
		l.failedLocked(err)
		unsent := l.mu.lastErr
		calls := l.mu.waiting.take(nil, math.MaxInt, math.MaxInt)
		first := l.mu.failures == 1
		l.mu.Unlock()
		if s != nil {
			s.close()
		}
		l.pool.stats.failed.Add(1)
		if first && !errors.Is(err, context.Canceled) {
			l.pool.warn("peer cannot be reached", l.addr, "error", err)
		}
		for _, c := range calls {
			c.finish(unsent, nil)
		}
		return
	}
	l.mu.session, l.mu.failures, l.mu.lastErr = s, 0, nil
	l.mu.Unlock()
	l.pool.stats.dialled.Add(1)
	l.pool.wg.Go(s.pump)
	s.nudge()
	s.receive()
}

// open makes a session.
func (l *link) open() (*session, error) {
	stream, c, err := dial(l.pool.ctx, l.pool, l.addr, peerv1.PeerServiceClient.Exchange)
	if err != nil {
		return nil, err
	}
	s := &session{connection: c, link: l, stream: stream, wake: make(chan struct{}, 1), limits: numbering{most: l.pool.cfg.MaxLimits}}
	s.next = time.AfterFunc(time.Hour, s.nudge)
	return s, nil
}

// failedLocked notes a failed attempt to connect.
func (l *link) failedLocked(err error) {
	wait := lastBackoff
	if l.mu.failures < 7 { // 10 ms · 2⁷ is past the last
		wait = min(wait, firstBackoff<<l.mu.failures)
	}
	l.mu.failures++
	l.mu.retryAt = time.Now().Add(wait)
	l.mu.lastErr = l.unsent(err)
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
		calls = l.mu.waiting.take(nil, math.MaxInt, math.MaxInt)
	}
	l.mu.Unlock()
	if s != nil {
		s.lose(why)
	}
	for _, c := range calls {
		c.finish(l.unsent(why), nil)
	}
}

func (l *link) unsent(cause error) error {
	return fmt.Errorf("peer %s: %w: %w", l.addr, check.ErrUnsent, cause)
}

func (l *link) ambiguous(cause error) error {
	return fmt.Errorf("peer %s: %w: %w", l.addr, check.ErrAmbiguous, cause)
}

func (l *link) gaveUp(what, cause error) error {
	return fmt.Errorf("peer %s: %w: %w", l.addr, what, cause)
}
