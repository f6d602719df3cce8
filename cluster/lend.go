package cluster

import (
	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/lease"
	"github.com/sluice-project/sluice/internal/check"
)

// The holder's side of leases: who asks gets a part of what is left, by its part in the demand.

// lend answers a record that asks for a lease. A grant is answered when a copy has it, so that what is spent of it
// elsewhere is charged whatever becomes of this node.
func (n *Node) lend(now int64, from string, rec *check.Record, reply *check.Reply) (seq uint64) {
	ask := lease.Request{
		Key: rec.Key, Limits: rec.Limits, Transient: rec.Transient, DenyLost: rec.DenyLost, Reserve: max(0, rec.Reserve), Want: rec.Want, Rate: rec.Rate,
		For: rec.For, Done: rec.ID,
	}
	g, seq, v := n.lendTo(now, from, &ask)
	if v != bucket.Decided {
		reply.Status = check.Later
		return 0
	}
	reply.Status, reply.Decision, reply.Lent = check.Decided, g.Decision, true
	reply.Granted, reply.Grant, reply.For, reply.RetryAfter = g.Units, g.ID, g.For, g.RetryAfter
	if g.Units == 0 {
		return 0
	}
	return seq
}

// lendTo lends of a key that this node holds.
func (n *Node) lendTo(now int64, boot string, ask *lease.Request) (bucket.Grant, uint64, bucket.Verdict) {
	if ask.Done != 0 {
		n.table.Return(now, ask.Key, ask.Done, 0)
	}
	part, whole := n.demands.Note(now, ask.Key, boot, ask.Reserve, ask.Rate)
	n.leasing.call()
	g, seq, v := n.table.Lend(now, &bucket.Loan{
		Key: ask.Key, Limits: ask.Limits, Want: ask.Want, Part: part, Whole: whole, For: ask.For, Transient: ask.Transient, DenyLost: ask.DenyLost,
		Reserve: ask.Reserve,
	})
	n.stats.lent.Add(uint64(g.Units))
	return g, seq, v
}

// takeReturn takes back what is left of a lease.
func (n *Node) takeReturn(now int64, key bucket.Key, id uint64, unspent int64) bucket.Verdict {
	back, _, v := n.table.Return(now, key, id, unspent)
	n.stats.lentBack.Add(uint64(back))
	if back > 0 {
		n.madeRoom(now, key)
	}
	return v
}

// lent reports whether a denial of k, which this node holds, may end at any moment because something that is lent
// comes back.
func (n *Node) lent(now int64, k bucket.Key) bool { return n.demands.Live(now, k) }

// fromOwn decides req, whose key this node holds, by a lease of its own while others borrow of the key: so all get
// of it by their demand. It reports false where the counter itself is to be asked.
func (n *Node) fromOwn(now int64, req *check.Request, d *bucket.Decision) bool {
	if !borrows(req) || req.Sync || !n.demands.Live(now, req.Key) {
		return false
	}
	v, _, ask, asks := n.book.Take(now, &req.Request, lease.Owner, d)
	if asks {
		n.borrowOwn(now, &ask)
		if v != lease.Spent {
			*d = bucket.Decision{}
			v, _, _, _ = n.book.Take(now, &req.Request, lease.Again, d)
		}
	}
	return v != lease.Ask
}

// borrowOwn borrows of a key that this node holds.
func (n *Node) borrowOwn(now int64, ask *lease.Request) {
	g, _, v := n.lendTo(now, n.cfg.Boot, ask)
	if v != bucket.Decided {
		n.book.Failed(now, ask)
		return
	}
	n.book.Granted(now, now, ask, &lease.Answer{
		ID: g.ID, Units: g.Units, For: g.For, Decision: g.Decision, RetryAfter: g.RetryAfter, Holder: n.cfg.Name,
	})
}
