package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/internal/tracing"
	"github.com/sluice-project/sluice/ring"
)

// nobody stands for no node, where an index into routing.nodes is wanted.
const nobody = -1

// routing is all that a check needs to find its owner. One is published at a time;
// it is immutable but for superseded, which is closed when the next one is.
type routing struct {
	table *ring.Table // of the members that serve and live
	seq   uint64      // of the view
	// nodes are the view's members in any state, sorted by name, self among them.
	nodes []node
	// self is this process's place in nodes.
	self int
	// owners gives each partition's owner, a place in nodes: as the machine knows it,
	// or the assigned owner, who will claim it, or nobody where no member serves.
	owners []int32
	// unheard says of partitions that another process owns them, as the machine knows it, that this one does not hear. Nil if
	// there are none.
	unheard []bool
	// voters is the size of the voter set with which this process last had quorum; of the view before it had any.
	voters     int
	superseded chan struct{}
}

// node is a member as routing sees it.
type node struct {
	name, boot, addr string
	zone             string
	state            member.State
	// lives: it was heard from just now, or has only just appeared. An owner that does
	// not live is not waited for by a node without quorum to decide.
	lives bool
}

func (n node) peer() message.Peer { return message.Peer{Name: n.name, Boot: n.boot} }

// nodesOf lists v's members, sorted by name. Under its own name a process sees itself,
// whatever v says.
func nodesOf(v member.View, self message.Peer) (nodes []node, at int) {
	own := node{name: self.Name, boot: self.Boot, lives: true}
	for _, m := range v.Members {
		switch {
		case m.Name != self.Name:
			nodes = append(nodes, node{m.Name, m.Boot, m.Peer, m.Zone, m.State, false})
		case m.Boot == self.Boot:
			own.addr, own.zone, own.state = m.Peer, m.Zone, m.State
		}
	}
	nodes = append(nodes, own)
	slices.SortFunc(nodes, func(a, b node) int { return strings.Compare(a.name, b.name) })
	return nodes, slices.IndexFunc(nodes, func(n node) bool { return n.peer() == self })
}

// newRouting returns the routing to these nodes, of which the owners are still to be
// set.
func newRouting(nodes []node, self int, table *ring.Table) *routing {
	return &routing{
		table: table, nodes: nodes, self: self, voters: max(1, len(nodes)),
		owners: make([]int32, table.Partitions()), superseded: make(chan struct{}),
	}
}

// setOwners finds the nodes of the owners. It takes a join's hundreds of moves, so it
// does not search for the same name twice in a row.
func (r *routing) setOwners(owner func(partition int) message.Peer) {
	owners := make([]int32, len(r.table.Members()))
	for i, name := range r.table.Members() {
		owners[i] = int32(r.find(name))
	}
	var last message.Peer
	place := int32(nobody)
	for p := range r.owners {
		if h := owner(p); h != last {
			last, place = h, r.living(h)
		}
		if place == nobody && last != (message.Peer{}) {
			if r.unheard == nil {
				r.unheard = make([]bool, len(r.owners))
			}
			r.unheard[p] = true
		}
		r.owners[p] = place
		if place == nobody {
			if i := r.table.OwnerIndex(p); i >= 0 {
				r.owners[p] = owners[i]
			}
		}
	}
}

// living returns the place of p in nodes if that very process lives, else nobody.
func (r *routing) living(p message.Peer) int32 {
	i := r.find(p.Name)
	if i == nobody || r.nodes[i].boot != p.Boot || !r.nodes[i].lives {
		return nobody
	}
	return int32(i)
}

func (r *routing) partition(k bucket.Key) int { return k.Shard(len(r.owners)) }

// holds reports whether k is this node's to decide. Whether it may is for the quorum and
// the shard's seal to say.
func (r *routing) holds(k bucket.Key) bool { return r.owner(k) == r.self }

// owner returns the place in nodes of the node that k is to be asked of, or nobody.
func (r *routing) owner(k bucket.Key) int { return int(r.owners[r.partition(k)]) }

// relay returns the place of a node that is to be asked for k because its owner is not heard here, or nobody: one that is heard,
// another one for each try.
func (r *routing) relay(k bucket.Key, try int) int {
	if r.unheard == nil || !r.unheard[r.partition(k)] {
		return nobody
	}
	for i := range r.nodes {
		at := (i + try + int(k.Lo%uint64(len(r.nodes)))) % len(r.nodes)
		if n := &r.nodes[at]; at != r.self && n.lives && n.addr != "" {
			return at
		}
	}
	return nobody
}

