package sim

import (
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// granted is a grant in the model's book.
type granted struct {
	id    uint64
	units int64
	life  time.Duration
	// over is when it ends for the owner.
	over        int64
	spent, back int64
	settled     bool
}

// settle records that back of the unspent units were returned.
func (g *granted) settle(w *leaseSimCluster, back, unspent int64) {
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
func (w *leaseSimCluster) decide(p *leaseNode) {
	if p != w.owner {
		return
	}
	d, _, v := p.table.Try(w.now+p.ahead, &bucket.Request{Limits: w.limits, Cost: 1}, nil)
	if v == bucket.Decided && d.Allowed {
		w.admit("a check", p)
		w.confirm()
	}
}

// grant grants a lease request at h, if possible.
func (w *leaseSimCluster) grant(h *leaseNode) *granted {
	if h != w.owner {
		return nil
	}
	g, _, v := h.table.Grant(w.now+h.ahead, &bucket.LeaseRequest{
		Limits: w.limits, Want: leaseWant, Part: 1, Whole: 1 + w.rng.Int64N(4), For: w.ttl,
	})
	if v != bucket.Decided || g.Units == 0 {
		return nil
	}
	x := &granted{id: g.ID, units: g.Units, life: g.For, over: w.now + int64(g.For)}
	w.book = append(w.book, x)
	w.Grants++
	w.Granted += g.Units
	if !w.Unconfirmed {
		w.confirm()
	}
	w.audit()
	return x
}

// confirm brings the replica level. It takes no time here, because unconfirmed grants are not answered anyway.
func (w *leaseSimCluster) confirm() {
	if w.replica != nil {
		keys, _, _ := w.owner.table.Drain(0, nil)
		w.take(w.replica, w.owner.export(w.now, keys), w.now)
	}
}

// export returns the counter and the grants of keys, as of now.
func (p *leaseNode) export(now int64, keys []bucket.KeyAt) *bucket.Image {
	im := new(bucket.Image)
	p.table.Export(now+p.ahead, 0, keys, im)
	return im
}

func (w *leaseSimCluster) take(p *leaseNode, im *bucket.Image, at int64) {
	if err := p.table.Import(at+p.ahead, 0, im, im.Data, im.Counters, false); err != nil {
		w.fail("I5", "node %d cannot import: %v", p.place, err)
	}
}

// audit compares the book with the owner's ledger.
func (w *leaseSimCluster) audit() {
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
	if n, granted := w.owner.table.Granted(w.now+w.owner.ahead, bucket.Key{}); n != grants || granted != units {
		w.fail("I4", "the owner has %d grants of %d units, the book %d of %d", n, granted, grants, units)
	}
}

// closeBook requires granted = spent + returned + lost for every grant.
func (w *leaseSimCluster) closeBook() {
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

// fault applies the next random fault.
func (w *leaseSimCluster) fault() {
	what := w.rng.IntN(5)
	if w.healthy && what > 0 {
		what = 3 // no crashes
	}
	switch what {
	case 0:
		w.handOff()
	case 1:
		if w.owner != nil && w.replica != nil {
			w.crash(w.owner)
		}
	case 2:
		if p := w.nodes[w.rng.IntN(len(w.nodes))]; p.up && !p.needed && p != w.owner && p != w.replica {
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

// other returns a node that is up and neither owner nor replica, or nil.
func (w *leaseSimCluster) other() *leaseNode {
	for _, i := range w.rng.Perm(len(w.nodes)) {
		if p := w.nodes[i]; p.up && p != w.owner && p != w.replica {
			return p
		}
	}
	return nil
}

// handOff hands the counter off to another node after a short delay; the old owner becomes its replica.
func (w *leaseSimCluster) handOff() {
	from, to := w.owner, w.other()
	if from == nil || to == nil {
		return
	}
	from.table.Seal(0)
	im := from.export(w.now, from.table.Keys(0, nil))
	frozen := w.now
	from.needed = true
	w.owner, w.replica, w.next = nil, nil, to
	w.after(between(w.rng, 0, 20*time.Millisecond), func() {
		from.needed = false
		if !to.up {
			w.failOver(from)
			return
		}
		// Either with the time of the transfer taken into account or without: then the counter's windows end later, but not
		// those of the account.
		at := frozen
		if w.rng.IntN(2) == 0 && !readsClock(w.limits.At(0)) {
			at = w.now
		}
		for _, g := range w.book {
			if g.over > frozen {
				g.over += at - frozen
			}
		}
		to.replica()
		w.take(to, im, at)
		w.Handoffs++
		w.failOver(to)
	})
}

// failOver makes p, which has the counter, the owner.
func (w *leaseSimCluster) failOver(p *leaseNode) {
	p.needed = false
	p.table.Open(0, 0)
	p.table.Record(0, bucket.RecordAll, 0)
	w.owner, w.replica, p.leases = p, nil, p.leases[:0]
	if w.replica = w.other(); w.replica != nil {
		w.replica.replica()
		w.take(w.replica, p.export(w.now, p.table.Keys(0, nil)), w.now)
	}
}

// replica makes p's table that of a replica without counters.
func (p *leaseNode) replica() {
	p.table.Seal(0)
	p.table.DropShard(0)
}

// crash ends p's process. If it was the owner, its replica takes over after a while.
func (w *leaseSimCluster) crash(p *leaseNode) {
	w.Crashes++
	p.up, p.leases, p.asking, p.table = false, nil, 0, w.newTable()
	p.boot++
	if p == w.owner {
		next := w.replica
		next.needed = true
		w.owner, w.replica, w.next = nil, nil, nil
		w.after(between(w.rng, 10*time.Millisecond, 700*time.Millisecond), func() { w.failOver(next) })
	}
	w.after(between(w.rng, 100*time.Millisecond, 2*time.Second), func() { p.up = true })
}
