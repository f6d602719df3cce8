package cluster

import (
	"context"
	"fmt"
	"sync"

	"github.com/sluice-project/sluice/internal/check"
)

// pack sorts what is pending by node and writes the records.
func (f *forwarding) pack(r *routing) {
	f.groups = append(f.groups[:0], make([]group, len(r.nodes))...)
	f.busy, f.here = f.busy[:0], f.here[:0]
	total := 0
	for i := range f.pending {
		switch to := f.pending[i].to; to {
		case nobody:
		case r.self:
			f.here = append(f.here, i)
		default:
			if f.groups[to].n == 0 {
				f.busy = append(f.busy, to)
			}
			f.groups[to].n++
			total++
		}
	}
	f.records, f.replies, f.places = grow(f.records, total), grow(f.replies, total), grow(f.places, total)
	first := 0
	for _, to := range f.busy {
		f.groups[to].first = first
		first += f.groups[to].n
		f.groups[to].n = 0 // counted again below
	}
	for i := range f.pending {
		p := &f.pending[i]
		if p.to == nobody || p.to == r.self {
			continue
		}
		p.forwards++
		g := &f.groups[p.to]
		at := g.first + g.n
		g.n++
		f.places[at] = i
		f.records[at] = check.Record{Request: f.batch.Requests[p.index].Request}
		if f.whole != nil {
			f.whole.mark(&f.records[at], p.index)
		}
	}
	f.node.stats.forwards.Add(uint64(total))
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
	call := func(to int) {
		g := &f.groups[to]
		end := g.first + g.n
		if r.nodes[to].addr == "" {
			clear(f.replies[g.first:end])
			g.err = fmt.Errorf("%w: member %s has no address", check.ErrUnsent, r.nodes[to].name)
			return
		}
		g.err = f.node.cfg.Peers.Call(ctx, r.nodes[to].addr, f.records[g.first:end], f.replies[g.first:end])
	}
	elsewhere := f.busy
	if len(f.here) == 0 && len(f.busy) > 0 {
		// Nothing to do meanwhile: the last call, mostly the only one, needs no goroutine.
		elsewhere = f.busy[:len(f.busy)-1]
	}
	var wg sync.WaitGroup
	for _, to := range elsewhere {
		wg.Go(func() { call(to) })
	}
	if len(f.here) > 0 {
		f.decideHere()
	} else if len(f.busy) > 0 {
		call(f.busy[len(f.busy)-1])
	}
	wg.Wait()
	for _, to := range f.busy {
		f.take(r, to)
	}
	f.sift()
}

// decideHere decides what this node holds.
func (f *forwarding) decideHere() {
	n := f.node
	now := n.cfg.Clock()
	for _, i := range f.here {
		p := &f.pending[i]
		req := &f.batch.Requests[p.index]
		f.batch.Answers[p.index] = check.Answer{
			Decision: f.whole.do(n.table, now, &req.Request),
			Source:   check.Held, Holder: n.cfg.Name,
		}
		p.done = true
	}
	n.stats.held.Add(uint64(len(f.here)))
}
