package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/tracing"
)

// call sends the records of one group, and fills in their replies.
func (f *forwarding) call(ctx context.Context, r *routing, to int) {
	g := &f.groups[to]
	records, replies := f.records[g.first:g.first+g.n], f.replies[g.first:g.first+g.n]
	name, addr := f.addr(r, to/2)
	if addr == "" {
		clear(replies)
		if g.err = errCutOff; to/2 < len(r.nodes) {
			g.err = fmt.Errorf("%w: member %s has no address", check.ErrUnsent, name)
		}
		return
	}
	span := f.node.startSpan(f.batch.Trace, addr, records)
	g.err = f.node.cfg.Peers.Call(ctx, addr, records, replies)
	endSpan(span, replies, g.err)
	f.node.stats.forwarding.Observe(time.Duration(f.node.cfg.Clock() - f.sent))
}

// startSpan begins the span of a call to the node at addr, and sets the trace of the records. It returns nil if at is nil.
func (n *Node) startSpan(at *check.Trace, addr string, records []check.Record) *tracing.Span {
	if at == nil {
		return nil
	}
	span := n.cfg.Tracer.Ask("sluice.forward", at)
	checks := int64(0)
	for i := range records {
		records[i].Trace = span.Trace()
		checks += max(1, records[i].Times)
	}
	span.Text("sluice.address", addr)
	span.Int("sluice.records", int64(len(records)))
	span.Int("sluice.checks", checks)
	return span
}

// endSpan ends the span of a call that has returned replies and err.
func endSpan(span *tracing.Span, replies []check.Reply, err error) {
	if span == nil {
		return
	}
	notOwner, notReady := 0, 0
	for i := range replies {
		switch replies[i].Status {
		case check.NotOwner:
			notOwner++
		case check.NotReady:
			notReady++
		}
	}
	span.Count("sluice.not_owner", notOwner)
	span.Count("sluice.not_ready", notReady)
	switch {
	case errors.Is(err, check.ErrUnsent):
		span.Fail("not sent")
	case errors.Is(err, check.ErrOverloaded):
		span.Fail("overloaded")
	case err != nil:
		span.Fail("not answered")
	}
	span.End()
}

// takeReplies takes the replies of this round. A reply without a Status means that its node could not answer in time, and may
// have charged the record.
func (f *forwarding) takeReplies(r *routing) {
	for i := range f.pending {
		p := &f.pending[i]
		if !p.remote {
			continue
		}
		reply, err := &f.replies[p.at], f.groups[f.groupOf(p)].err
		switch {
		case reply.Status != 0:
			f.takeReply(r, p, reply)
		case err != nil:
			f.takeError(r, p, p.to, err)
		default:
			f.takeError(r, p, p.to, errUnconfirmed)
		}
		if !p.done && p.forwards >= maxForwards {
			p.to = nextAttempt
		}
	}
	f.rememberAnswers()
}

// takeReply takes the reply to p.
func (f *forwarding) takeReply(r *routing, p *pending, reply *check.Reply) {
	n, req, to := f.node, &f.batch.Requests[p.index], &node{name: "of the home region"}
	if p.to < len(r.nodes) {
		to = &r.nodes[p.to]
	}
	p.asked = asked{}
	switch reply.Status {
	case check.Decided:
		a := &f.batch.Answers[p.index]
		*a = check.Answer{Decision: reply.Decision, Source: check.Forwarded, Owner: reply.Owner}
		if reply.LeasedOut {
			a.Age = check.DoNotCache
		}
		p.done = true
		f.closeCircuits(r, p)
		n.stats.forwarded.Add(1)
		if req.Reservation != nil {
			req.Reservation.Reserved = reply.Reserved()
		}
		if invalidates(req.Verb) {
			n.denials.Forget(n.cfg.Clock(), req.Key)
		} else if f.undo == nil { // in an atomic batch, charges of other checks that led to a denial may be given back
			n.cacheDenial(f.sent, &req.Request, req.NoDenialCache, reply)
		}
		if f.undo.mayUndo(req.Verb) && reply.Allowed && !p.relay {
			f.undo.remote = append(f.undo.remote, remoteCharge{to.addr, p.index})
		}
	case check.NotOwner:
		n.stats.redirected.Add(1)
		if p.relay { // that node does not reach the owner either
			p.hint, p.to, p.cause = "", notRouted, fmt.Errorf("the key's owner is not heard here, nor does node %s reach it", to.name)
			break
		}
		p.hint = reply.Owner
		p.cause = fmt.Errorf("node %s does not own the key", to.name)
		if p.hint == "" || p.hint == to.name {
			p.to = nextAttempt
		}
	case check.AtHome:
		p.home, p.to, p.hint = true, notRouted, ""
		if req.Home() == bucket.HomeAuto {
			f.redirected(p, reply.Owner)
		}
		p.cause = fmt.Errorf("node %s has too little leased of the home region", to.name)
	case check.NotReady:
		n.stats.notReady.Add(1)
		p.hint, p.to = "", nextAttempt
		if reply.Owner != to.name && reply.Owner != "" {
			p.hint, p.to = reply.Owner, notRouted
		}
		p.cause = fmt.Errorf("node %s: %w", to.name, errSealed)
		if req.Home() != "" && n.manyRegions() {
			p.cause = errNoRole // as far as that node knows: a share would be admitted twice
		}
		if now := n.cfg.Clock(); reply.Owner == "" && !n.mayDecide(now) {
			// Neither that node nor this one has quorum: both are in a minority, or both have just lost it.
			if p.cause = errMinority; n.shares.When.AtOnce(now) {
				f.fallback(r, p)
			}
		}
	case check.Overloaded:
		f.overloaded(p)
	default: // another request would get the same reply
		p.cause = fmt.Errorf("node %s cannot decide this check: it does not know its limits", to.name)
		if p.home {
			n.stats.homeRejected.Add(1)
			p.cause = errOtherRules
		}
		f.fallback(r, p)
	}
}

// takeError takes the error of p, which was sent to node to, or was decided by this node without effect.
func (f *forwarding) takeError(r *routing, p *pending, to int, err error) {
	p.cause, p.hint, p.done = err, "", false
	switch req := &f.batch.Requests[p.index]; {
	case errors.Is(err, check.ErrOverloaded):
		f.overloaded(p)
	case err == errCutOff:
		f.fallback(r, p)
	case errors.Is(err, check.ErrUnsent): // not charged
	default:
		f.node.stats.ambiguous.Add(1)
		if invalidates(req.Verb) {
			f.node.denials.Forget(f.node.cfg.Clock(), req.Key)
		}
		if f.undo.mayUndo(req.Verb) && to != r.self && to < len(r.nodes) { // u.local has a charge by this node
			f.undo.remote = append(f.undo.remote, remoteCharge{r.nodes[to].addr, p.index})
		}
		if f.once && req.Once == 0 || req.Verb == bucket.Refund && req.Once == 0 {
			f.fallback(r, p)
		}
	}
}

func (f *forwarding) overloaded(p *pending) {
	f.batch.Answers[p.index] = check.Answer{Err: check.ErrOverloaded}
	f.node.stats.overloaded.Add(1)
	p.done = true
}

// rememberAnswers remembers the decisions of owners in this round: shares are computed from them.
func (f *forwarding) rememberAnswers() {
	locked, answers := false, &f.node.shares.Answers
	for i := range f.pending {
		p := &f.pending[i]
		answer := &f.batch.Answers[p.index]
		if !p.remote || !p.done || answer.Source != check.Forwarded || f.batch.Requests[p.index].Reservation != nil {
			continue
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
