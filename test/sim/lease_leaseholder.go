package sim

import (
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// nodeLease is a leaseholder's lease.
type nodeLease struct {
	*granted
	left, end int64
}

// leaseWant is the number of units that a leaseholder requests.
const leaseWant = 30

// demand makes checks at p and schedules the next ones.
func (w *leaseSimCluster) demand(p *leaseNode) {
	if p.up && w.now >= p.paused && (p == w.owner || !w.ClientsOnly) {
		for range 1 + w.rng.IntN(3) {
			w.check(p)
		}
		if w.rng.IntN(8) == 0 && !w.Unconfirmed && !w.ClientsOnly {
			w.reserve(p)
		}
	}
	w.after(time.Duration(w.rng.ExpFloat64()*float64(p.rest)), func() { w.demand(p) })
}

func (w *leaseSimCluster) check(p *leaseNode) {
	if p == w.owner {
		w.decide(p)
		return
	}
	have := w.spend(p, !p.bursts)
	if have >= leaseWant/2 {
		return
	}
	if p.asking == 0 || w.now-p.asking > int64(w.ttl)/2 {
		w.lease(p)
	} else if w.rng.IntN(8) == 0 {
		w.forward(p)
	}
	if !w.healthy && w.rng.IntN(40) == 0 {
		w.giveBack(p)
	}
}

// spend spends a unit of p's oldest lease if one is set, and returns the remaining units.
func (w *leaseSimCluster) spend(p *leaseNode, one bool) (have int64) {
	live := p.leases[:0]
	for _, l := range p.leases {
		if l.left == 0 || w.now >= l.end && !w.Careless {
			continue
		}
		if one {
			one = false
			l.left--
			l.spent++
			w.Leased++
			w.admit("a leased unit", p)
		}
		have += l.left
		live = append(live, l)
	}
	p.leases = live
	return have
}

// lease requests a lease from the owner.
func (w *leaseSimCluster) lease(p *leaseNode) {
	h := w.owner
	if h == nil {
		return
	}
	sent, boot, answered := w.now, p.boot, false
	p.asking = sent
	w.send(func() {
		g := w.grant(h)
		if g == nil {
			return
		}
		w.send(func() {
			if answered || !p.up || p.boot != boot {
				return
			}
			answered = true
			if p.asking == sent {
				p.asking = 0
			}
			end := sent + int64(g.life)
			if w.FromAnswer {
				end = w.now + int64(g.life)
			}
			if w.now >= end {
				w.Late++
				return
			}
			p.leases = append(p.leases, &nodeLease{granted: g, left: g.units, end: end})
			if p.bursts {
				w.after(time.Duration(end-w.now-1), func() {
					for range g.units {
						w.spend(p, true)
					}
				})
			}
		})
	})
}

// forward asks the owner to decide one check.
func (w *leaseSimCluster) forward(*leaseNode) {
	h := w.owner
	if h == nil {
		return
	}
	w.send(func() { w.decide(h) })
}

// giveBack returns the unspent units of one of p's leases.
func (w *leaseSimCluster) giveBack(p *leaseNode) {
	h := w.owner
	if h == nil || len(p.leases) == 0 {
		return
	}
	l := p.leases[0]
	p.leases = p.leases[1:]
	w.send(func() { w.settleLease(h, l) })
}

// settleLease processes a return at h.
func (w *leaseSimCluster) settleLease(h *leaseNode, l *nodeLease) {
	if h != w.owner {
		return
	}
	back, _, v := h.table.Return(w.now+h.ahead, bucket.Key{}, l.id, l.left)
	if v != bucket.Decided {
		return
	}
	l.settle(w, back, l.left)
	w.confirm()
}
