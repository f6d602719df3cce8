package peer

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	peerv1 "github.com/sluice-project/sluice/proto/peer/v1"
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

// finishAll finishes calls with err.
func finishAll(calls []*call, err error) {
	for _, c := range calls {
		c.finish(err, nil)
	}
}

// abandon takes the caller's slices back. It reports whether it came before the outcome, and whether the records had been sent.
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

// Bits of Request.flags.
const (
	flagHold      = 1 << 0
	flagGiveBack  = 1 << 1
	flagSync      = 1 << 2
	flagTransient = 1 << 3
	flagDrain     = 1 << 4
	flagNoDelay   = 1 << 5
	flagGrant     = 1 << 6
	flagReturn    = 1 << 7
)

// verbRelay is the bit of a verb for a record that is to be relayed; the column flags has no bit left. A node that does not
// know it answers that it does not know the verb.
const verbRelay = 1 << 7

// denyLost is the bit of Request.lost.
const denyLost = 1 << 0

// addRecord appends r to the columns of m. limits is the number that the stream gave to r.Limits, 0 for none.
func addRecord(m *peerv1.Request, r *check.Record, limits uint32) {
	m.KeyHi = append(m.KeyHi, r.Key.Hi)
	m.KeyLo = append(m.KeyLo, r.Key.Lo)
	m.Limits = append(m.Limits, limits)
	m.Cost = append(m.Cost, r.Cost)
	m.Verb = append(m.Verb, verbOf(r))
	m.Flags = append(m.Flags, flagsOf(r))
	m.Id = append(m.Id, r.ID)
	m.Times = append(m.Times, r.Times)
	m.Want = append(m.Want, r.Want)
	m.Rate = append(m.Rate, r.Rate)
	m.ForNs = append(m.ForNs, int64(r.For))
	m.Reserve = append(m.Reserve, r.Reserve)
	m.Lost = append(m.Lost, bit(r.DenyLost, denyLost))
}

// verbOf returns r's value in the column verb.
func verbOf(r *check.Record) byte { return byte(r.Verb) | bit(r.Relay, verbRelay) }

// flagsOf returns r's value in the column flags.
func flagsOf(r *check.Record) (flags byte) {
	return bit(r.Hold, flagHold) | bit(r.GiveBack, flagGiveBack) | bit(r.Sync, flagSync) | bit(r.Transient, flagTransient) |
		bit(r.Drain, flagDrain) | bit(r.NoDelay, flagNoDelay) | bit(r.Grant, flagGrant) | bit(r.Return, flagReturn)
}

// sealRequest empties the columns of zeros. key_lo stays: its length is the number of records.
func sealRequest(m *peerv1.Request) {
	trim(&m.KeyHi, &m.Id)
	trim(&m.Limits)
	trim(&m.Cost, &m.Times, &m.Want, &m.Rate, &m.ForNs, &m.Reserve)
	trim(&m.Verb, &m.Flags, &m.Lost)
}

// readRequest appends m's records to records and checks m's form. definitions resolves the numbers of limits.
func readRequest(m *peerv1.Request, definitions *definitions, records []check.Record) ([]check.Record, error) {
	n := len(m.KeyLo)
	if n > MaxRecords {
		return nil, fmt.Errorf("frame %d has %d records; want at most %d", m.Seq, n, MaxRecords)
	}
	if err := checkColumns(m.Seq, n,
		column{"key_hi", len(m.KeyHi)}, column{"limits", len(m.Limits)}, column{"cost", len(m.Cost)},
		column{"verb", len(m.Verb)}, column{"flags", len(m.Flags)}, column{"id", len(m.Id)}, column{"times", len(m.Times)},
		column{"want", len(m.Want)}, column{"rate", len(m.Rate)}, column{"for_ns", len(m.ForNs)},
		column{"reserve", len(m.Reserve)}, column{"lost", len(m.Lost)},
	); err != nil {
		return nil, err
	}
	first := len(records)
	records = slices.Grow(records, n)[:first+n]
	for i := range n {
		r := &records[first+i]
		*r = check.Record{ID: at(m.Id, i)} // another frame's record may be here
		r.Key = bucket.Key{Hi: at(m.KeyHi, i), Lo: m.KeyLo[i]}
		r.Cost = at(m.Cost, i)
		r.Times = at(m.Times, i)
		r.Want = at(m.Want, i)
		r.Rate = at(m.Rate, i)
		r.For = time.Duration(at(m.ForNs, i))
		r.Reserve = at(m.Reserve, i)
		r.DenyLost = at(m.Lost, i)&denyLost != 0
		verb := at(m.Verb, i)
		r.Verb, r.Relay = bucket.Verb(verb&^verbRelay), verb&verbRelay != 0
		flags := at(m.Flags, i)
		r.Hold = flags&flagHold != 0
		r.GiveBack = flags&flagGiveBack != 0
		r.Sync = flags&flagSync != 0
		r.Transient = flags&flagTransient != 0
		r.Drain = flags&flagDrain != 0
		r.NoDelay = flags&flagNoDelay != 0
		r.Grant = flags&flagGrant != 0
		r.Return = flags&flagReturn != 0
		var err error
		if r.Limits, err = definitions.get(at(m.Limits, i)); err != nil {
			return nil, fmt.Errorf("frame %d, record %d: %w", m.Seq, i, err)
		}
	}
	return records, nil
}
