package sluice

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sluice-project/sluice/client/internal/lease"
	"github.com/sluice-project/sluice/client/limit"
	"github.com/sluice-project/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

const (
	// leaseAfter checks of a key that were admitted within leaseWindow make it worth a lease: asking for one, and settling it, costs
	// about four checks.
	leaseAfter  = 25
	leaseWindow = 100 * time.Millisecond
	// A lease lasts leastLife, or four round trips if that is longer, and mostLife at most.
	leastLife, mostLife = 30 * time.Millisecond, 500 * time.Millisecond
	// maxLines bounds the keys with leases.
	maxLines = 1024
	// maxPatience is how long a line asks in vain before its checks go to the nodes again.
	maxPatience = time.Second
	heats       = 256
	// worth is how many units of half a lease make the next one worth its cost.
	worth = 4
	// closeTime bounds how long Close gives back leases.
	closeTime = 250 * time.Millisecond
)

// leases are what the client may spend by itself.
type leases struct {
	can atomic.Bool // the nodes give leases, and the client may ask
	mu  struct {
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
	key   counterKey
	check *sluicev1.Check
	low   chan struct{} // told when a lease is nearly spent
	// asking is closed when the request for a lease that is under way has ended; nil for none.
	asking atomic.Pointer[chan struct{}]
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

// leased decides q, whose counter is key, from a lease.
func (c *Client) leased(key counterKey, q *Check, d *Decision) bool {
	l := c.leases.line(key)
	if l == nil || !leasable(q) {
		return false
	}
	if cell := q.Cell(); cell != nil {
		cell.Line.Store(&l.Line)
	}
	return spend(&l.Line, q.Amount, d)
}

// leasedSoon decides q, which a node has denied, if the units are in a lease that is on its way here.
func (c *Client) leasedSoon(ctx context.Context, key counterKey, q *Check, d *Decision) {
	l := c.leases.line(key)
	if l == nil || !leasable(q) {
		return
	}
	if asking := l.asking.Load(); asking != nil {
		select {
		case <-*asking:
		case <-ctx.Done():
			return
		}
	}
	spend(&l.Line, q.Amount, d)
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
	l := &line{key: x.key, check: new(sluicev1.Check), low: make(chan struct{}, 1)}
	if err := proto.Unmarshal(x.body, l.check); err != nil {
		return
	}
	l.check.Cost = nil
	m := &c.leases.mu
	m.Lock()
	defer m.Unlock()
	if m.lines[l.key] != nil || len(m.lines) >= maxLines {
		return
	}
	if c.spawn(func() { c.keepLeased(l, units) }) {
		m.lines[l.key] = l
	}
}

// keepLeased asks for leases for l until it is not hot any more.
func (c *Client) keepLeased(l *line, units int64) {
	defer func() {
		c.leases.mu.Lock()
		delete(c.leases.mu.lines, l.key)
		c.leases.mu.Unlock()
		c.settle(c.ctx, l.Replace(nil))
	}()
	life := leastLife
	want := unitsIn(units, leaseWindow, life)
	for got := lease.Now(); ; {
		asking := make(chan struct{})
		l.asking.Store(&asking)
		sent := lease.Now()
		next, wait, err := c.askLease(l, want, life)
		took := lease.Now() - sent
		var old *lease.Lease
		if next != nil {
			old, got = l.Replace(next), sent
			life = min(max(leastLife, 4*took), mostLife)
			wait = life / 2
		}
		l.asking.Store(nil)
		close(asking)
		c.spawn(func() { c.settle(c.ctx, old) })
		if final, ok := errors.AsType[*Error](err); ok && !errors.Is(final, ErrClosed) { // its limits are not leased
			pause.For(c.ctx, time.Minute)
			return
		}
		if lease.Now()-got > maxPatience {
			return
		}
		early := false
		t := time.NewTimer(wait)
		select {
		case <-l.low:
			early = true
		case <-t.C:
		case <-c.ctx.Done():
		}
		t.Stop()
		if c.ctx.Err() != nil {
			return
		}
		if next == nil {
			continue
		}
		spent := next.Units - next.Left()
		if spent < worth && !early {
			return
		}
		want = unitsIn(spent, max(lease.Now()-sent, time.Microsecond), life)
		if early {
			want = max(want, 2*next.Units) // there may be more demand than there were units
		}
	}
}

// unitsIn returns how many units are spent in life, and a quarter more, if so many are spent in a time.
func unitsIn(units int64, in, life time.Duration) int64 {
	return 1 + int64(min(float64(units)*1.25*float64(life)/float64(in), 1<<40))
}

// askLease asks for a lease, once. Without one it returns when to ask again.
func (c *Client) askLease(l *line, want int64, life time.Duration) (next *lease.Lease, wait time.Duration, err error) {
	sent := lease.Now()
	req := &sluicev1.ReserveRequest{Checks: []*sluicev1.Check{l.check}, Units: &want, TtlNs: int64(life), Lease: true}
	var res *sluicev1.ReserveResponse
	err = c.unary(c.ctx, l.key, false, func(ctx context.Context, n sluicev1.RateLimitServiceClient) (err error) {
		res, err = n.Reserve(ctx, req)
		return err
	})
	if err != nil {
		return nil, life, err
	}
	decisions, err := readDecisions(res.GetDecisions())
	if err != nil || len(decisions) != 1 {
		return nil, life, err
	}
	d := &decisions[0]
	if res.GetUnits() == 0 {
		if d.Allowed {
			return nil, life, limit.Invalid("descriptor", "nothing limits it")
		}
		return nil, min(max(d.RetryAfter, 5*time.Millisecond), 100*time.Millisecond), nil
	}
	d.Source, d.Verdict = limit.SourceLease, limit.VerdictAllowed
	last := time.Duration(res.GetExpiresAfterNs())
	next = &lease.Lease{
		ID: res.GetReservation(), Units: res.GetUnits(), Until: sent + last - last/128, // clocks of two machines
		Low: res.GetUnits() / 4, Wake: l.low, About: d,
	}
	next.Open()
	return next, 0, nil
}

// settle ends x, which may be nil, and gives back what is left of it.
func (c *Client) settle(ctx context.Context, x *lease.Lease) {
	if x == nil {
		return
	}
	spent := x.End()
	c.stats.allowed[limit.SourceLease].Add(uint64(spent - x.Seen.Load()))
	if lease.Now() >= x.Until {
		return // the node has charged it
	}
	_ = c.unary(ctx, counterKey{}, false, func(ctx context.Context, n sluicev1.RateLimitServiceClient) error {
		_, err := n.Settle(ctx, &sluicev1.SettleRequest{Reservation: x.ID, Actual: spent})
		return err
	})
}

// endLeases gives back all leases, before the client is closed.
func (c *Client) endLeases() {
	if !c.leases.can.Swap(false) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTime)
	defer cancel()
	var all sync.WaitGroup
	for _, l := range c.leases.all() {
		all.Go(func() { c.settle(ctx, l.Replace(nil)) })
	}
	all.Wait()
}
