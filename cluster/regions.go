package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/lease"
	"github.com/sluicecluster/sluice/cluster/share"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
)

// Regions knows the clusters of other regions. Nil: there is one region.
type Regions interface {
	// Self is the name of this region.
	Self() string
	// Has reports whether the list of regions has that name.
	Has(region string) bool
	// Addr returns the peer address of a node of that region that answers, another one for each try, "" if none is reached.
	Addr(region string, try int) string
	// RTT is the round trip to that region, measured lately; 0 if unknown.
	RTT(region string) time.Duration
	// Part is the weight of this region, and those of all regions together.
	Part() (own, all int)
	// Others are the names of the other regions in the list. With none, this region's role needs no others.
	Others() []string
	// Post sends a message to a node of that region, which passes it on to its speaker. It never blocks, and may drop it.
	Post(region string, m *message.RegionMessages)
}

// errCutOff: no node of the key's home region is reached. on_partition decides.
var errCutOff = fmt.Errorf("%w: no node of the home region of the key is reached", check.ErrUnsent)

// errOtherRules: the home region has other rules. on_failure decides.
var errOtherRules = errors.New("the rule of the key has another home in its home region: give all regions the same rules")

// regionPeriod is how often what is leased of other regions is looked through.
const regionPeriod = int64(100 * time.Millisecond)

// unknownRTT is the round trip to a region before it is measured.
const unknownRTT = 200 * time.Millisecond

// homes is what this node has leased of other regions, as the owner in its own region, or while it reaches none.
type homes struct {
	// books are *lease.Book by region. No lock is held while one is looked through, since requests
	// need them.
	books sync.Map
	// Of maintainLeases: when the books were looked through last, and the routing then.
	looked int64
	routed *routing
	tries  atomic.Int64 // a node of the home is chosen by it
}

// away returns the region that has the counter of q, "" if this one does.
func (n *Node) away(q *bucket.Request) string {
	if n.cfg.Regions == nil {
		return ""
	}
	home := n.home(q)
	if home == "" {
		return ""
	}
	if home = n.roles.plays(home); home == n.cfg.Regions.Self() {
		return ""
	}
	return home
}

// parts returns the parts of limits of a node that has so many voters in its region.
func (n *Node) parts(voters int) share.Parts {
	p := share.Parts{Voters: voters}
	if n.cfg.Regions != nil {
		own, all := n.cfg.Regions.Part()
		p.Home = (voters*all + own - 1) / own
	}
	return p
}

// homeBook returns the book of what is leased of a region.
func (n *Node) homeBook(home string) *lease.Book {
	b, ok := n.homes.books.Load(home)
	if !ok {
		b, _ = n.homes.books.LoadOrStore(home, lease.NewRegionBook(cmp.Or(n.cfg.Regions.RTT(home), unknownRTT)))
	}
	return b.(*lease.Book)
}

// homeBooks yields the books of what is leased of other regions.
func (n *Node) homeBooks(yield func(home string, b *lease.Book) bool) {
	n.homes.books.Range(func(home, b any) bool { return yield(home.(string), b.(*lease.Book)) })
}

// fromHomeLease tries to answer so many checks that are as req, as lease.Book.TakeTimes does, whose counter the region home has, from what
// this node has leased of it, or shares with others of its region. With h, not from what it shares.
func (n *Node) fromHomeLease(now int64, home string, req *check.Request, times int64, h *lease.Held, a *check.Answer) bool {
	if !leasable(req) {
		return false
	}
	var d bucket.Decision
	if h == nil && n.demands.Keys() > 0 && n.fromOwnLease(now, req, times, &d) {
		*a = check.Answer{Decision: d, Source: check.Leased, Owner: n.cfg.Name}
	} else {
		v, owner, ask, asks := n.homeBook(home).TakeTimes(now, &req.Request, times, lease.Leaseholder, h, &d)
		if asks {
			n.askHome(home, ask)
		}
		if v == lease.Ask {
			return false
		}
		*a = check.Answer{Decision: d, Source: check.Leased, Owner: owner}
	}
	if !a.Allowed {
		a.Age = check.DoNotCache
	}
	n.stats.homeLeased.Add(1)
	return true
}

