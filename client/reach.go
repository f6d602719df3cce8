package client

import (
	"context"
	"sync"
	"time"
)

// reach is whether there is anybody to ask, for those who wait until there is.
type reach struct {
	mu struct {
		sync.Mutex
		// changed is closed when a node has been reached, or an attempt has failed.
		changed chan struct{}
		// missedAt is when somebody first found nobody to ask; zero since a node was reached.
		missedAt time.Time
	}
}

// next returns a channel that is closed when things change.
func (r *reach) next() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.changed == nil {
		r.mu.changed = make(chan struct{})
	}
	return r.mu.changed
}

// note tells those who wait that a node was reached, or was not.
func (r *reach) note(reached bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if reached {
		r.mu.missedAt = time.Time{}
	}
	if r.mu.changed != nil {
		close(r.mu.changed)
		r.mu.changed = nil
	}
}

// missed notes that there is nobody to ask now, and returns for how long that has been so.
func (r *reach) missed(now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.mu.missedAt.IsZero() {
		r.mu.missedAt = now
	}
	return now.Sub(r.mu.missedAt)
}

// find returns a stream to a node that may be asked, as pick does, and waits for one if there is none. The error
// is errUnsent when the time is up, ErrClosed, or that of ctx. While nobody has been reached for as long as a
// call may take, nobody waits: whoever found that out has waited for all.
func (c *Client) find(ctx context.Context, key counterKey, avoid *node) (s *stream, known bool, err error) {
	for {
		changed := c.reach.next()
		if s, known = c.pick(key, avoid); s != nil {
			return s, known, nil
		}
		if c.closed.Load() {
			return nil, false, ErrClosed
		}
		if c.reach.missed(time.Now()) >= c.opts.timeout {
			return nil, false, errUnsent
		}
		t := time.NewTimer(c.jitter(firstPause)) // a node that was left alone may be tried again
		select {
		case <-changed:
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return nil, false, ended(ctx)
		}
		t.Stop()
	}
}

// ended is why a call ends whose context has: errUnsent when its time is up, else what the caller's
// context says.
func ended(ctx context.Context) error {
	if context.Cause(ctx) == errUnsent {
		return errUnsent
	}
	return ctx.Err()
}

// settle waits until all nodes that are to be asked were tried: what is asked then goes where it should.
// Once one was reached, the others have a moment left.
func (c *Client) settle(ctx context.Context) {
	var moment <-chan time.Time
	for {
		changed := c.reach.next()
		nodes := c.fleet.Load().nodes
		if len(nodes) == 0 {
			nodes = c.seeds
		}
		tried, reached := true, false
		for _, n := range nodes {
			tried = tried && n.tried()
		}
		for _, n := range c.everyone() {
			reached = reached || n.current.Load() != nil
		}
		if tried {
			return
		}
		if reached && moment == nil {
			t := time.NewTimer(settleMoment)
			defer t.Stop()
			moment = t.C
		}
		select {
		case <-changed:
		case <-moment:
			return
		case <-ctx.Done():
			return
		}
	}
}

// settleMoment is how long Dial waits for the other nodes once it has reached one.
const settleMoment = 100 * time.Millisecond
