package cluster

import (
	"context"
	"math/bits"

	"github.com/sluice-project/sluice/bucket"
)

// firsts finds the first check of each key in a round. Keys are hashes already, so a check costs one look at a table of
// open addressing, where Go's map hashes again and takes several times as long.
type firsts struct {
	slots []int32 // a place in forwarding.pending plus one; 0 is free
}

// reset empties t and makes room for n keys.
func (t *firsts) reset(n int) {
	t.slots = grow(t.slots, 2<<bits.Len(uint(n)))
	clear(t.slots)
}

// first returns the first pending check of this round that has the key of check i, which may be i itself.
func (f *forwarding) first(i int) int {
	slots, key := f.firsts.slots, f.key(i)
	for at := key.Hi; ; at++ {
		slot := &slots[at%uint64(len(slots))]
		if *slot == 0 {
			*slot = int32(i) + 1
			return i
		}
		if first := int(*slot) - 1; f.key(first) == key {
			return first
		}
	}
}

// key is that of pending check i.
func (f *forwarding) key(i int) bucket.Key { return f.batch.Requests[f.pending[i].index].Key }

// muster finds what shares a record in this round: checks of this batch that are alike, and what
// finds a record of its kind on the way gathers behind that. It returns how many records are to be
// sent, and how many replies come by tickets.
func (f *forwarding) muster(r *routing) (records, tickets int) {
	several := len(f.pending) > 1 && f.whole == nil
	if several {
		f.firsts.reset(len(f.pending))
	}
	twice := false // some key is asked for twice
	for i := range f.pending {
		p := &f.pending[i]
		if p.away = p.to != nobody && p.to != r.self; !p.away {
			continue
		}
		p.forwards++
		p.first, p.with, p.joins, p.mixed = i, i, i, false
		p.place, p.times, p.ticket, p.entered, p.leads, p.err = 0, 1, nil, false, false, nil
		if several {
			if p.first = f.first(i); p.first != i {
				first := &f.pending[p.first]
				first.mixed = first.mixed || !f.alike(p.first, i)
				twice = true
			}
		}
	}
	if twice {
		for i := range f.pending {
			if p := &f.pending[i]; p.away && p.first != i && f.shares(p) {
				f.join(r, i)
			}
		}
	}
	for i := range f.pending {
		p := &f.pending[i]
		if !p.away || p.with != i {
			continue
		}
		if r.nodes[p.to].addr != "" && f.shares(p) {
			// Of what was denied lately, all who ask again at once shall learn from one, unless it is far away.
			if p.entered = (!p.denied || f.node.combine.far.Load() > 0) && f.node.combine.enter(f.key(i)); !p.entered {
				p.ticket, p.leads = f.node.combine.board(f.likeness(r, p), p.times, f.batch.Trace)
			}
		}
		if p.ticket != nil {
			tickets++
		} else {
			records++
		}
	}
	return records, tickets
}

// alike reports whether two pending checks ask the same of the same node.
func (f *forwarding) alike(i, j int) bool {
	p, q := &f.pending[i], &f.pending[j]
	a, b := &f.batch.Requests[p.index], &f.batch.Requests[q.index]
	return p.to == q.to && a.Request == b.Request && a.Sync == b.Sync
}

// shares reports whether p may share a record. Where the checks of a key are not alike, each has a record of its own, so
// that they are decided in the order of the batch.
func (f *forwarding) shares(p *pending) bool {
	return f.whole == nil && !p.relay && !f.pending[p.first].mixed && combines(&f.batch.Requests[p.index])
}

// join makes pending check i, of whose key there is one before, a part of its record, as long as there is room.
func (f *forwarding) join(r *routing, i int) {
	p := &f.pending[i]
	first := &f.pending[p.first]
	lead := &f.pending[first.joins]
	if lead.times == bucket.MaxTimes {
		first.joins = i // the next of its kind may join this one
		return
	}
	p.with, p.place = first.joins, lead.times
	lead.times++
	f.node.stats.combined.Add(1)
}

// landed says that the records of g are back.
func (f *forwarding) landed(r *routing, g *group) {
	for at := g.first; at < g.first+g.n; at++ {
		p := &f.pending[f.places[at]]
		switch {
		case p.entered:
			f.node.combine.leave(f.records[at].Key)
		case p.leads:
			// Before they go, those behind it shall know what it has learnt.
			last := part(&f.replies[at], &f.records[at], p.times-1, 1)
			f.node.learn(f.sent, &f.records[at].Request, f.batch.Requests[p.index].Fresh, &last)
			f.node.combine.land(f.likeness(r, p))
		}
	}
}

// likeness is what is alike in the checks of p's record.
func (f *forwarding) likeness(r *routing, p *pending) likeness {
	req := &f.batch.Requests[p.index]
	return likeness{r.nodes[p.to].addr, req.Request, req.Sync, req.Fresh}
}

// awaitTickets waits for the replies that come with the records of others.
func (f *forwarding) awaitTickets(ctx context.Context) {
	for i := range f.pending {
		if p := &f.pending[i]; p.away && p.ticket != nil {
			f.replies[p.at], p.err = f.node.combine.wait(ctx, p.ticket)
		}
	}
}
