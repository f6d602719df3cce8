package cluster

import (
	"context"
	"errors"
	"time"

	"github.com/sluicecluster/sluice/cluster/breaker"
	"github.com/sluicecluster/sluice/internal/check"
)

// A caller with a short deadline, such as the 20 ms of Envoy, gets its answer by on_failure while
// an owner hangs or is taken over. The circuits spare the next ones the wait: see package breaker.

var errNotAsked = errors.New("the key's owner has just not answered in time, and is not asked again for up to 100 ms")

// targets returns what must answer for p to be answered: the owner of its key unless that is this
// node and, if it is of a sync rule, the owner with the replica of the partition.
func (f *forwarding) targets(r *routing, p *pending) []breaker.Target {
	req := &f.batch.Requests[p.index]
	partition := r.partition(req.Key)
	owner := r.ownerOf(partition)
	var all []breaker.Target
	if owner != r.nodes[r.self].peer() {
		all = append(all, breaker.Target{Owner: owner, Partition: breaker.AllPartitions})
	}
	if req.Sync {
		if len(all) > 0 {
			all = append(all, breaker.Target{Owner: owner, Partition: breaker.SyncPartitions})
		}
		all = append(all, breaker.Target{Owner: owner, Partition: partition})
	}
	return all
}

// mayAsk reports whether p, which has a short deadline, may be sent to the owner of its key.
func (f *forwarding) mayAsk(r *routing, p *pending) bool {
	return p.forwards > 0 || f.node.circuits.Allow(f.sent, f.left, f.targets(r, p)...)
}

// decideTime is more than an owner needs for a check of a batch. A large batch that comes too late
// says nothing of small ones.
const decideTime = 10 * time.Microsecond

// breakCircuit notes that p has waited in vain, and reports whether that opens a circuit. That an
// owner has answered, and does not decide yet, does not count, nor does the time before this owner
// was asked.
func (f *forwarding) breakCircuit(p *pending) bool {
	r := f.routed
	if r == nil || p.home {
		return false
	}
	now, waited := f.node.cfg.Clock(), f.left
	if r.silent(f.batch.Requests[p.index].Key) == nil {
		silent := errors.Is(p.cause, check.ErrUnsent) || errors.Is(p.cause, check.ErrAmbiguous) || errors.Is(p.cause, context.DeadlineExceeded)
		if !silent || p.asked.since == 0 {
			return false
		}
		waited = min(waited, time.Duration(now-p.asked.since)) // more has passed if this process was stopped
	}
	waited -= time.Duration(len(f.batch.Requests)) * decideTime
	// Without an answer for a sync rule, either the owner or the replica is silent: the replica, if
	// the owner answers other checks.
	all := f.targets(r, p)
	if waited <= 0 || len(all) == 0 {
		return false
	}
	t := all[len(all)-1]
	f.node.circuits.Fail(now, waited, t)
	if len(all) == 3 && f.node.circuits.Silent(t.Owner, now-int64(waited)) {
		f.node.circuits.Fail(now, waited, all[1])
	}
	return true
}

// asked says since when, by the node's clock, an owner has not replied to a check. by is the
// routing by which it was the owner.
type asked struct {
	since int64 // 0 if it was not asked, or has replied
	by    *routing
}

// ask notes that p, which has a deadline of its caller, is sent to its owner, or decided here. Of
// others a batch has many, and one that has waited for CheckTimeout says nothing of now.
func (f *forwarding) ask(r *routing, p *pending) {
	part, a := r.partition(f.batch.Requests[p.index].Key), &p.asked
	switch {
	case !p.relay && p.to != int(r.owners[part]): // another node says that it owns the key
		*a = asked{}
	case a.since == 0, a.by != r && a.by.ownerOf(part) != r.ownerOf(part):
		*a = asked{f.sent, r}
	}
}

// closeCircuits notes that the owner has decided p in a round by r.
func (f *forwarding) closeCircuits(r *routing, p *pending) {
	if f.node.circuits.Open() && !p.home && (p.relay || p.to == r.owner(f.batch.Requests[p.index].Key)) {
		f.node.circuits.OK(f.node.cfg.Clock(), f.targets(r, p)...)
	}
}

// retainCircuits drops the circuits of processes that own nothing by r.
func (n *Node) retainCircuits(r *routing) {
	n.circuits.Retain(func(t breaker.Target) bool {
		if t.Partition >= 0 {
			return r.ownerOf(t.Partition) == t.Owner
		}
		for p := range r.owners {
			if r.ownerOf(p) == t.Owner {
				return true
			}
		}
		return false
	})
}
