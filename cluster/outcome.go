package cluster

import (
	"errors"
	"fmt"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// take reads what became of the records of this round. A reply without a Status is one
// that its node could not give in time, though it may have charged the record.
func (f *forwarding) take(r *routing) {
	for i := range f.pending {
		p := &f.pending[i]
		if !p.away {
			continue
		}
		lead := &f.pending[p.with]
		reply := part(&f.replies[lead.at], &f.records[lead.at], p.place, 1)
		err := lead.err
		if lead.ticket == nil {
			err = f.groups[f.group(p)].err
		}
		switch {
		case reply.Status != 0:
			f.answered(r, p, p.to, &reply)
		case err != nil:
			f.unanswered(r, p, p.to, err)
		default:
			f.unanswered(r, p, p.to, fmt.Errorf("%w: %w", check.ErrAmbiguous, errUnconfirmed))
		}
		if !p.done && p.forwards >= maxForwards {
			p.to = nobody
		}
	}
	f.noteRound()
}

// answered takes the reply of node to.
func (f *forwarding) answered(r *routing, p *pending, to int, reply *check.Reply) {
	n := f.node
	switch reply.Status {
	case check.Decided:
		f.batch.Answers[p.index] = check.Answer{Decision: reply.Decision, Source: check.Forwarded, Holder: reply.Holder}
		if reply.Lent {
			f.batch.Answers[p.index].Age = check.MaxDenied
		}
		p.done = true
		if f.age(p) == 0 {
			n.stats.forwarded.Add(1)
		}
		f.learn(p, reply)
		if f.whole != nil && reply.Allowed {
			f.whole.sent(r.nodes[to].addr, p.index)
		}
	case check.NotHolder:
		n.stats.redirected.Add(1)
		if p.relay { // the owner is not to be reached that way either
			p.hint, p.to, p.cause = "", 0, fmt.Errorf("the key's owner is not heard here, nor does node %s reach it", r.nodes[to].name)
			break
		}
		p.hint = reply.Holder
		p.cause = fmt.Errorf("node %s does not hold the key", r.nodes[to].name)
		if p.hint == "" || p.hint == r.nodes[to].name {
			p.to = nobody
		}
	case check.Later:
		n.stats.later.Add(1)
		p.hint, p.to = "", nobody
		if reply.Holder != r.nodes[to].name && reply.Holder != "" {
			p.hint, p.to = reply.Holder, 0
		}
		p.cause = fmt.Errorf("node %s: %w", r.nodes[to].name, errSealed)
		if now := n.cfg.Clock(); reply.Holder == "" && !n.mayDecide(now) {
			// Neither it nor this node has quorum: both are in a minority, or both have just lost it.
			if p.cause = errMinority; n.shares.When.AtOnce(now) {
				f.standApart(r, p)
			}
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
		if req := &f.batch.Requests[p.index]; makesRoom(req.Verb) {
			f.node.denials.Forget(f.node.cfg.Clock(), req.Key)
		}
		if f.whole != nil && to != r.self { // here there is a receipt
			f.whole.sent(r.nodes[to].addr, p.index)
		}
		if f.once || f.batch.Requests[p.index].Verb == bucket.Refund {
			f.giveUp(r, p)
		}
	}
}

func (f *forwarding) overloaded(p *pending) {
	f.batch.Answers[p.index] = check.Answer{Err: check.ErrOverloaded}
	f.node.stats.overloaded.Add(1)
	p.done = true
}

// giveUp answers p by its rule's on_failure.
func (f *forwarding) giveUp(r *routing, p *pending) {
	f.batch.Answers[p.index] = f.node.onFailure(r, &f.batch.Requests[p.index], f.whole, p.cause)
	p.done = true
}

// standApart answers p by its rule's on_partition.
func (f *forwarding) standApart(r *routing, p *pending) {
	f.batch.Answers[p.index] = f.node.onPartition(r, &f.batch.Requests[p.index], f.whole)
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

// noteRound notes what owners have decided in this round.
func (f *forwarding) noteRound() {
	locked, answers := false, &f.node.shares.Answers
	for i := range f.pending {
		p := &f.pending[i]
		if !p.away || !p.done {
			continue
		}
		answer := &f.batch.Answers[p.index]
		if answer.Source != check.Forwarded || answer.Age != 0 && f.age(p) > 0 {
			continue // or it is such an answer
		}
		if !locked {
			locked = true
			answers.Lock()
		}
		answers.NoteLocked(f.sent, &f.batch.Requests[p.index].Request, &answer.Decision)
	}
	if locked {
		answers.Unlock()
	}
}