// nameOf returns the name of the node at a place, "" for nobody.
func (r *routing) nameOf(place int) string {
	if place == nobody {
		return ""
	}
	return r.nodes[place].name
}

// find returns the place in nodes of the member called name, or nobody.
func (r *routing) find(name string) int {
	i, ok := slices.BinarySearchFunc(r.nodes, name, func(n node, name string) int { return strings.Compare(n.name, name) })
	if !ok {
		return nobody
	}
	return i
}

// Where the link between two nodes is cut, and both are heard by a third, this one relays: the node that does not hear a key's owner
// asks another node, which asks the owner. What it asks is not relayed again, so that there is one more hop and no loop.

// mostRelay bounds how long a relayed record waits for the owner: others of its stream wait behind it.
const mostRelay = 500 * time.Millisecond

// relays reports whether a record of k from the process with the boot id from can be relayed: another node owns the key, which is
// heard here, and is not the one that asks.
func (r *routing) relays(from string, k bucket.Key) bool {
	to := r.owner(k)
	return to != nobody && to != r.self && r.nodes[to].lives && r.nodes[to].addr != "" && r.nodes[to].boot != from
}

// relay asks the owners of the records that are to be relayed, each owner once.
func (n *Node) relay(r *routing, from string, records []check.Record, replies []check.Reply) {
	places := make(map[int][]int) // in records, by owner
	for i := range records {
		if rec := &records[i]; rec.Relay && replies[i].Status == 0 && !r.holds(rec.Key) && r.relays(from, rec.Key) {
			places[r.owner(rec.Key)] = append(places[r.owner(rec.Key)], i)
		}
	}
	var all sync.WaitGroup
	for to, list := range places {
		all.Go(func() { n.relayTo(r.nodes[to].addr, list, records, replies) })
	}
	all.Wait()
}

// relayTo asks the node at addr for the records at places, and fills in their replies.
func (n *Node) relayTo(addr string, places []int, records []check.Record, replies []check.Reply) {
	most := time.Duration(0)
	asked, answers := make([]check.Record, len(places)), make([]check.Reply, len(places))
	for j, i := range places {
		asked[j] = records[i]
		most = max(most, records[i].For)
		asked[j].Relay, asked[j].For = false, 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(most, mostRelay))
	defer cancel()
	err := n.cfg.Peers.Call(ctx, addr, asked, answers)
	n.stats.relayed.Add(uint64(len(places)))
	for j, i := range places {
		switch {
		case answers[j].Status != 0:
			replies[i] = answers[j]
		case errors.Is(err, check.ErrUnsent) || errors.Is(err, check.ErrOverloaded):
			replies[i].Status = check.Later
		default:
			replies[i] = check.Reply{} // it may have been charged
		}
	}
}

// Names of spans, and of what is noted at them.
const (
	spanForward = "sluice.forward"

	noteAddress  = "sluice.address"
	noteRecords  = "sluice.records"
	noteChecks   = "sluice.checks"
	noteNotOwner = "sluice.not_owner"
	noteLater    = "sluice.later"
)

// ask begins the span of a call to the node at addr, and says in records where in the trace they are sent from. It
// does nothing unless at is not nil.
func (n *Node) ask(at *check.Trace, addr string, records []check.Record) *tracing.Span {
	if at == nil {
		return nil
	}
	span := n.cfg.Tracer.Ask(spanForward, at)
	checks := int64(0)
	for i := range records {
		records[i].Trace = span.Trace()
		checks += max(1, records[i].Times)
	}
	span.Text(noteAddress, addr)
	span.Int(noteRecords, int64(len(records)))
	span.Int(noteChecks, checks)
	return span
}

// endAsk ends the span of a call that has brought replies and err.
func endAsk(span *tracing.Span, replies []check.Reply, err error) {
	if span == nil {
		return
	}
	notOwner, later := 0, 0
	for i := range replies {
		switch replies[i].Status {
		case check.NotOwner:
			notOwner++
		case check.Later:
			later++
		}
	}
	span.Count(noteNotOwner, notOwner)
	span.Count(noteLater, later)
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
