package sim

import (
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// lent is a grant in the book.
type lent struct {
	id    uint64
	units int64
	life  time.Duration
	// over is when it has ended for the holder.
	over        int64
	spent, back int64
	settled     bool
}

// settle notes that back of unspent units came back.
func (g *lent) settle(w *leaseWorld, back, unspent int64) {
	if back > unspent || back > 0 && g.settled {
		w.fail("I4", "%d of %d unspent units of grant %d came back, settled before: %v", back, unspent, g.id, g.settled)
	}
	g.settled = g.settled || w.now < g.over
	g.back += back
	w.Returned += back
	if g.spent+g.back > g.units {
		w.fail("I4", "of grant %d of %d units %d are spent and %d returned", g.id, g.units, g.spent, g.back)
	}
}

// decide is a check at p.
func (w *leaseWorld) decide(p *leaseNode) {
	if p != w.holder {
		return
	}
	d, _, v := p.table.Try(w.now+p.ahead, &bucket.Request{Limits: w.limits, Cost: 1}, nil)
	if v == bucket.Decided && d.Allowed {
		w.admit("a check", p)
		w.confirm()
	}
}

// lend grants a loan, if h may and can.
func (w *leaseWorld) lend(h *leaseNode) *lent {
	if h != w.holder {
		return nil
	}
	g, _, v := h.table.Lend(w.now+h.ahead, &bucket.Loan{
		Limits: w.limits, Want: leaseWant, Part: 1, Whole: 1 + w.rng.Int64N(4), For: w.ttl,
	})
	if v != bucket.Decided || g.Units == 0 {
		return nil
	}
	x := &lent{id: g.ID, units: g.Units, life: g.For, over: w.now + int64(g.For)}
	w.book = append(w.book, x)
	w.Grants++
	w.Granted += g.Units
	if !w.Unconfirmed {
		w.confirm()
	}
	w.audit()
	return x
}

// confirm brings the standby level. What it does not have is not answered, so it takes no time here.
func (w *leaseWorld) confirm() {
	if w.standby != nil {
		w.copyTo(w.standby, w.now)
	}
}

// copyTo copies the holder's counter to p, as of a time.
func (w *leaseWorld) copyTo(p *leaseNode, at int64) {
	var im bucket.Image
	w.holder.table.Export(w.now+w.holder.ahead, 0, []bucket.Key{{}}, &im)
	w.take(p, &im, at)
}

func (w *leaseWorld) take(p *leaseNode, im *bucket.Image, at int64) {
	if err := p.table.Import(at+p.ahead, 0, im, im.Data, im.Counters, false); err != nil {
		w.fail("I5", "node %d cannot import: %v", p.place, err)
	}
}

// audit compares the book with the ledger.
func (w *leaseWorld) audit() {
	if w.Unaudited || w.Unconfirmed {
		return
	}
	var grants int
	var units int64
	for _, g := range w.book {
		if !g.settled && w.now < g.over {
			grants++
			units += g.units
		}
	}
	if n, lent := w.holder.table.Lent(w.now+w.holder.ahead, bucket.Key{}); n != grants || lent != units {
		w.fail("I4", "the holder has %d grants of %d units, the book %d of %d", n, lent, grants, units)
	}
}

// closeBook wants granted = spent + returned + lost of every grant.
func (w *leaseWorld) closeBook() {
	var spent int64
	for _, g := range w.book {
		if g.spent+g.back > g.units {
			w.fail("I4", "of grant %d of %d units %d are spent and %d returned", g.id, g.units, g.spent, g.back)
		}
		spent += g.spent
	}
	if spent != w.Leased {
		w.fail("I4", "%d leased units were spent, of grants only %d", w.Leased, spent)
	}
}

// fault is the next thing that happens to a node.
func (w *leaseWorld) fault() {
	what := w.rng.IntN(5)
	if w.calm && what > 0 {
		what = 3 // nobody crashes
	}
	switch what {
	case 0:
		w.handOff()
	case 1:
		if w.holder != nil && w.standby != nil {
			w.crash(w.holder)
		}
	case 2:
		if p := w.nodes[w.rng.IntN(len(w.nodes))]; p.up && !p.needed && p != w.holder && p != w.standby {
			w.crash(p)
		}
	case 3:
		p := w.nodes[w.rng.IntN(len(w.nodes))]
		p.paused = w.now + int64(between(w.rng, 0, 3*w.ttl))
	case 4:
		p := w.nodes[w.rng.IntN(len(w.nodes))]
		p.rest = between(w.rng, 500*time.Microsecond, 50*time.Millisecond)
	}
	w.after(between(w.rng, 0, 600*time.Millisecond), w.fault)
}

// other returns a node that is up and neither holder nor standby, or nil.
func (w *leaseWorld) other() *leaseNode {
	for _, i := range w.rng.Perm(len(w.nodes)) {
		if p := w.nodes[i]; p.up && p != w.holder && p != w.standby {
			return p
		}
	}
	return nil
}

// handOff gives the counter to another node, which has it a moment later, and whose standby the old holder is.
func (w *leaseWorld) handOff() {
	from, to := w.holder, w.other()
	if from == nil || to == nil {
		return
	}
	from.table.Seal(0)
	var im bucket.Image
	from.table.Export(w.now+from.ahead, 0, []bucket.Key{{}}, &im)
	frozen := w.now
	from.needed = true
	w.holder, w.standby = nil, nil
	w.after(between(w.rng, 0, 20*time.Millisecond), func() {
		from.needed = false
		if !to.up {
			w.failOver(from)
			return
		}
		// As the counter has aged on its way, or as if it had not: then its windows end later, but not those of the account.
		at := frozen
		if w.rng.IntN(2) == 0 && !readsClock(w.limits.At(0)) {
			at = w.now
		}
		for _, g := range w.book {
			if g.over > frozen {
				g.over += at - frozen
			}
		}
		w.take(to, &im, at)
		w.HandOffs++
		w.failOver(to)
	})
}

// failOver makes p, which has the counter, the holder.
func (w *leaseWorld) failOver(p *leaseNode) {
	p.needed = false
	p.table.Open(0, 0)
	w.holder, w.standby, p.leases = p, nil, p.leases[:0]
	if w.standby = w.other(); w.standby != nil {
		w.confirm()
	}
}

// crash ends p's process. If it held, its standby claims after a while.
func (w *leaseWorld) crash(p *leaseNode) {
	w.Crashes++
	p.up, p.leases, p.asking, p.table = false, nil, 0, w.newTable()
	p.boot++
	if p == w.holder {
		next := w.standby
		next.needed = true
		w.holder, w.standby = nil, nil
		w.after(between(w.rng, 10*time.Millisecond, 700*time.Millisecond), func() { w.failOver(next) })
	}
	w.after(between(w.rng, 100*time.Millisecond, 2*time.Second), func() { p.up = true })
}