// serveAway decides a record of a node of this region whose counter the region home has.
func (t *localRun) serveAway(home, from string, rec *check.Record, reply *check.Reply) (seq uint64) {
	n := t.node
	q := check.Request{Request: rec.Request}
	switch {
	case rec.Home() == bucket.HomeAuto && (rec.Relay || rec.Grant && rec.Once != 0):
		n.redirect(t.now, rec, reply)
		return 0
	case rec.Report, rec.Relay && n.roles.plays(rec.Home()) != rec.Home():
		reply.Status = check.NotReady // this region knows a later version of the roles, or an earlier one
		return 0
	case rec.Relay:
		reply.Status = check.Invalid // from another region, with other rules
		return 0
	case rec.Grant:
		return n.grant(t.now, from, rec, reply)
	case leaseOfClient(&rec.Request) && n.leaseToClient(t.now, home, &rec.Request, &reply.Decision):
		reply.Status = check.Decided
		reply.SetReserved(&rec.Reservation.Reserved)
		return 0
	case !leasable(&q):
		reply.Status, reply.Owner = check.AtHome, home
		return 0
	}
	var a check.Answer
	if rec.Undoable {
		reply.Decision, _, reply.Status = n.charges.once(t.now, charge{from, rec.ID}, true, func(rc *receipt) bucket.Verdict {
			if !n.fromHomeLease(t.now, home, &q, 1, &rc.held, &a) {
				return bucket.Sealed
			}
			rc.decision = a.Decision
			return bucket.Decided
		})
		if reply.LeasedOut = !reply.Allowed; reply.Status == check.NotReady {
			reply.Status, reply.Owner = check.AtHome, home
		}
		return 0
	}
	if !n.fromHomeLease(t.now, home, &q, max(1, rec.Times), nil, &a) {
		reply.Status, reply.Owner = check.AtHome, home
		return 0
	}
	reply.Status, reply.Decision, reply.LeasedOut = check.Decided, a.Decision, !a.Allowed
	if rec.Many() && a.Allowed {
		reply.Admitted = rec.Times
	} else if rec.Many() { // there is not enough for all
		denial := a.Decision
		for a = (check.Answer{}); reply.Admitted < rec.Times && n.fromHomeLease(t.now, home, &q, 0, nil, &a) && a.Allowed; a = (check.Answer{}) {
			reply.Admitted, reply.Decision = reply.Admitted+1, a.Decision
		}
		if reply.Admitted > 0 {
			reply.Denial = &denial
		}
	}
	return 0
}

// held tries to answer check i of an atomic batch, of a key of this node whose counter another region has, from what it has leased.
func (n *Node) held(r *routing, b *check.Batch, i int, u *undoLog) bool {
	home := n.away(&b.Requests[i].Request)
	if home == "" || !r.owns(b.Requests[i].Key) {
		return false
	}
	var h lease.Held
	ok := n.fromHomeLease(n.cfg.Clock(), home, &b.Requests[i], 1, &h, &b.Answers[i])
	if h.Any() {
		u.held = append(u.held, h)
	}
	return ok
}

// leaseOfClient reports whether q makes or settles a lease of a client.
func leaseOfClient(q *bucket.Request) bool {
	return q.Reservation != nil && q.Reservation.Lease && (q.Verb == bucket.Reserve || q.Verb == bucket.Settle)
}

// leaseToClient makes or settles a lease of a client out of what this node has leased of other regions, of home if it makes one. It reports
// false for a lease that this node has not.
func (n *Node) leaseToClient(now int64, home string, q *bucket.Request, d *bucket.Decision) bool {
	x := q.Reservation
	if q.Verb == bucket.Settle {
		return n.anyBook(func(b *lease.Book) bool {
			units, back := b.Settle(now, q.Key, x.ID, q.Cost)
			if units > 0 {
				d.Allowed, x.Reserved = true, bucket.Reserved{Units: units - back, Returned: back}
			}
			return units > 0
		})
	}
	g, _, ask, asks := n.homeBook(home).Grant(now, &lease.Request{Client: x.ID, LeaseRequest: bucket.LeaseRequest{
		Key: q.Key, Limits: q.Limits, Want: q.Cost, Reserve: max(0, q.Reserve), For: x.For, Unreplicated: q.Unreplicated, DenyLost: q.DenyLost,
	}})
	if asks {
		n.askHome(home, ask)
	}
	*d = g.Decision
	d.Allowed, d.Limit, d.RetryAfter = g.Units > 0, cmp.Or(d.Limit, q.Limits.At(0).Count), g.RetryAfter
	x.Reserved = bucket.Reserved{Units: g.Units, Expires: g.For}
	n.leasing.call()
	return true
}

