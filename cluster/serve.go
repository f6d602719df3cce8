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
	r, t := n.routing.Load(), n.newTurn()
	var changes []change // only of sync records
	served, notHolder, later := 0, 0, 0
	relays := false
	for i := range records {
		rec, reply := &records[i], &replies[i]
		*reply = check.Reply{Holder: n.cfg.Name}
		t.look(context.Background())
		var seq, term uint64
		if rec.Sync {
			term = n.term(rec.Key)
		}
		switch {
		case rec.GiveBack:
			// Asked of the node that charged, whoever holds the key by now.
			if !r.holds(rec.Key) {
				n.stats.giveBacksLost.Add(1)
			}
			n.held.giveBack(t.now, charge{from, rec.ID}, n.table)
			n.madeRoom(t.now, rec.Key)
			reply.Status = check.Decided
			served++
			continue
		case !decidable(rec):
			reply.Status = check.Invalid
		case rec.Relay && !r.holds(rec.Key) && r.relays(from, rec.Key):
			relays = true
			continue
		case !r.holds(rec.Key):
			reply.Status, reply.Holder = check.NotHolder, r.nameOf(r.holder(rec.Key))
			notHolder++
		case !t.quorum():
			reply.Status, reply.Holder = check.Later, ""
		case t.late, t.waits(rec.Key) != nil:
			reply.Status = check.Later
		case rec.Lend:
			seq = n.lend(t.now, from, rec, reply)
		case rec.Return:
			reply.Status = check.Decided
			if n.takeReturn(t.now, rec.Key, rec.ID, rec.Want) != bucket.Decided {
				reply.Status = check.Later
			}
		case rec.Hold:
			reply.Decision, seq, reply.Status = n.held.try(t.now, charge{from, rec.ID}, n.table, &rec.Request)
		default:
			seq = n.try(t.now, rec, reply)
		}
		switch reply.Status {
		case check.Decided:
			served++
			denied := rec.Verb == bucket.Check && !rec.Hot() && !reply.Allowed || reply.Denial != nil || rec.Many() && reply.Granted == 0
			if leased := t.decided(rec.Verb, rec.Key, denied); leased {
				reply.Lent = true
			} else if denied {
				n.refused.denied(t.now, rec.Key)
			}
			if rec.Sync && seq > 0 {
				changes = append(changes, change{i, r.partition(rec.Key), term, seq})
			}
		case check.Later:
			later++
			t.stick(rec.Key, bucket.Sealed)
		}
	}
	if served > 0 && t.quorum() && t.overslept() {
		takeBack(records, replies)
		changes = nil
	}
	n.stats.served.Add(uint64(served))
	n.stats.notHolder.Add(uint64(notHolder))
	n.stats.toldLater.Add(uint64(later))
	if relays {
		n.relay(r, from, records, replies)
	}
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

// try decides what another node has asked, and returns the number of the change that is to be
// confirmed, 0 if none.
func (n *Node) try(now int64, rec *check.Record, reply *check.Reply) (seq uint64) {
	v, charged := bucket.Decided, true
	if rec.Many() {
		var s bucket.Series
		s, charged, seq, v = n.table.TryTimes(now, &rec.Request, rec.Times)
		reply.Granted, reply.Decision = s.Granted, s.Last
		switch {
		case s.Granted == 0:
			reply.Decision = s.Denial
		case s.Granted < rec.Times:
			denial := s.Denial
			reply.Denial = &denial
		}
	} else {
		reply.Decision, seq, v = tryOn(n.table, now, &rec.Request, rec.Sync)
	}
	if v != bucket.Decided {
		*reply = check.Reply{Holder: reply.Holder, Status: check.Later}
		return 0
	}
	reply.Status = check.Decided
	if !charged {
		seq = 0
	}
	return seq
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

// decidable reports whether a record of another node, perhaps of another version, has all
// that a table needs.
func decidable(rec *check.Record) bool {
	r := &rec.Request
	switch {
	case rec.Return:
		return rec.Want >= 0
	case r.Verb > bucket.Reset || r.Cost < 0 || r.Limits == nil || rec.Times < 0:
		return false
	case rec.Lend:
		return rec.Want > 0
	case rec.Many():
		return r.Verb == bucket.Check && r.Cost > 0 && !r.Drain && !rec.Hold && rec.Times <= bucket.MaxTimes && r.Limits.Repeatable()
	}
	return true
}
