package peer

import (
	"sync"

	"github.com/sluice-project/sluice/internal/check"
)

// call is one Pool.Call, or a part of it that fits into a frame. It passes from the
// caller to the queue of a link, from there to the goroutine that sends, and from
// there to the one that receives. The caller's slices are touched only with mu held
// and while the call is not abandoned, so a caller may leave at any time.
type call struct {
	records []check.Record
	limits  int // of all records
	replies []check.Reply
	// done gets the outcome, once, unless the call was abandoned.
	done chan error

	// prev and next are the neighbours in the queue; link.mu guards them.
	prev, next *call
	queued     bool

	mu struct {
		sync.Mutex
		sent, finished, abandoned bool
	}
}

// fits returns how many of records a frame holds, at least one, and how many limits these have.
func fits(records []check.Record) (n, limits int) {
	for n < min(len(records), maxGather) {
		more := 0
		if l := records[n].Limits; l != nil {
			more = l.Len()
		}
		if limits+more > maxFrameLimits {
			break
		}
		n, limits = n+1, limits+more
	}
	return n, limits
}

// newCall returns a call, perhaps one that was released.
func (p *Pool) newCall(records []check.Record, limits int, replies []check.Reply) *call {
	c, ok := p.calls.Get().(*call)
	if !ok {
		c = &call{done: make(chan error, 1)}
	}
	c.records, c.limits, c.replies = records, limits, replies
	return c
}

// release keeps c for another call. Only for one whose outcome was received: an
// abandoned one is still known to others.
func (p *Pool) release(c *call) {
	c.records, c.replies = nil, nil
	c.mu.sent, c.mu.finished, c.mu.abandoned = false, false, false
	p.calls.Put(c)
}

// finish gives the outcome to the caller, if it still waits. fill, if not nil, runs
// first, while the caller cannot leave.
func (c *call) finish(err error, fill func(*call)) {
	c.mu.Lock()
	if c.mu.abandoned {
		c.mu.Unlock()
		return
	}
	if fill != nil {
		fill(c)
	}
	c.mu.finished = true
	c.mu.Unlock()
	c.done <- err // never blocks: one outcome, one place
}

// abandon takes the caller's slices back. It reports whether it came in time, which
// is before the outcome, and whether the records had been sent.
func (c *call) abandon() (inTime, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.finished {
		return false, true
	}
	c.mu.abandoned = true
	return true, c.mu.sent
}

// queue holds calls in the order they came. Any can leave from the middle. The
// link's mu guards it.
type queue struct {
	first, last *call
	records     int
}

func (q *queue) push(c *call) {
	c.queued, c.prev = true, q.last
	if q.last != nil {
		q.last.next = c
	} else {
		q.first = c
	}
	q.last = c
	q.records += len(c.records)
}

func (q *queue) remove(c *call) {
	if c.prev != nil {
		c.prev.next = c.next
	} else {
		q.first = c.next
	}
	if c.next != nil {
		c.next.prev = c.prev
	} else {
		q.last = c.prev
	}
	c.queued, c.prev, c.next = false, nil, nil
	q.records -= len(c.records)
}

// take appends calls from the queue to calls, as many as have at most so many records with so many limits in all. A call of
// its own is never more than a frame holds.
func (q *queue) take(calls []*call, records, limits int) []*call {
	for c := q.first; c != nil; c = q.first {
		records, limits = records-len(c.records), limits-c.limits
		if records < 0 || limits < 0 {
			break
		}
		q.remove(c)
		calls = append(calls, c)
	}
	return calls
}
