package cluster

import (
	"context"

	"github.com/sluice-project/sluice/bucket"
)

// mixed stands for a key whose checks in this round are not alike: each has a record of its own, so that
// they are decided in the order of the batch.
const mixed = -1

// muster finds what shares a record in this round: checks of this batch that are alike, and what
// finds a record of its kind on the way gathers behind that. It returns how many records are to be
// sent, and how many replies come by tickets.
func (f *forwarding) muster(r *routing) (records, tickets int) {
	if len(f.keys) > 0 {
		clear(f.keys)
	}
	for i := range f.pending {
		p := &f.pending[i]
		if p.away = p.to != nobody && p.to != r.self; p.away {
			p.forwards++
			p.with, p.place, p.times, p.ticket, p.leads, p.err = i, 0, 1, nil, false, nil
			f.compare(i)
		}
	}
	for i := range f.pending {
		if p := &f.pending[i]; p.away && f.shares(p) {
			f.join(r, i)
		}
	}
	for i := range f.pending {
		p := &f.pending[i]
		if !p.away || p.with != i {
			continue
		}
		if f.shares(p) && r.nodes[p.to].addr != "" {
			p.flight = flight{addr: r.nodes[p.to].addr, request: &f.batch.Requests[p.index]}
			p.ticket, p.leads = f.node.combine.board(&p.flight, p.times, f.batch.Trace)
		}
		if p.ticket != nil {
			tickets++
		} else {
			records++
		}
	}
	return records, tickets
}

// compare notes the first check of each key, or that there are others unlike it.
func (f *forwarding) compare(i int) {
	if len(f.pending) == 1 || f.whole != nil {
		return
	}
	if f.keys == nil {
		f.keys = make(map[bucket.Key]int)
	}
	key := f.batch.Requests[f.pending[i].index].Key
	first, seen := f.keys[key]
	switch {
	case !seen:
		f.keys[key] = i
	case first != mixed && !f.alike(first, i):
		f.keys[key] = mixed
	}
}

// alike reports whether two pending checks ask the same of the same node.
func (f *forwarding) alike(i, j int) bool {
	p, q := &f.pending[i], &f.pending[j]
	a, b := &f.batch.Requests[p.index], &f.batch.Requests[q.index]
	return p.to == q.to && a.Request == b.Request && a.Sync == b.Sync
}

// shares reports whether p may share a record.
func (f *forwarding) shares(p *pending) bool {
	req := &f.batch.Requests[p.index]
	return f.whole == nil && combines(req) && (len(f.pending) == 1 || f.keys[req.Key] != mixed)
}

// join makes pending check i a part of the record of the first of its kind, as long as there is room.
func (f *forwarding) join(r *routing, i int) {
	if len(f.pending) == 1 {
		return
	}
	p := &f.pending[i]
	key := f.batch.Requests[p.index].Key
	first := f.keys[key]
	if first == i {
		return
	}
	lead := &f.pending[first]
	if lead.times == bucket.MaxTimes || !f.node.cfg.Peers.Combines(r.nodes[p.to].addr) {
		f.keys[key] = i // the next of its kind may join this one
		return
	}
	p.with, p.place = first, lead.times
	lead.times++
	f.node.stats.combined.Add(1)
}

// landed says that the records of g are back.
func (f *forwarding) landed(g *group) {
	for at := g.first; at < g.first+g.n; at++ {
		if p := &f.pending[f.places[at]]; p.leads {
			// Before they go, those behind it shall know what it has learnt.
			last := part(&f.replies[at], &f.records[at], p.times-1, 1)
			f.node.learn(f.sent, &f.records[at].Request, f.batch.Requests[p.index].Fresh, &last)
			f.node.combine.land(&p.flight)
			p.flight = flight{}
		}
	}
}

// awaitTickets waits for the replies that come with the records of others.
func (f *forwarding) awaitTickets(ctx context.Context) {
	for i := range f.pending {
		if p := &f.pending[i]; p.away && p.ticket != nil {
			f.replies[p.at], p.err = f.node.combine.wait(ctx, p.ticket)
		}
	}
}
