package cluster

import (
	"context"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/lease"
	"github.com/sluice-project/sluice/internal/check"
)

// leasePeriod is how often leases are looked through for what is not used any more.
const leasePeriod = 20 * time.Millisecond

// borrows reports whether req may be answered from a lease: it only asks, and asks for nothing that a counter alone
// can say.
func borrows(req *check.Request) bool {
	return req.Verb == bucket.Check && req.Cost > 0 && !req.Fresh && !req.Drain && !req.NoDelay
}

// recalled answers check i of b, which another node holds, by what this one knows, if it can: a denial
// that it remembers, or a lease.
func (n *Node) recalled(r *routing, now int64, b *check.Batch, i int) bool {
	return !r.holds(b.Requests[i].Key) && (n.remembered(now, b, i) || n.leased(now, b, i))
}

// leased answers check i of b from a lease, if there is one. Either way the check counts as demand, and may be the
// one that makes the key hot, or the lease too small: then more is asked for, while the check goes its way.
func (n *Node) leased(now int64, b *check.Batch, i int) bool {
	req, a := &b.Requests[i], &b.Answers[i]
	if !borrows(req) {
		return false
	}
	var d bucket.Decision
	v, holder, ask, asks := n.book.Take(now, &req.Request, lease.Borrower, &d)
	if asks {
		n.leasing.call()
		n.returning.Go(func() { n.borrow(ask) })
	}
	if v == lease.Ask {
		return false
	}
	*a = check.Answer{Decision: d, Source: check.Leased, Holder: holder}
	if v == lease.Denied {
		a.Age = check.MaxDenied // there may be more the next time it is asked
	}
	n.stats.leased.Add(1)
	return true
}

// borrow asks the holder for a lease.
func (n *Node) borrow(ask lease.Request) {
	r, sent := n.routing.Load(), n.cfg.Clock()
	to := r.holder(ask.Key)
	switch {
	case to == r.self && n.mayDecide(sent):
		n.borrowOwn(sent, &ask)
		return
	case to == nobody || to == r.self || r.nodes[to].addr == "":
		n.book.Failed(sent, &ask)
		return
	}
	rec := check.Record{Lend: true, Want: ask.Want, Rate: ask.Rate, For: ask.For, ID: ask.Done, Sync: !ask.Transient}
	rec.Key, rec.Limits, rec.Transient, rec.Reserve, rec.DenyLost = ask.Key, ask.Limits, ask.Transient, ask.Reserve, ask.DenyLost
	var replies [1]check.Reply
	// What comes later than the lease lasts is of no use.
	ctx, cancel := context.WithTimeout(context.Background(), ask.For)
	defer cancel()
	err := n.cfg.Peers.Call(ctx, r.nodes[to].addr, []check.Record{rec}, replies[:])
	now, reply := n.cfg.Clock(), &replies[0]
	if err != nil || reply.Status != check.Decided || reply.Granted < 0 {
		n.book.Failed(now, &ask)
		return
	}
	n.shares.Answers.Note(sent, &rec.Request, &reply.Decision)
	n.book.Granted(sent, now, &ask, &lease.Answer{
		ID: reply.Grant, Units: reply.Granted, For: min(reply.For, ask.For), Decision: reply.Decision,
		RetryAfter: reply.RetryAfter, Holder: reply.Holder,
	})
	n.leasing.call() // what came too late for its line goes back
	if reply.Granted > 0 {
		n.denials.Forget(now, ask.Key)
	}
}

// tendLeases returns what is not used of leases, until ctx ends, and then all.
func (n *Node) tendLeases(ctx context.Context) {
	defer n.leasing.stop()
	for {
		select {
		case <-ctx.Done():
			n.giveBackLeases(n.book.Close())
			return
		case <-n.leasing.woken:
			n.leasing.begin()
		case <-n.leasing.due:
			now := n.cfg.Clock()
			n.demands.Sweep(now)
			n.giveBackLeases(n.book.Tick(now))
			n.leasing.done(n.book.Hot() || n.demands.Any())
		}
	}
}

// giveBackLeases returns units to those who hold their keys now. What gets lost on the way ends by itself.
func (n *Node) giveBackLeases(back []lease.Return) {
	if len(back) == 0 {
		return
	}
	r, now := n.routing.Load(), n.cfg.Clock()
	records := make(map[string][]check.Record)
	for _, b := range back {
		to := r.holder(b.Key)
		switch {
		case to == r.self && n.mayDecide(now):
			n.takeReturn(now, b.Key, b.ID, b.Unspent)
		case to != nobody && to != r.self:
			rec := check.Record{Return: true, ID: b.ID, Want: b.Unspent}
			rec.Key = b.Key
			records[r.nodes[to].addr] = append(records[r.nodes[to].addr], rec)
		}
	}
	for addr, list := range records {
		if addr != "" {
			n.returning.Go(func() { n.sendBack(addr, list) })
		}
	}
}

func (n *Node) sendBack(addr string, records []check.Record) {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.Lease.Life)
	defer cancel()
	n.cfg.Peers.Call(ctx, addr, records, make([]check.Reply, len(records)))
}
