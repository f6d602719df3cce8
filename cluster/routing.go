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
	"github.com/sluice-project/sluice/ring"
)

// noNode is an index into routing.nodes that stands for none.
const noNode = -1

// routing is all that a check needs to find its owner. One is published at a time; it is immutable but for superseded,
// which is closed when the next one is published.
type routing struct {
	table *ring.Table // of the members that serve and live
	seq   uint64      // of the view
	nodes []node      // the view's members in any state, sorted by name, self among them
	self  int         // this process's index in nodes
	// owners gives each partition's owner, an index in nodes: as the machine knows it, or the assigned owner, which will
	// claim it, or noNode where no member serves.
	owners []int32
	// unheard partitions are owned by a process that this one does not hear. Nil if there are none.
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
	lives            bool // it was heard just now, or has only just appeared
}

func (n node) peer() message.Peer { return message.Peer{Name: n.name, Boot: n.boot} }

// nodesOf lists v's members, sorted by name, and this process's index. Under its own name a process sees itself, whatever
// v says.
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

// newRouting returns the routing to these nodes, with no owners yet.
func newRouting(nodes []node, self int, table *ring.Table) *routing {
	return &routing{
		table: table, nodes: nodes, self: self, voters: max(1, len(nodes)),
		owners: make([]int32, table.Partitions()), superseded: make(chan struct{}),
	}
}

// setOwners finds the nodes of the owners. It runs for each of a join's hundreds of moves, so it does not search for the same
// name twice in a row.
func (r *routing) setOwners(owner func(partition int) message.Peer) {
	owners := make([]int32, len(r.table.Members()))
	for i, name := range r.table.Members() {
		owners[i] = int32(r.find(name))
	}
	var last message.Peer
	place := int32(noNode)
	for p := range r.owners {
		if h := owner(p); h != last {
			last, place = h, noNode
			if i := r.find(h.Name); i != noNode && r.nodes[i].boot == h.Boot && r.nodes[i].lives {
				place = int32(i)
			}
		}
		if place == noNode && last != (message.Peer{}) {
			if r.unheard == nil {
				r.unheard = make([]bool, len(r.owners))
			}
			r.unheard[p] = true
		}
		r.owners[p] = place
		if place == noNode {
			if i := r.table.OwnerIndex(p); i >= 0 {
				r.owners[p] = owners[i]
			}
		}
	}
}

func (r *routing) partition(k bucket.Key) int { return k.Shard(len(r.owners)) }

// owns reports whether this node owns k. Whether it may decide depends on quorum and on the shard's seal.
func (r *routing) owns(k bucket.Key) bool { return r.owner(k) == r.self }

// owner returns the index in nodes of the owner of k, or noNode.
func (r *routing) owner(k bucket.Key) int { return int(r.owners[r.partition(k)]) }

// relay returns the index of a node that must relay k because its owner is not heard here, or noNode: one that is heard,
// another one for each try.
func (r *routing) relay(k bucket.Key, try int) int {
	if r.unheard == nil || !r.unheard[r.partition(k)] {
		return noNode
	}
	for i := range r.nodes {
		at := (i + try + int(k.Lo%uint64(len(r.nodes)))) % len(r.nodes)
		if n := &r.nodes[at]; at != r.self && n.lives && n.addr != "" {
			return at
		}
	}
	return noNode
}

// nameOf returns the name of the node with an index, "" for noNode.
func (r *routing) nameOf(place int) string {
	if place == noNode {
		return ""
	}
	return r.nodes[place].name
}

// find returns the index in nodes of the member called name, or noNode.
func (r *routing) find(name string) int {
	if i, ok := slices.BinarySearchFunc(r.nodes, name, func(n node, name string) int { return strings.Compare(n.name, name) }); ok {
		return i
	}
	return noNode
}

// Where the link between two nodes is cut, and a third node hears both, the third one relays: a node that does not hear a
// key's owner sends the check to another node, which forwards it to the owner. A relayed record is not relayed again, so
// there is one more hop and no loop.

// mostRelay bounds how long a relayed record waits for the owner: others of its stream wait behind it.
const mostRelay = 500 * time.Millisecond

// relays reports whether a record of k from the process with the boot id from can be relayed: another node than the sender
// owns the key, and is heard here.
func (r *routing) relays(from string, k bucket.Key) bool {
	to := r.owner(k)
	return to != noNode && to != r.self && r.nodes[to].lives && r.nodes[to].addr != "" && r.nodes[to].boot != from
}

// relay forwards records to their owners, and fills in their replies. byOwner has the indexes of the records, by the owner's
// index in routing.nodes.
func (n *Node) relay(r *routing, byOwner map[int][]int, records []check.Record, replies []check.Reply) {
	var all sync.WaitGroup
	for to, list := range byOwner {
		all.Go(func() { n.relayTo(r.nodes[to].addr, list, records, replies) })
	}
	all.Wait()
}

// relayTo forwards the records with these indexes to the node at addr.
func (n *Node) relayTo(addr string, indexes []int, records []check.Record, replies []check.Reply) {
	most := time.Duration(0)
	asked, answers := make([]check.Record, len(indexes)), make([]check.Reply, len(indexes))
	for j, i := range indexes {
		asked[j] = records[i]
		most = max(most, records[i].For)
		asked[j].Relay, asked[j].For = false, 0
	}
	ctx, cancel := context.WithTimeout(context.Background(), min(most, mostRelay))
	defer cancel()
	err := n.cfg.Peers.Call(ctx, addr, asked, answers)
	n.stats.relayed.Add(uint64(len(indexes)))
	for j, i := range indexes {
		switch {
		case answers[j].Status != 0:
			replies[i] = answers[j]
		case errors.Is(err, check.ErrUnsent) || errors.Is(err, check.ErrOverloaded):
			replies[i].Status = check.NotReady
		default:
			replies[i] = check.Reply{} // it may have been charged
		}
	}
}
