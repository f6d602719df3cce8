package sluice

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/lease"
)

const (
	// leaseAfter checks of a key that were admitted within leaseWindow make it worth leases, as long as so many units are spent. A caller
	// that waits for each of its checks makes no more of them, however many it would make with a lease.
	leaseAfter  = 25
	leaseWindow = 100 * time.Millisecond
	// A lease lasts leastLife, or four round trips if that is longer, and mostLife at most.
	leastLife, mostLife = 30 * time.Millisecond, 500 * time.Millisecond
	// maxLines bounds the keys with leases.
	maxLines = 1024
	// maxPatience is how long a line asks in vain before its checks go to the nodes again.
	maxPatience = time.Second
	heats       = 256
	// closeTime bounds how long Close gives back leases.
	closeTime = time.Second
)

// leases are what the client may spend by itself.
type leases struct {
	can atomic.Bool // the nodes give leases, and the client may ask
	// stop is closed when all lines are to end, work are their goroutines.
	stop chan struct{}
	work sync.WaitGroup
	mu   struct {
		sync.RWMutex
		lines map[counterKey]*line
	}
	heat struct {
		sync.Mutex
		of [heats]heat
	}
}

// heat counts the checks of a key without a line.
type heat struct {
	key   counterKey
	since time.Duration
	count int
	units int64
}

// line is the leases of one counter. One goroutine asks for them.
type line struct {
	lease.Line
	key  counterKey
	body []byte        // a sluice.v1.Check of it
	low  chan struct{} // told when a lease is nearly spent
	// asking is closed when the request for a lease that is under way has ended; nil for none.
	asking atomic.Pointer[chan struct{}]
	// back is a lease with units left that has ended, and is not given back yet; nil for none.
	back *spentLease
}

// spentLease is a lease that is not spent any more.
type spentLease struct {
	id     string
	actual int64         // units that were spent
	until  time.Duration // its deadline
}

func leasable(q *Check) bool {
	return q.Verb == limit.VerbCheck && q.Amount > 0 && q.IdempotencyKey == "" && len(q.Limits) == 0
}

// spend decides a check of n units from the lease of l.
func spend(l *lease.Line, n int64, d *Decision) bool {
	now := l.TakeSeen(n)
	if now == nil {
		return false
	}
	*d = *now.About.(*Decision)
	d.Remaining += now.Left()
	return true
}

// leased decides q, whose counter is key, from a lease, which may be on its way here: that takes no longer than to ask for one check.
func (c *Client) leased(ctx context.Context, key counterKey, q *Check, d *Decision) bool {
	l := c.leases.line(key)
	if l == nil || !leasable(q) {
		return false
	}
	if cell := q.Cell(); cell != nil {
		cell.Line.Store(&l.Line)
	}
	if spend(&l.Line, q.Amount, d) {
		return true
	}
	if asking := l.asking.Load(); asking != nil {
		t := time.NewTimer(leastLife)
		defer t.Stop()
		select {
		case <-*asking:
		case <-t.C:
		case <-ctx.Done():
			return false
		}
	}
	return spend(&l.Line, q.Amount, d)
}

// line returns the line of a counter, or nil.
func (x *leases) line(key counterKey) *line {
	if !x.can.Load() {
		return nil
	}
	x.mu.RLock()
	defer x.mu.RUnlock()
	return x.mu.lines[key]
}

// all returns all lines.
func (x *leases) all() []*line {
	x.mu.RLock()
	defer x.mu.RUnlock()
	return slices.Collect(maps.Values(x.mu.lines))
}

// warm counts a check that a node has admitted, and begins to lease when there were enough.
func (c *Client) warm(x *call, q *Check, d *Decision) {
	if !c.leases.can.Load() || !leasable(q) || d.Verdict != limit.VerdictAllowed || d.Delay > 0 || !d.Counted {
		return
	}
	now := lease.Now()
	c.leases.heat.Lock()
	h := &c.leases.heat.of[x.key[0]%heats]
	if h.key != x.key || now-h.since > leaseWindow {
		*h = heat{key: x.key, since: now}
	}
	h.count++
	h.units += q.Amount
	units, hot := h.units, h.count >= leaseAfter
	if hot {
		*h = heat{}
	}
	c.leases.heat.Unlock()
	if hot {
		c.openLine(x, units)
	}
}

// openLine opens a line for the counter of x, of which units were spent within leaseWindow.
func (c *Client) openLine(x *call, units int64) {
	l := &line{key: x.key, body: slices.Clone(x.body), low: make(chan struct{}, 1)}
	m := &c.leases.mu
	m.Lock()
	defer m.Unlock()
	if m.lines[l.key] != nil || len(m.lines) >= maxLines || c.closed.Load() {
		return
	}
	m.lines[l.key] = l
	c.leases.work.Go(func() { c.keepLeased(l, units) })
}

