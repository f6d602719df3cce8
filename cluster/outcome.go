package cluster

import (
	"errors"
	"fmt"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// take reads what became of the records for node to.
func (f *forwarding) take(r *routing, to int) {
	g := &f.groups[to]
	for at := g.first; at < g.first+g.n; at++ {
		p := &f.pending[f.places[at]]
		if g.err != nil && f.replies[at].Status == 0 {
			f.unanswered(r, p, to, g.err)
		} else {
			f.answered(r, p, to, &f.replies[at])
		}
		if !p.done && p.forwards >= maxForwards {
			p.to = nobody
		}
	}
}

// answered takes the reply of node to.
func (f *forwarding) answered(r *routing, p *pending, to int, reply *check.Reply) {
	n := f.node
	switch reply.Status {
	case check.Decided:
		f.batch.Answers[p.index] = check.Answer{Decision: reply.Decision, Source: check.Forwarded, Holder: reply.Holder}
		p.done = true
		n.stats.forwarded.Add(1)
		if f.whole != nil && reply.Allowed {
			f.whole.sent(r.nodes[to].addr, p.index)
		}
	case check.NotHolder:
		n.stats.redirected.Add(1)
		p.hint = reply.Holder
		p.cause = fmt.Errorf("node %s does not hold the key", r.nodes[to].name)
		if p.hint == "" || p.hint == r.nodes[to].name {
			p.to = nobody
		}
	case check.Overloaded:
		f.overloaded(p)
	default:
		// Asking again would be answered alike.
		p.cause = fmt.Errorf("node %s cannot decide this check: it does not know its limits", r.nodes[to].name)
		f.giveUp(r, p)
	}
}

// unanswered takes the error of a call to node to.
func (f *forwarding) unanswered(r *routing, p *pending, to int, err error) {
	p.cause, p.hint = err, ""
	switch {
	case errors.Is(err, check.ErrOverloaded):
		f.overloaded(p)
	case errors.Is(err, check.ErrUnsent):
		// As if never asked.
	default:
		f.node.stats.ambiguous.Add(1)
		if f.whole != nil {
			f.whole.sent(r.nodes[to].addr, p.index)
		}
		if f.batch.Requests[p.index].Verb == bucket.Refund {
			f.giveUp(r, p)
		}
	}
}

func (f *forwarding) overloaded(p *pending) {
	f.batch.Answers[p.index] = check.Answer{Err: check.ErrOverloaded}
	f.node.stats.overloaded.Add(1)
	p.done = true
}

// giveUp answers p without a holder.
func (f *forwarding) giveUp(r *routing, p *pending) {
	f.batch.Answers[p.index] = f.node.onFailure(r, &f.batch.Requests[p.index], f.whole, p.cause)
	p.done = true
}

// sift keeps what is still pending.
func (f *forwarding) sift() {
	kept := f.pending[:0]
	for _, p := range f.pending {
		if !p.done {
			kept = append(kept, p)
		}
	}
	clear(f.pending[len(kept):])
	f.pending = kept
}
