package peer

import (
	"math"
	"sync"

	"github.com/sluicecluster/sluice/internal/check"
)

// call is one Pool.Call, or a part of it that fits into a frame. It passes from the caller to the queue of a link, to the
// goroutine that sends, and to the one that receives. These touch the caller's slices only with mu held and while the call is
// not abandoned, so the caller may leave at any time.
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

// fits returns how many of records fit into a frame, at least one, and how many limits these have.
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

// release keeps c for reuse. Its outcome must have been received: other goroutines still refer to an abandoned call.
func (p *Pool) release(c *call) {
	c.records, c.replies = nil, nil
	c.mu.sent, c.mu.finished, c.mu.abandoned = false, false, false
	p.calls.Put(c)
}

// finish gives the outcome to the caller unless c is abandoned. write, if not nil, writes the replies first, while the caller
// cannot leave.
func (c *call) finish(err error, write func(*call)) {
	c.mu.Lock()
	if c.mu.abandoned {
		c.mu.Unlock()
		return
	}
	if write != nil {
		write(c)
	}
	c.mu.finished = true
	c.mu.Unlock()
	c.done <- err // never blocks: it has room for the one outcome
}

func finishAll(calls []*call, err error) {
	for _, c := range calls {
		c.finish(err, nil)
	}
}

// abandon takes the caller's slices back. inTime: there was no outcome yet. sent: the records had been sent.
func (c *call) abandon() (inTime, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.finished {
		return false, true
	}
	c.mu.abandoned = true
	return true, c.mu.sent
}

// queue holds calls in the order in which they came; any of them can be removed. The link's mu guards it.
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

// take moves calls from the queue to calls, as long as they have at most so many records and limits in all. One call is never
// more than a frame holds.
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

func (q *queue) takeAll() []*call { return q.take(nil, math.MaxInt, math.MaxInt) }
