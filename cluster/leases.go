package cluster

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/lease"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
)

// leasePeriod is the interval of returning unused units.
const leasePeriod = 20 * time.Millisecond

// leasable reports whether a lease may answer req: it is a plain check, and the answer does not depend on the counter alone.
func leasable(req *check.Request) bool {
	return req.Verb == bucket.Check && req.Cost > 0 && !req.NoDenialCache && !req.Drain && !req.NoDelay
}

// fromMemory tries to answer check i of b, of a key of another owner, from the denial cache or a lease.
func (n *Node) fromMemory(r *routing, now int64, b *check.Batch, i int) bool {
	if home := n.away(&b.Requests[i].Request); home != "" && r.owns(b.Requests[i].Key) {
		if q, a := &b.Requests[i], &b.Answers[i]; leaseOfClient(&q.Request) {
			*a = check.Answer{Source: check.Leased, Owner: n.cfg.Name}
			return n.leaseToClient(now, home, &q.Request, &a.Decision)
		}
		return n.fromDenialCache(now, b, i) || n.fromHomeLease(now, home, &b.Requests[i], 1, nil, &b.Answers[i])
	}
	return !r.owns(b.Requests[i].Key) && (n.fromDenialCache(now, b, i) || n.fromLease(now, b, i))
}

// fromLease tries to answer check i of b from a lease. In any case the check counts as demand, which can make the key hot or the
// lease too small: then a lease is requested, and meanwhile checks are forwarded.
func (n *Node) fromLease(now int64, b *check.Batch, i int) bool {
	req, a := &b.Requests[i], &b.Answers[i]
	if !leasable(req) {
		return false
	}
	var d bucket.Decision
	v, owner, ask, asks := n.book.Take(now, &req.Request, lease.Leaseholder, &d)
	if asks {
		n.leasing.call()
		n.background.Go(func() { n.requestLease(ask) })
	}
	if v == lease.Ask {
		return false
	}
	*a = check.Answer{Decision: d, Source: check.Leased, Owner: owner}
	if v == lease.Denied {
		a.Age = check.DoNotCache // the next check may find more
	}
	n.stats.leased.Add(1)
	return true
}

// requestLease requests a lease from the owner.
func (n *Node) requestLease(ask lease.Request) {
	r, sent := n.routing.Load(), n.cfg.Clock()
	to := r.owner(ask.Key)
	switch {
	case to == r.self && (n.mayDecide(sent) || n.away(&bucket.Request{Key: ask.Key, Limits: ask.Limits}) != ""):
		n.leaseFromSelf(sent, &ask)
		return
	case to == noNode || to == r.self || r.nodes[to].addr == "":
		n.book.Failed(sent, &ask)
		return
	}
	n.callForLease(r.nodes[to].addr, n.book, &ask, check.Record{})
}

// callForLease sends rec as the request ask to the node at addr, and takes the grant for book. It returns the reply, nil if none came.
func (n *Node) callForLease(addr string, book *lease.Book, ask *lease.Request, rec check.Record) *check.Reply {
	sent := n.cfg.Clock()
	rec.Grant, rec.Want, rec.Rate, rec.For, rec.ID, rec.Sync = true, ask.Want, ask.Rate, ask.For, ask.Done, !ask.Unreplicated
	rec.Key, rec.Limits, rec.Unreplicated, rec.Reserve, rec.DenyLost = ask.Key, ask.Limits, ask.Unreplicated, ask.Reserve, ask.DenyLost
	var replies [1]check.Reply
	// An answer that takes longer than the lease lasts is of no use.
	ctx, cancel := context.WithTimeout(context.Background(), ask.For)
	defer cancel()
	err := n.cfg.Peers.Call(ctx, addr, []check.Record{rec}, replies[:])
	now, reply := n.cfg.Clock(), &replies[0]
	switch {
	case err != nil:
		book.Failed(now, ask)
		return nil
	case reply.Status != check.Decided || reply.Admitted < 0:
		book.Failed(now, ask)
		return reply
	}
	if book.Granted(sent, now, ask, reply.Owner, &bucket.Grant{
		ID: reply.Grant, Units: reply.Admitted, For: min(reply.For, ask.For), Decision: reply.Decision, RetryAfter: reply.RetryAfter,
	}) {
		n.shares.Answers.Note(sent, &rec.Request, &reply.Decision)
	}
	n.leasing.call() // units that came too late for their line must be returned
	if reply.Admitted > 0 {
		n.denials.Forget(now, ask.Key)
	}
	return reply
}

