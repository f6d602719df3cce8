package cluster

import (
	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// Serve implements check.Handler: it decides what this node holds under its own
// routing, and nothing else.
func (n *Node) Serve(from string, records []check.Record, replies []check.Reply) {
	r := n.routing.Load()
	now := n.cfg.Clock()
	served, notHolder := 0, 0
	for i := range records {
		rec, reply := &records[i], &replies[i]
		*reply = check.Reply{Holder: n.cfg.Name}
		switch {
		case rec.GiveBack:
			// Asked of the node that charged, whoever holds the key by now.
			n.held.giveBack(now, charge{from, rec.ID}, n.table)
			reply.Status = check.Decided
			served++
		case !decidable(&rec.Request):
			reply.Status = check.Invalid
		case !r.holds(rec.Key):
			reply.Status, reply.Holder = check.NotHolder, r.table.Owner(r.partition(rec.Key))
			notHolder++
		case rec.Hold:
			reply.Decision, reply.Status = n.held.do(now, charge{from, rec.ID}, n.table, &rec.Request)
			served++
		default:
			reply.Decision, reply.Status = n.table.Do(now, &rec.Request), check.Decided
			served++
		}
	}
	n.stats.served.Add(uint64(served))
	n.stats.notHolder.Add(uint64(notHolder))
}

// decidable reports whether a request from another node, perhaps of another version,
// has all that a table needs.
func decidable(r *bucket.Request) bool {
	return r.Verb <= bucket.Reset && r.Cost >= 0 && r.Limits != nil
}
