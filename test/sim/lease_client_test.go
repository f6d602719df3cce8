package sim

import (
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/leaf/lease"
)

// leaseClient is a client process that decides by itself with leases of its own, by its own clock.
type leaseClient struct {
	up     bool
	boot   int
	paused int64
	rest   time.Duration
	// slow is the part of a second that its clock loses in each.
	slow float64
	// bursts: it makes its checks just before its leases end.
	bursts, asking bool
	line           *lease.Line
}

// startClients starts clients, each with a schedule of its own faults.
func (w *leaseSimCluster) startClients() {
	for range 1 + w.rng.IntN(3) {
		c := &leaseClient{up: true, line: new(lease.Line), rest: between(w.rng, time.Millisecond, 10*time.Millisecond)}
		c.slow, c.bursts = w.rng.Float64()/lease.Margin, w.rng.IntN(2) == 0
		w.after(0, func() { w.clientDemand(c) })
		w.after(between(w.rng, 0, time.Second), func() { w.clientFault(c) })
	}
}

// clientDemand makes a check at c and schedules the next one.
func (w *leaseSimCluster) clientDemand(c *leaseClient) {
	w.after(time.Duration(w.rng.ExpFloat64()*float64(c.rest)), func() { w.clientDemand(c) })
	if !c.up || w.now < c.paused {
		return
	}
	w.sync()
	if n := 1 + w.rng.Int64N(3); !c.bursts && !w.spendOf(c.line, n) && !w.ClientsOnly {
		w.forward(nil)
	}
	current, next := c.line.Leases()
	if current != nil && w.rng.IntN(16) == 0 { // a goroutine is stopped that has found this lease
		found := new(lease.Line)
		found.Add(current)
		w.after(between(w.rng, 0, 2*w.ttl), func() { w.spendOf(found, 1) })
	}
	switch now := lease.Now(); {
	case current != nil && (now >= current.Until-current.Life/6 || next != nil && current.Left() == 0):
		c.line.Advance()
		w.settleClient(current.About.(*reservation), current.End(), 0)
	case next == nil && !c.asking && (current == nil || current.Left() <= current.Low || now >= current.Until-current.Life/3):
		w.leaseClient(c)
	}
}

// spendOf spends n units of l, if it has them.
func (w *leaseSimCluster) spendOf(l *lease.Line, n int64) bool {
	w.sync()
	x := l.TakeSeen(n)
	if x == nil {
		return false
	}
	r := x.About.(*reservation)
	if r.spent += n; r.spent+r.back > r.units {
		w.fail("I4", "of lease %d of %d units %d are spent and %d returned", r.id, r.units, r.spent, r.back)
	}
	for w.Leased += n; n > 0; n-- {
		w.admit("a unit of a client's lease", w.nodes[0])
	}
	return true
}

// leaseClient requests a lease for c, once.
func (w *leaseSimCluster) leaseClient(c *leaseClient) {
	w.lastReservation++
	r := &reservation{granted: &granted{id: w.lastReservation, life: between(w.rng, w.ttl/2, w.ttl)}, lease: true}
	sent, boot, done := lease.Now(), c.boot, false
	c.asking = true
	answer := func(expires time.Duration) {
		w.sync()
		switch {
		case done || c.boot != boot:
			return
		case expires > 0:
			if w.FromAnswer {
				sent = lease.Now()
			}
			// Its clock shows that much only after a longer time.
			life := time.Duration(float64(lease.Deadline(sent, expires)-sent) * (1 + c.slow))
			x := &lease.Lease{Units: r.units, Until: sent + life, Life: expires, Low: r.units / 4, About: r}
			x.Open()
			c.line.Add(x)
			if c.bursts {
				w.after(x.Until-1-lease.Now(), func() {
					for c.up && w.now >= c.paused && w.spendOf(c.line, 1) {
					}
				})
			}
		}
		done, c.asking = true, false
	}
	w.send(func() {
		got, ok := w.ask(r, bucket.Reserve, leaseWant)
		if !ok {
			return
		}
		if got.Units > 0 && !got.Repeated {
			g := &granted{id: r.id, units: got.Units, over: w.now + int64(got.Expires)}
			if w.book = append(w.book, g); r.units > 0 {
				r.again = g // it was settled, and this request is late
			} else {
				r.granted = g
			}
			w.ClientLeases++
			w.confirm()
			w.audit()
		}
		w.send(func() { w.after(time.Duration(max(0, c.paused-w.now)), func() { answer(got.Expires) }) })
	})
	w.after(30*time.Millisecond, func() { answer(0) })
}

// settleClient settles r, whose client has spent actual units, and repeats that until it is answered.
func (w *leaseSimCluster) settleClient(r *reservation, actual int64, tries int) {
	done := false
	w.send(func() {
		got, ok := w.ask(r, bucket.Settle, actual)
		if !ok {
			return
		}
		g := r.granted
		if r.again != nil {
			g = r.again
		}
		if !got.Unknown {
			g.settle(w, got.Returned, g.units-g.spent)
			w.confirm()
		}
		w.send(func() { done = true })
	})
	w.after(20*time.Millisecond, func() {
		if !done && tries < 5 {
			w.settleClient(r, actual, tries+1)
		}
	})
}

// clientFault kills, starts, stops or slows c.
func (w *leaseSimCluster) clientFault(c *leaseClient) {
	switch w.rng.IntN(4) {
	case 0:
		c.up = !c.up
		c.boot++
		c.line, c.asking = new(lease.Line), false
	case 1, 2:
		c.paused = w.now + int64(between(w.rng, 0, 3*w.ttl))
	case 3:
		c.rest = between(w.rng, 500*time.Microsecond, 50*time.Millisecond)
	}
	w.after(between(w.rng, 0, time.Second), func() { w.clientFault(c) })
}