// maintainLeases returns unused units until ctx ends, and then all units.
func (n *Node) maintainLeases(ctx context.Context) {
	n.leasing.run(ctx, func() bool {
		now := n.cfg.Clock()
		n.demands.Sweep(now)
		n.giveBackLeases(n.book.Tick(now))
		n.maintainHomes(now)
		return n.book.Hot() || n.demands.Keys() > 0 || n.anyBook((*lease.Book).Hot)
	})
	n.giveBackLeases(n.book.Close())
	n.closeHomes()
}

// giveBackLeases returns units to the current owners of their keys. Units that get lost on the way expire.
func (n *Node) giveBackLeases(back []lease.Return) {
	r, now := n.routing.Load(), n.cfg.Clock()
	records := make(map[string][]check.Record)
	for _, b := range back {
		to := r.owner(b.Key)
		switch {
		case to == r.self && n.mayDecide(now):
			n.takeReturn(now, b.Key, b.ID, b.Unspent)
		case to != noNode && to != r.self && r.nodes[to].addr != "":
			rec := check.Record{Return: true, ID: b.ID, Want: b.Unspent}
			rec.Key = b.Key
			records[r.nodes[to].addr] = append(records[r.nodes[to].addr], rec)
		}
	}
	for addr, list := range records {
		n.background.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), lease.MaxLife)
			defer cancel()
			_ = n.cfg.Peers.Call(ctx, addr, list, make([]check.Reply, len(list))) // if it fails, the lease expires
		})
	}
}

// grant answers a record that requests a lease, once a replica has the grant: the units then stay charged if this node crashes.
func (n *Node) grant(now int64, from string, rec *check.Record, reply *check.Reply) (seq uint64) {
	if rec.Once != 0 {
		from = regionName(rec.Once)
	}
	g, seq, v := n.grantTo(now, from, &lease.Request{LeaseRequest: bucket.LeaseRequest{
		Key: rec.Key, Limits: rec.Limits, Want: rec.Want, Reserve: max(0, rec.Reserve), For: rec.For,
		Unreplicated: rec.Unreplicated, DenyLost: rec.DenyLost,
	}, Rate: rec.Rate, Done: rec.ID})
	if v != bucket.Decided {
		reply.Status = check.NotReady
		return 0
	}
	reply.Status, reply.Decision, reply.LeasedOut = check.Decided, g.Decision, true
	reply.Admitted, reply.Grant, reply.For, reply.RetryAfter = g.Units, g.ID, g.For, g.RetryAfter
	if g.Units == 0 {
		return 0
	}
	return seq
}

