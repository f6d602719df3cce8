package cluster

import (
	"context"
	"math"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// Decide implements check.Decider. It fills in b.Answers, which must have the length of b.Requests. Checks of one key are
// charged in the order of the batch.
//
// A retry after a lost response may charge a check twice and never admits it twice. That holds for verb Charge too, and for
// checks of sync rules whose charge was not confirmed. A Refund whose response was lost is not retried, because a second one
// would admit more; it gets check.ErrNoOwner. With Once, both are made once and retried.
func (n *Node) Decide(ctx context.Context, b *check.Batch) {
	if b.Detached {
		n.decideDetached(ctx, b)
		return
	}
	if b.AllOrNothing && len(b.Requests) > 1 {
		n.decideAtomic(ctx, b)
		return
	}
	r := n.routing.Load()
	for i := range b.Requests {
		if q := &b.Requests[i]; !r.owns(q.Key) || q.Sync || q.Eventual || n.away(&q.Request) != "" {
			n.forward(ctx, b, nil)
			return
		}
	}
	t := n.newLocalRun()
	if !t.quorum() {
		n.forward(ctx, b, nil)
		return
	}
	leases := n.demands.Keys() > 0 && noneInvalidates(b)
	var f *forwarding // of the undecided checks, mostly none
	for i := range b.Requests {
		var cause error
		if t.checkClock(ctx); t.late {
			cause = context.DeadlineExceeded
		} else if _, cause = t.decide(&b.Requests[i], nil, leases, &b.Answers[i]); cause == nil {
			continue
		}
		if f == nil {
			f = n.newForwarding(b, nil)
		}
		f.pending = append(f.pending, pending{index: i, to: nextAttempt, cause: cause})
	}
	lostQuorum := t.lostQuorum()
	if lostQuorum { // no decision of this run counts
		if f == nil {
			f = n.newForwarding(b, nil)
		}
		f.discardDecisions(r)
	} else {
		decided := len(b.Requests)
		if f != nil {
			decided -= len(f.pending)
		}
		n.stats.owned.Add(uint64(decided))
	}
	switch {
	case f == nil:
	case t.late && !lostQuorum:
		f.fail(r, context.DeadlineExceeded)
		f.release()
	default:
		n.finish(ctx, f)
	}
}

// decideDetached decides a detached batch within CheckTimeout, by a goroutine if its caller has a deadline.
func (n *Node) decideDetached(ctx context.Context, b *check.Batch) {
	own, free := *b, context.WithoutCancel(ctx)
	own.Detached = false
	if _, ok := ctx.Deadline(); !ok {
		n.Decide(free, &own)
		return
	}
	bounded, _, cancel := n.bounded(ctx)
	defer cancel()
	done := make(chan struct{})
	n.background.Go(func() {
		n.Decide(free, &own)
		close(done)
	})
	select {
	case <-done:
	case <-bounded.Done():
	}
}

// discardDecisions treats all checks of the batch as if the responses to them had been lost.
func (f *forwarding) discardDecisions(r *routing) {
	f.pending = f.pending[:0]
	for i := range f.batch.Requests {
		f.batch.Answers[i] = check.Answer{}
		f.pending = append(f.pending, pending{index: i, to: notRouted})
		f.takeError(r, &f.pending[i], r.self, errLostQuorum)
	}
	f.compact()
}

// clockEvery is the number of checks that a localRun decides between two readings of the clock.
const clockEvery = 64

// localRun decides checks that this node owns, all at one instant: checks of clients, or records of other nodes.
type localRun struct {
	node   *Node
	now    int64
	until  int64 // this node has had quorum without a gap since now, and has it until then
	checks int
	late   bool // the caller no longer waits for the rest
	// roles is until when the region plays the roles that decisions of this run were made under.
	roles int64
	// blocked has the keys with an undecided check, with the reasons. Later checks of such a key stay undecided too, to keep
	// their order.
	blocked map[bucket.Key]error
}

func (n *Node) newLocalRun() localRun {
	return localRun{node: n, until: n.quorumUntil.Load(), now: n.cfg.Clock(), roles: math.MaxInt64}
}

// quorum reports whether the node has quorum, without which it decides nothing.
func (t *localRun) quorum() bool { return t.now < t.until }

// checkClock must be called before each check. It reads the clock once per clockEvery checks.
func (t *localRun) checkClock(ctx context.Context) {
	if t.checks++; t.checks%clockEvery != 0 {
		return
	}
	at := t.node.cfg.Clock()
	t.late = t.late || ctx.Err() != nil || at-t.now >= int64(t.node.cfg.CheckTimeout)
	if at < t.until { // a renewal before the end leaves no gap
		t.until = max(t.until, t.node.quorumUntil.Load())
	}
}

// lostQuorum reports whether quorum, or a role of the region, may have been lost during the run, because the process was stopped: another node may own
// these keys by now, even if quorum was regained. The decisions must then be treated as if their responses had been lost; their
// charges stand.
func (t *localRun) lostQuorum() bool { return t.node.cfg.Clock() >= min(t.until, t.roles) }

// decide decides a check of a client. u is nil unless the batch is atomic. leases: the node's own leases may answer it. cause is
// why it could not be decided, seq the number of the change that it made, for sync rules.
func (t *localRun) decide(req *check.Request, u *undoLog, leases bool, a *check.Answer) (seq uint64, cause error) {
	if cause := t.blockedBy(req.Key); cause != nil {
		return 0, cause
	}
	n := t.node
	var d bucket.Decision
	if lost, ok := t.plays(&req.Request, &d); !ok {
		return 0, errNoRole
	} else if lost {
		*a = check.Answer{Decision: d, Source: check.Owned, Owner: n.cfg.Name, Age: check.DoNotCache}
		return 0, nil
	}
	v := bucket.Decided
	if !leases || !n.fromOwnLease(t.now, req, 1, &d) {
		d, seq, v = u.try(n.table, t.now, &req.Request, req.Sync)
	}
	if v == bucket.Decided && n.moving(&req.Request) {
		v = bucket.Sealed
	}
	if v != bucket.Decided {
		return 0, t.block(req.Key, v)
	}
	*a = check.Answer{Decision: d, Source: check.Owned, Owner: n.cfg.Name}
	if t.decided(req.Verb, req.Key, !d.Allowed) {
		a.Age = check.DoNotCache
	}
	return seq, nil
}

// blockedBy returns why an earlier check of k is undecided, nil if none is.
func (t *localRun) blockedBy(k bucket.Key) error {
	if t.blocked == nil {
		return nil
	}
	return t.blocked[k]
}

// block records that a check of k could not be decided, and returns why.
func (t *localRun) block(k bucket.Key, v bucket.Verdict) error {
	if t.blocked == nil {
		t.blocked = make(map[bucket.Key]error)
	}
	t.blocked[k] = errSealed
	if v == bucket.Behind {
		t.blocked[k] = errBehind
	}
	return t.blocked[k]
}

// decided must be called after each decision. It reports that the denial may end at any moment, because units of the key are
// leased.
func (t *localRun) decided(v bucket.Verb, k bucket.Key, denied bool) (leased bool) {
	if invalidates(v) {
		t.node.invalidate(t.now, k)
		key := k // which is on the heap
		t.node.freed(&key)
		return false
	}
	return denied && t.node.demands.Live(t.now, k)
}

// decideLocal decides the checks that this node owns, as long as it has quorum and ctx lasts.
func (f *forwarding) decideLocal(ctx context.Context, r *routing) {
	if len(f.local) == 0 {
		return
	}
	n := f.node
	t := n.newLocalRun()
	if !t.quorum() {
		return // it was lost just now: the next round answers
	}
	leases := n.demands.Keys() > 0 && f.undo == nil && noneInvalidates(f.batch)
	for _, i := range f.local {
		p := &f.pending[i]
		if t.checkClock(ctx); t.late {
			p.to = nextAttempt // the last round answers it
			continue
		}
		req := &f.batch.Requests[p.index]
		var term uint64
		if req.Sync {
			term = n.localTerm(req.Key)
		}
		seq, cause := t.decide(req, f.undo, leases, &f.batch.Answers[p.index])
		if cause != nil {
			p.to, p.cause, p.asked = nextAttempt, cause, asked{}
			continue
		}
		if p.done = true; !req.Sync {
			continue
		}
		if seq > 0 {
			f.changes = append(f.changes, change{i, req.Key.Shard(n.cfg.Ring.Partitions), term, seq})
		} else {
			f.closeCircuits(r, p) // as that of an answer by another owner, which may be a denial too
		}
	}
	if t.lostQuorum() {
		for _, i := range f.local {
			if p := &f.pending[i]; p.done {
				f.takeError(r, p, r.self, errLostQuorum)
			}
		}
		f.changes = f.changes[:0]
	}
}

// confirmLocal waits until replicas have the charges of sync rules that were made here. A check that is not confirmed in time
// counts as one whose response was lost: its charge stands.
func (f *forwarding) confirmLocal(ctx context.Context, r *routing) {
	for _, c := range f.changes {
		if !f.node.awaitConfirmed(ctx, c) {
			f.takeError(r, &f.pending[c.index], r.self, errUnconfirmed)
			continue
		}
		f.closeCircuits(r, &f.pending[c.index])
	}
	f.changes = f.changes[:0]
	owned := 0
	for _, i := range f.local {
		if f.pending[i].done && f.batch.Answers[f.pending[i].index].Source == check.Owned {
			owned++
		}
	}
	f.node.stats.owned.Add(uint64(owned))
}

// Serve implements check.Handler: it decides records of keys that this node owns, if it has quorum, and no others. Records that
// it cannot decide just now are answered with NotReady: without an owner if it has no quorum. Sync records are answered when a
// replica has their changes; those that are not confirmed within CheckTimeout get a Reply without a Status, as if their
// answer were lost.
func (n *Node) Serve(from string, records []check.Record, replies []check.Reply) {
	r, t := n.routing.Load(), n.newLocalRun()
	var changes []change     // of sync records
	var relays map[int][]int // records to relay, by owner
	served, notOwner, notReady := 0, 0, 0
	for i := range records {
		rec, reply := &records[i], &replies[i]
		*reply = check.Reply{Owner: n.cfg.Name}
		t.checkClock(context.Background())
		var seq, term uint64
		if rec.Sync {
			term = n.localTerm(rec.Key)
		}
		switch {
		case rec.GiveBack:
			t.giveBack(r, from, rec)
			reply.Status = check.Decided
			served++
			continue
		case rec.Relay && decidable(rec) && n.away(&rec.Request) == "" && !r.owns(rec.Key) && r.relays(from, rec.Key):
			if relays == nil {
				relays = make(map[int][]int)
			}
			relays[r.owner(rec.Key)] = append(relays[r.owner(rec.Key)], i)
			continue
		default:
			seq = t.serve(r, from, rec, reply)
		}
		switch reply.Status {
		case check.Decided:
			served++
			if rec.Sync && seq > 0 {
				changes = append(changes, change{i, r.partition(rec.Key), term, seq})
			}
		case check.NotOwner:
			notOwner++
		case check.NotReady:
			notReady++
			t.block(rec.Key, bucket.Sealed)
		}
	}
	if served > 0 && t.quorum() && t.lostQuorum() {
		changes = nil
		dropDecisions(records, replies)
	}
	n.stats.served.Add(uint64(served))
	n.stats.notOwner.Add(uint64(notOwner))
	n.stats.servedNotReady.Add(uint64(notReady))
	if relays != nil {
		n.relay(r, relays, records, replies)
	}
	if changes != nil {
		n.confirmReplies(changes, replies)
	}
}

// giveBack undoes a charge that the node from made here. It is sent to the node that charged, whichever owns the key by now.
func (t *localRun) giveBack(r *routing, from string, rec *check.Record) {
	n := t.node
	if !r.owns(rec.Key) {
		n.stats.giveBacksLost.Add(1)
	}
	n.charges.giveBack(t.now, charge{from, rec.ID}, n.table)
	n.invalidate(t.now, rec.Key)
}

// dropDecisions clears the replies with a decision, as if they had been lost, except for those to give-backs.
func dropDecisions(records []check.Record, replies []check.Reply) {
	for i := range replies {
		if replies[i].Status == check.Decided && !records[i].GiveBack {
			replies[i] = check.Reply{}
		}
	}
}

// confirmReplies waits until replicas have the changes, and clears the replies to those that are not confirmed within CheckTimeout.
func (n *Node) confirmReplies(changes []change, replies []check.Reply) {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.CheckTimeout)
	defer cancel()
	for _, c := range changes {
		if !n.awaitConfirmed(ctx, c) {
			replies[c.index] = check.Reply{}
		}
	}
}