// askHome requests a lease from the home, in the background.
func (n *Node) askHome(home string, ask lease.Request) {
	n.leasing.call()
	n.background.Go(func() { n.leaseFromHome(home, ask) })
}

func (n *Node) leaseFromHome(home string, ask lease.Request) {
	book, addr := n.homeBook(home), n.homeAddr(home)
	if addr == "" {
		book.Failed(n.cfg.Clock(), &ask)
		return
	}
	n.stats.homeRequests.Add(1)
	reply := n.callForLease(addr, book, &ask, check.Record{Relay: true, Request: bucket.Request{Once: check.HashOf(n.cfg.Regions.Self())}})
	if reply != nil && reply.Status == check.Decided {
		return
	}
	if reply != nil && reply.Status == check.AtHome && ask.Limits.Home() == bucket.HomeAuto {
		n.learn(n.cfg.Clock(), ask.Key, reply.Owner)
	}
	if next := n.away(&bucket.Request{Key: ask.Key, Limits: ask.Limits}); next != "" && next != home && !ask.Moved {
		// At once, since it may be long until the next check, and once, since regions may name each other.
		if moved, asks := n.homeBook(next).Move(n.cfg.Clock(), &ask); asks {
			n.askHome(next, moved)
		}
	}
}

// homeAddr returns the address of a node of the region, another one for each call.
func (n *Node) homeAddr(home string) string {
	if !n.cfg.Regions.Has(home) {
		return ""
	}
	return n.cfg.Regions.Addr(home, int(n.homes.tries.Add(1)))
}

// regionName is the leaseholder that check.HashOf names.
func regionName(hash uint64) string { return "region " + strconv.FormatUint(hash, 36) }

// maintainHomes returns what is not used of the leases of other regions, and after a handoff those of keys of other nodes.
func (n *Node) maintainHomes(now int64) {
	h := &n.homes
	if now-h.looked < regionPeriod {
		return
	}
	r := n.routing.Load()
	moved := h.routed != r
	h.looked, h.routed = now, r
	for home, b := range n.homeBooks {
		if rtt := n.cfg.Regions.RTT(home); rtt > 0 {
			b.SetRTT(rtt)
		}
		back := b.Tick(now)
		if moved {
			back = append(back, b.Drop(r.owns)...)
		}
		n.returnHome(home, back)
	}
}

// closeHomes returns all that is leased of other regions.
func (n *Node) closeHomes() {
	for home, b := range n.homeBooks {
		n.returnHome(home, b.Close())
	}
}

// anyBook reports whether f does so for a book of what is leased of another region; it asks no further ones then.
func (n *Node) anyBook(f func(*lease.Book) bool) bool {
	for _, b := range n.homeBooks {
		if f(b) {
			return true
		}
	}
	return false
}

// returnHome returns units to their home. Units that get lost on the way expire.
func (n *Node) returnHome(home string, back []lease.Return) {
	addr := ""
	if len(back) > 0 {
		addr = n.homeAddr(home)
	}
	if addr == "" {
		return
	}
	records := make([]check.Record, len(back))
	for i, b := range back {
		records[i] = check.Record{Return: true, Relay: true, ID: b.ID, Want: b.Unspent}
		records[i].Key = b.Key
	}
	n.background.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), giveBackTimeout)
		defer cancel()
		_ = n.cfg.Peers.Call(ctx, addr, records, make([]check.Reply, len(records))) // if it fails, the lease expires
	})
}