// grantTo grants units of a key that this node owns: the part of the remaining units that process boot has in the total demand.
func (n *Node) grantTo(now int64, boot string, ask *lease.Request) (bucket.Grant, uint64, bucket.Verdict) {
	home := n.away(&bucket.Request{Key: ask.Key, Limits: ask.Limits})
	if ask.Done != 0 && home != "" {
		n.takeReturn(now, ask.Key, ask.Done, 0)
	} else if ask.Done != 0 {
		n.table.Return(now, ask.Key, ask.Done, 0)
	}
	ask.Part, ask.Whole = n.demands.Note(now, ask.Key, boot, ask.Reserve, ask.Rate, ask.For)
	ask.Across = lease.Across(ask.Limits, ask.For)
	ask.Nearest = ask.For > lease.MaxLife // a region asks often for a few units
	if home == "" {
		n.noteDemand(now, ask)
	}
	n.leasing.call()
	if home != "" {
		// Nodes ask about as often as each other: for how long each has not does not count, as it does for regions that asked while the
		// key was at home here.
		if _, _, whole := n.demands.Most(now, ask.Key); whole > 0 {
			ask.Part, ask.Whole = min(max(ask.Rate, 1), whole), whole
		}
		g, ok, more, asks := n.homeBook(home).Grant(now, ask)
		if asks {
			n.askHome(home, more)
		}
		if !ok {
			return g, 0, bucket.Sealed
		}
		return g, 0, bucket.Decided
	}
	if lost, ok := n.mayDecideHome(now, &bucket.Request{Key: ask.Key, Limits: ask.Limits, DenyLost: ask.DenyLost}, new(bucket.Decision)); lost || !ok {
		return bucket.Grant{}, 0, bucket.Sealed
	}
	if n.regionOf(boot) != "" && n.passesOn(&bucket.Request{Key: ask.Key, Limits: ask.Limits}) {
		return bucket.Grant{}, 0, bucket.Sealed
	}
	g, seq, v := n.table.Grant(now, &ask.LeaseRequest)
	if n.moving(&bucket.Request{Key: ask.Key, Limits: ask.Limits}) {
		return bucket.Grant{}, 0, bucket.Sealed
	}
	n.stats.granted.Add(uint64(g.Units))
	return g, seq, v
}

// takeReturn takes back the unspent units of a lease.
func (n *Node) takeReturn(now int64, key bucket.Key, id uint64, unspent int64) bucket.Verdict {
	if n.cfg.Regions != nil && n.anyBook(func(b *lease.Book) bool { return b.TakeBack(now, key, id, unspent) > 0 }) {
		return bucket.Decided
	}
	back, _, v := n.table.Return(now, key, id, unspent)
	if back > 0 {
		n.invalidate(now, key)
	} else {
		n.returnMoved(now, key, id, unspent)
	}
	return v
}

// fromOwnLease decides req, whose key this node owns, from a lease to itself while other nodes have leases of the key: so each
// node gets units by its demand. It reports false where the counter itself must decide.
func (n *Node) fromOwnLease(now int64, req *check.Request, times int64, d *bucket.Decision) bool {
	if !leasable(req) || req.Sync || !n.demands.Live(now, req.Key) {
		return false
	}
	v, _, ask, asks := n.book.TakeTimes(now, &req.Request, times, lease.Owner, nil, d)
	if asks {
		n.leaseFromSelf(now, &ask)
		if v != lease.Spent {
			*d = bucket.Decision{}
			v, _, _, _ = n.book.TakeTimes(now, &req.Request, times, lease.Again, nil, d)
		}
	}
	return v != lease.Ask
}

// fromRegionLease decides a check of another node of this region as fromOwnLease does, while another region has leases of the key: so each
// region gets units by its demand.
func (n *Node) fromRegionLease(now int64, rec *check.Record, reply *check.Reply) bool {
	if rec.Relay || rec.Many() || n.demands.Keys() == 0 || !n.demands.Far(now, rec.Key) {
		return false
	}
	req := check.Request{Request: rec.Request, Sync: rec.Sync}
	if !n.fromOwnLease(now, &req, 1, &reply.Decision) {
		reply.Decision = bucket.Decision{}
		return false
	}
	reply.Status, reply.LeasedOut = check.Decided, !reply.Allowed
	return true
}

// leaseFromSelf requests a lease of a key that this node owns.
func (n *Node) leaseFromSelf(now int64, ask *lease.Request) {
	g, _, v := n.grantTo(now, n.cfg.Boot, ask)
	if v != bucket.Decided {
		n.book.Failed(now, ask)
		return
	}
	n.book.Granted(now, now, ask, n.cfg.Name, &g)
}