// serve decides a record of the node from that is neither a give-back nor to be relayed, and returns the number of the change
// that must be confirmed, 0 if none.
func (t *localRun) serve(r *routing, from string, rec *check.Record, reply *check.Reply) (seq uint64) {
	n := t.node
	lost, ok := t.plays(&rec.Request, &reply.Decision)
	switch {
	case !decidable(rec):
		reply.Status = check.Invalid
	case n.away(&rec.Request) != "" && (r.owns(rec.Key) || rec.Relay):
		return t.serveAway(n.away(&rec.Request), from, rec, reply)
	case !r.owns(rec.Key):
		reply.Status, reply.Owner = check.NotOwner, r.nameOf(r.owner(rec.Key))
	case !t.quorum():
		reply.Status, reply.Owner = check.NotReady, ""
	case t.late, t.blockedBy(rec.Key) != nil, !ok, lost && rec.Report:
		reply.Status = check.NotReady
	case rec.Report:
		n.eventual.countFar(r, t.now, rec, reply)
		return 0
	case rec.Verb == bucket.Settle && leaseOfClient(&rec.Request) && n.leaseToClient(t.now, "", &rec.Request, &reply.Decision):
		reply.Status = check.Decided // it was made of a lease of another region
		reply.SetReserved(&rec.Reservation.Reserved)
		return 0
	case lost && !rec.Grant:
		reply.Status, reply.LeasedOut = check.Decided, true // so that nobody caches it
		return 0
	case rec.Grant:
		seq = n.grant(t.now, from, rec, reply)
	case rec.Return:
		reply.Status = check.Decided
		if n.takeReturn(t.now, rec.Key, rec.ID, rec.Want) != bucket.Decided {
			reply.Status = check.NotReady
		}
	case rec.Undoable:
		reply.Decision, seq, reply.Status = n.charges.try(t.now, charge{from, rec.ID}, n.table, &rec.Request)
	case n.fromRegionLease(t.now, rec, reply):
		return 0
	default:
		seq = n.try(t.now, rec, reply)
	}
	if reply.Status == check.Decided && n.moving(&rec.Request) {
		*reply = check.Reply{Owner: reply.Owner, Status: check.NotReady}
	}
	if reply.Status != check.Decided {
		return 0
	}
	denied := rec.Verb == bucket.Check && !rec.Hot() && !reply.Allowed || reply.Denial != nil || rec.Many() && reply.Admitted == 0
	if leased := t.decided(rec.Verb, rec.Key, denied); leased {
		reply.LeasedOut = true
	} else if denied {
		n.deniedToPeers.denied(t.now, rec.Key)
	}
	return seq
}

