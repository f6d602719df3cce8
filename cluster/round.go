package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// A round has two groups for each node, because answers to checks of sync rules take a
// replica's confirmation longer, as relayed ones take another node's answer, and the others shall not wait for them.
func groupOf(node int, sync bool) int {
	if sync {
		return 2*node + 1
	}
	return 2 * node
}

func nodeOf(group int) int { return group / 2 }

// pack sorts what is pending by group and writes the records.
func (f *forwarding) pack(r *routing) {
	f.groups = append(f.groups[:0], make([]group, 2*len(r.nodes))...)
	f.busy, f.here = f.busy[:0], f.here[:0]
	total, tickets := f.muster(r)
	for i := range f.pending {
		p := &f.pending[i]
		switch {
		case p.to == r.self:
			f.here = append(f.here, i)
		case p.sends(i):
			to := f.group(p)
			if f.groups[to].n == 0 {
				f.busy = append(f.busy, to)
			}
			f.groups[to].n++
		}
	}
	all := total + tickets
	f.records, f.replies, f.places = grow(f.records, all), grow(f.replies, all), grow(f.places, all)
	first := 0
	for _, to := range f.busy {
		f.groups[to].first = first
		first += f.groups[to].n
		f.groups[to].n = 0 // counted again below
	}
	for i := range f.pending {
		p := &f.pending[i]
		if !p.away || p.with != i {
			continue
		}
		if p.ticket != nil {
			p.at = first
			first++
		} else {
			g := &f.groups[f.group(p)]
			p.at = g.first + g.n
			g.n++
		}
		f.write(i)
	}
	f.node.stats.forwards.Add(uint64(total))
}

// sends reports whether p, which is pending check i, has a record in this round.
func (p *pending) sends(i int) bool { return p.away && p.with == i && p.ticket == nil }

// write writes the record of pending check i, also where it goes behind another: its reply is read by it.
func (f *forwarding) write(i int) {
	p := &f.pending[i]
	req, rec := &f.batch.Requests[p.index], &f.records[p.at]
	f.places[p.at] = i
	*rec = check.Record{Request: req.Request, Sync: req.Sync}
	if p.times > 1 {
		rec.Times = p.times
	}
	if p.relay {
		rec.Relay, rec.For = true, max(time.Millisecond, time.Until(f.deadline))
	}
	if f.whole != nil {
		f.whole.mark(rec, p.index)
	}
}

func (f *forwarding) group(p *pending) int {
	return groupOf(p.to, f.batch.Requests[p.index].Sync || p.relay)
}

// grow returns s with length n; values are undefined.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// send calls the nodes of this round at once, decides meanwhile what is held here,
// and takes the answers in.
func (f *forwarding) send(ctx context.Context, r *routing) {
	switch {
	case len(f.here) > 0:
		wait := f.callAll(ctx, r, f.busy)
		f.decideHere(ctx, r)
		f.confirmHere(ctx, r)
		wait()
	case len(f.busy) > 1:
		wait := f.callAll(ctx, r, f.busy[1:])
		f.call(ctx, r, f.busy[0])
		wait()
	case len(f.busy) == 1:
		// The only call needs no goroutine.
		f.call(ctx, r, f.busy[0])
	}
	f.awaitTickets(ctx)
	f.take(r)
	f.sift()
}

// callAll calls several groups at once. wait returns when all have answered.
func (f *forwarding) callAll(ctx context.Context, r *routing, groups []int) (wait func()) {
	var wg sync.WaitGroup
	for _, to := range groups {
		wg.Go(func() { f.call(ctx, r, to) })
	}
	return wg.Wait
}

// call sends the records of one group, and fills their replies.
func (f *forwarding) call(ctx context.Context, r *routing, to int) {
	g := &f.groups[to]
	end := g.first + g.n
	n := &r.nodes[nodeOf(to)]
	if n.addr == "" {
		clear(f.replies[g.first:end])
		g.err = fmt.Errorf("%w: member %s has no address", check.ErrUnsent, n.name)
		return
	}
	span := f.node.ask(f.batch.Trace, n.addr, f.records[g.first:end])
	g.err = f.node.cfg.Peers.Call(ctx, n.addr, f.records[g.first:end], f.replies[g.first:end])
	endAsk(span, f.replies[g.first:end], g.err)
	f.node.stats.forwarding.Observe(time.Duration(f.node.cfg.Clock() - f.sent))
	f.landed(r, g)
}

// decideHere decides what this node holds, as far as it may and ctx lasts.
func (f *forwarding) decideHere(ctx context.Context, r *routing) {
	n := f.node
	right, now := n.right.Load(), n.cfg.Clock()
	if now >= right {
		return // the right has just gone: the next round answers
	}
	clear(f.stuck)
	lends := n.demands.Any() && f.whole == nil && onlyAsks(f.batch)
	for k, i := range f.here {
		if k%lookEvery == lookEvery-1 {
			if ctx.Err() != nil {
				for _, i := range f.here[k:] {
					f.pending[i].to = nobody // the last round answers it
				}
				break
			}
			if n.cfg.Clock() < right { // as in Decide
				right = max(right, n.right.Load())
			}
		}
		p := &f.pending[i]
		req := &f.batch.Requests[p.index]
		if cause := f.stuck[req.Key]; cause != nil {
			p.to, p.cause = nobody, cause
			continue
		}
		var tenure uint64
		if req.Sync {
			tenure = n.tenure(req.Key)
		}
		var d bucket.Decision
		var seq uint64
		v := bucket.Decided
		if !lends || !n.fromOwn(now, req, &d) {
			d, seq, v = f.whole.try(n.table, now, &req.Request, req.Sync)
		}
		if v != bucket.Decided {
			p.to, p.cause = nobody, undecided(v)
			f.stick(req.Key, p.cause)
			continue
		}
		f.batch.Answers[p.index] = check.Answer{Decision: d, Source: check.Held, Holder: n.cfg.Name}
		if makesRoom(req.Verb) {
			n.madeRoom(now, req.Key)
		} else if !d.Allowed && n.lent(now, req.Key) {
			f.batch.Answers[p.index].Age = check.MaxDenied
		}
		p.done = true
		if req.Sync && seq > 0 {
			f.changes = append(f.changes, change{i, req.Key.Shard(n.cfg.Ring.Partitions), tenure, seq})
		}
	}
	if n.cfg.Clock() >= right {
		f.takeBack(r)
	}
}

// takeBack makes what was decided here pending again, as overslept does.
func (f *forwarding) takeBack(r *routing) {
	for _, i := range f.here {
		if p := &f.pending[i]; p.done {
			p.done = false
			f.unanswered(r, p, r.self, errOverslept)
		}
	}
	f.changes = f.changes[:0]
}

// confirmHere waits until copies have what checks of sync rules have charged here. One that
// is not confirmed in time is as one whose answer was lost: its charge stands.
func (f *forwarding) confirmHere(ctx context.Context, r *routing) {
	for _, c := range f.changes {
		if f.node.confirmed(ctx, c) {
			continue
		}
		p := &f.pending[c.index]
		p.done = false
		f.unanswered(r, p, r.self, fmt.Errorf("%w: %w", check.ErrAmbiguous, errUnconfirmed))
	}
	f.changes = f.changes[:0]
	held := 0
	for _, i := range f.here {
		if f.pending[i].done && f.batch.Answers[f.pending[i].index].Source == check.Held {
			held++
		}
	}
	f.node.stats.held.Add(uint64(held))
}