// keepLeased asks for leases for l until it is not hot any more.
func (c *Client) keepLeased(l *line, units int64) {
	defer func() {
		c.leases.mu.Lock()
		delete(c.leases.mu.lines, l.key)
		c.leases.mu.Unlock()
		for range 3 {
			c.giveBack(l)
			l.advance(c)
		}
	}()
	now := lease.Now()
	var (
		trip    time.Duration // a round trip, smoothed so that a process that was stopped once counts little
		life    = leastLife
		want    = unitsIn(units, leaseWindow, life)
		ended   int64 // units that were spent of former leases
		before  int64 // what was spent when a lease was asked for last,
		asked   = now // and when that was
		counted int64 // what was spent by since,
		since   = now // which is at most a leaseWindow ago
		got     = now // when there was a lease last
		askNext = now // no earlier
	)
	for !c.closed.Load() && c.leases.can.Load() && now-got < maxPatience {
		current, next := l.Leases()
		renew, end := askNext, askNext // when to ask for the next one, and when to give back what is left, in time
		if current != nil {
			end = current.Until
			if current.Left() > current.Low {
				renew = max(renew, current.Until-current.Life/3)
			}
		}
		switch {
		case current != nil && (now >= end || next != nil && current.Left() == 0):
			c.giveBack(l)
			ended += l.advance(c)
		case next == nil && now >= renew:
			spent := ended + current.Spent()
			if now-since >= leaseWindow {
				if current != nil && spent-counted < leaseAfter {
					return // it is not hot any more
				}
				counted, since = spent, now
			}
			if spent > before {
				want = min(unitsIn(spent-before, now-asked, life), 4*want)
			}
			before, asked = spent, now
			x, wait, err := c.requestLease(l, want-current.Left(), life)
			if final, ok := errors.AsType[*Error](err); ok && !errors.Is(final, ErrClosed) { // these limits are not leased
				c.pauseLine(nil, time.Minute)
				return
			}
			now = lease.Now()
			trip = smoothed(trip, now-asked)
			if askNext = now + wait; x != nil {
				got = now
			}
		default:
			if l.back != nil && renew >= l.back.until {
				c.giveBack(l)
				break
			}
			wake := renew
			if current != nil && (next != nil || end < renew) {
				wake = end
			}
			c.pauseLine(l.low, wake-now)
			if late := lease.Now() - wake; late > trip { // as a response would be
				trip = smoothed(trip, late)
			}
		}
		life = min(max(leastLife, 4*trip), mostLife)
		now = lease.Now()
	}
}

// pauseLine waits for a time, for a lease that is nearly spent, or for the client to be closed.
func (c *Client) pauseLine(low <-chan struct{}, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-low:
	case <-t.C:
	case <-c.leases.stop:
	}
}

// smoothed returns the average of round trips when one more took d: it rises quickly, and falls slowly.
func smoothed(average, d time.Duration) time.Duration {
	if d > average {
		return average + (min(d, 2*average+leastLife)-average)/4
	}
	return average + (d-average)/16
}

// unitsIn returns how many units are spent in life, and a quarter more, if so many are spent in a time.
func unitsIn(units int64, in, life time.Duration) int64 {
	return 1 + int64(min(float64(units)*1.25*float64(life)/float64(in), 1<<40))
}

// requestLease asks for a lease for l, once, and gives back what l has not given back. Without a lease it returns when to ask again.
func (c *Client) requestLease(l *line, want int64, life time.Duration) (x *lease.Lease, wait time.Duration, err error) {
	asking := make(chan struct{})
	l.asking.Store(&asking)
	defer func() {
		if x != nil {
			l.Add(x)
		}
		l.asking.Store(nil)
		close(asking)
	}()
	sent := lease.Now()
	got, err := c.exchangeLease(l, max(1, want), life)
	switch d := &got.answer.Decision; {
	case err != nil:
		return nil, life, err
	case got.lease == nil && d.Allowed:
		return nil, life, limit.Invalid("descriptor", "nothing limits it")
	case got.lease == nil:
		return nil, min(max(d.RetryAfter, 5*time.Millisecond), 100*time.Millisecond), nil
	default:
		d.Source, d.Verdict = limit.SourceLease, limit.VerdictAllowed
		last := time.Duration(got.lease.ExpiresAfterNs)
		x = &lease.Lease{
			ID: got.lease.Id, Units: got.lease.Units, Until: lease.Deadline(sent, last), Life: last,
			Low: got.lease.Units / 4, Wake: l.low, About: d,
		}
		x.Open()
		return x, 0, nil
	}
}

// exchangeLease asks for units, or for none, and gives back what l has not given back.
func (c *Client) exchangeLease(l *line, units int64, life time.Duration) (*call, error) {
	x := newCall()
	x.body, x.key = l.body, l.key
	r := &request{calls: []*call{x}, fields: leasing(units, life, l.back)}
	l.back = nil // if the response is lost, its deadline ends it
	s, known, err := c.find(c.ctx, x.key, nil)
	if err == nil {
		r.known = known
		err = c.attempt(c.ctx, s, r)
	}
	if err == nil {
		c.learn(x.key, s.node, known, &x.answer.Decision)
	}
	return x, err
}

// advance makes the next lease of l the current one, and returns how many units of the former one were spent.
func (l *line) advance(c *Client) (spent int64) {
	x := l.Advance()
	if x == nil {
		return 0
	}
	spent = x.End()
	c.stats.allowed[limit.SourceLease].Add(uint64(spent - x.Seen.Load()))
	if spent < x.Units {
		l.back = &spentLease{x.ID, spent, x.Until}
	}
	return spent
}

// giveBack gives back what l has not given back.
func (c *Client) giveBack(l *line) {
	if l.back != nil {
		_, _ = c.exchangeLease(l, 0, 0)
	}
}

// endLeases gives back all leases, of a client that is being closed.
func (c *Client) endLeases() {
	c.leases.mu.Lock() // no line is opened any more
	close(c.leases.stop)
	c.leases.mu.Unlock()
	t := time.AfterFunc(closeTime, c.cancel)
	defer t.Stop()
	c.leases.work.Wait()
}