// fromDenialCache tries to answer check i of b from the denial cache. A refund, reset or returned lease invalidates a cached
// denial: at once if it goes through this node, else by a control message of the owner.
func (n *Node) fromDenialCache(now int64, b *check.Batch, i int) bool {
	req := &b.Requests[i]
	if req.Verb != bucket.Check || req.NoDenialCache || req.Drain || req.NoDelay {
		return false
	}
	d, owner, age, ok := n.denials.Answer(now, &req.Request)
	if !ok {
		return false
	}
	b.Answers[i] = check.Answer{Decision: d, Source: check.Forwarded, Owner: owner, Age: age}
	n.stats.remembered.Add(1)
	return true
}

// noneInvalidates reports whether no check of b invalidates cached denials of later ones.
func noneInvalidates(b *check.Batch) bool {
	return !slices.ContainsFunc(b.Requests, func(r check.Request) bool { return invalidates(r.Verb) })
}

// invalidates reports whether v can make a denied check admissible.
func invalidates(v bucket.Verb) bool {
	return v == bucket.Refund || v == bucket.Reset || v == bucket.Settle || v == bucket.Cancel
}

// cacheDenial caches reply to r, which was sent at sent, if it is a denial that may be cached. fresh: r's denials may not.
func (n *Node) cacheDenial(sent int64, r *bucket.Request, fresh bool, reply *check.Reply) {
	away := n.away(r) != ""
	if reply.Status != check.Decided || reply.Allowed || reply.LeasedOut && !away || fresh {
		return
	}
	ttl := check.DeniedFor(r, &reply.Decision)
	if away && ttl == check.MaxDenied { // the answer has been on its way for long
		ttl = min(reply.RetryAfter, ttl+time.Duration(n.cfg.Clock()-sent))
	}
	if ttl > 0 {
		n.denials.Remember(sent, n.cfg.Clock(), r, &reply.Decision, reply.Owner, ttl)
	}
}

// Bounds of the invalidations of an owner.
const (
	deniedSlots     = 4096
	maxInvalidation = 1024
)

// deniedToPeers has the times of denials to other nodes, which may have cached them. A slot that keys share only causes an extra
// control message.
type deniedToPeers struct{ at [deniedSlots]atomic.Int64 }

func (t *deniedToPeers) slot(k bucket.Key) *atomic.Int64 { return &t.at[(k.Lo^k.Hi)%deniedSlots] }

// denied notes that k was denied at now.
func (t *deniedToPeers) denied(now int64, k bucket.Key) { t.slot(k).Store(now) }

// take reports whether a node may have a denial of k in its cache at now, and forgets that k was denied.
func (t *deniedToPeers) take(now int64, k bucket.Key) bool {
	s := t.slot(k)
	at := s.Load()
	return at != 0 && now-at < int64(check.MaxDenied) && s.CompareAndSwap(at, 0)
}

// invalidation holds keys whose cached denials at other nodes are to be invalidated.
type invalidation struct {
	mu struct {
		sync.Mutex
		keys []bucket.Key
	}
}

// invalidate invalidates cached denials of k here and at other nodes. It must be called when units of k, owned here, were given
// back at now.
func (n *Node) invalidate(now int64, k bucket.Key) {
	n.denials.Forget(now, k)
	if !n.deniedToPeers.take(now, k) {
		return
	}
	n.invalidation.mu.Lock()
	if len(n.invalidation.mu.keys) < maxInvalidation { // denials of further keys expire after check.MaxDenied
		n.invalidation.mu.keys = append(n.invalidation.mu.keys, k)
	}
	n.invalidation.mu.Unlock()
	signal(n.runner.wake)
}

// sendInvalidations sends the keys since the last call to all other nodes.
func (r *runner) sendInvalidations() {
	mu := &r.node.invalidation.mu
	mu.Lock()
	keys := mu.keys
	mu.keys = nil
	mu.Unlock()
	if len(keys) > 0 {
		r.node.Broadcast(&message.DenialInvalidation{Keys: keys})
	}
}
