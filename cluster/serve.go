package cluster

import (
	"context"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// Serve implements check.Handler: it decides what this node holds, if it has the right
// to, and nothing else. What it cannot decide just now, though nobody else can either, it
// answers with Later: without a holder if it has no right. Sync records are answered when a copy has
// their changes; those of which that is not so within CheckTimeout get a Reply
// without a Status, as if their answer were lost.
func (n *Node) Serve(from string, records []check.Record, replies []check.Reply) {
	r := n.routing.Load()
	until, now := n.right.Load(), n.cfg.Clock()
	right := now < until
	var changes []change          // only of sync records
	var stuck map[bucket.Key]bool // keys of which a record waits: those behind it wait too
	served, notHolder, later := 0, 0, 0
	for i := range records {
		rec, reply := &records[i], &replies[i]
		*reply = check.Reply{Holder: n.cfg.Name}
		var seq, tenure uint64
		if rec.Sync {
			tenure = n.tenure(rec.Key)
		}
		switch {
		case rec.GiveBack:
			// Asked of the node that charged, whoever holds the key by now.
			if !r.holds(rec.Key) {
				n.stats.giveBacksLost.Add(1)
			}
			n.held.giveBack(now, charge{from, rec.ID}, n.table)
			reply.Status = check.Decided
			served++
			continue
		case !decidable(&rec.Request):
			reply.Status = check.Invalid
		case !r.holds(rec.Key):
			reply.Status, reply.Holder = check.NotHolder, r.nameOf(r.holder(rec.Key))
			notHolder++
		case !right:
			reply.Status, reply.Holder = check.Later, ""
		case len(stuck) > 0 && stuck[rec.Key]:
			reply.Status = check.Later
		case rec.Hold:
			reply.Decision, seq, reply.Status = n.held.try(now, charge{from, rec.ID}, n.table, &rec.Request)
		default:
			reply.Decision, seq, reply.Status = n.try(now, rec)
		}
		switch reply.Status {
		case check.Decided:
			served++
			if rec.Sync && seq > 0 {
				changes = append(changes, change{i, r.partition(rec.Key), tenure, seq})
			}
		case check.Later:
			later++
			if stuck == nil {
				stuck = make(map[bucket.Key]bool)
			}
			stuck[rec.Key] = true
		}
	}
	if served > 0 && right && n.cfg.Clock() >= until {
		// The process was stopped in between, and another may decide these keys by now, whether
		// this one has the right again or not.
		takeBack(records, replies)
		changes = nil
	}
	n.stats.served.Add(uint64(served))
	n.stats.notHolder.Add(uint64(notHolder))
	n.stats.toldLater.Add(uint64(later))
	if changes != nil {
		n.confirmServed(changes, replies)
	}
}

// takeBack makes answers of decisions as if they had been lost. What was charged stands.
func takeBack(records []check.Record, replies []check.Reply) {
	for i := range replies {
		if replies[i].Status == check.Decided && !records[i].GiveBack {
			replies[i] = check.Reply{}
		}
	}
}

// try decides what another node has asked.
func (n *Node) try(now int64, rec *check.Record) (bucket.Decision, uint64, check.Status) {
	d, seq, v := tryOn(n.table, now, &rec.Request, rec.Sync)
	if v != bucket.Decided {
		return bucket.Decision{}, 0, check.Later
	}
	return d, seq, check.Decided
}

// confirmServed waits until copies have the changes, and takes back the answers to those
// of which that is not so in time.
func (n *Node) confirmServed(changes []change, replies []check.Reply) {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.CheckTimeout)
	defer cancel()
	for _, c := range changes {
		if !n.confirmed(ctx, c) {
			replies[c.index] = check.Reply{}
		}
	}
}

// decidable reports whether a request from another node, perhaps of another version,
// has all that a table needs.
func decidable(r *bucket.Request) bool {
	return r.Verb <= bucket.Reset && r.Cost >= 0 && r.Limits != nil
}