// try decides a record of another node, and returns the number of the change that must be confirmed, 0 if none.
func (n *Node) try(now int64, rec *check.Record, reply *check.Reply) (seq uint64) {
	v, charged := bucket.Decided, true
	if rec.Many() {
		var s bucket.Series
		s, charged, seq, v = n.table.TryTimes(now, &rec.Request, rec.Times)
		reply.Admitted, reply.Decision = s.Granted, s.Last
		switch {
		case s.Granted == 0:
			reply.Decision = s.Denial
		case s.Granted < rec.Times:
			denial := s.Denial
			reply.Denial = &denial
		}
	} else {
		reply.Decision, seq, v = tryTable(n.table, now, &rec.Request, rec.Sync)
	}
	if v != bucket.Decided {
		*reply = check.Reply{Owner: reply.Owner, Status: check.NotReady}
		return 0
	}
	if reply.Status = check.Decided; rec.Reservation != nil {
		reply.SetReserved(&rec.Reservation.Reserved)
	}
	if !charged {
		seq = 0
	}
	return seq
}

// decidable reports whether a record of another node, perhaps of another version, has all that a table needs.
func decidable(rec *check.Record) bool {
	r := &rec.Request
	switch {
	case rec.Return:
		return rec.Want >= 0
	case r.Reservation != nil:
		return r.Verb >= bucket.Reserve && r.Verb <= bucket.Cancel && (r.Limits != nil || r.Verb != bucket.Reserve) &&
			(r.Cost >= 0 || r.Verb == bucket.Extend) && !rec.Grant && !rec.Undoable && !rec.Many()
	case r.Verb > bucket.Reset || r.Cost < 0 || r.Limits == nil || rec.Times < 0:
		return false
	case rec.Grant:
		return rec.Want > 0
	case rec.Report:
		return r.Once != 0 && r.Home() != bucket.HomeAuto
	case rec.Many():
		return r.Verb == bucket.Check && r.Cost > 0 && !r.Drain && !rec.Undoable && rec.Times <= bucket.MaxTimes && r.Limits.Repeatable()
	}
	return true
}
