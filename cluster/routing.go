package cluster

import (
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/ring"
)

// noNode is an index into routing.nodes that stands for none.
const noNode = -1

// routing is the routing table: the owner of each partition, as far as this node knows. It is immutable; superseded is closed when
// the next one is published.
type routing struct {
	table *ring.Table // of the members that serve and live
	nodes []node      // the view's members in any state, sorted by name, self among them
	self  int         // this process's index in nodes
	// owners has each partition's owner, an index in nodes: the known one, else the assigned one, which will claim it; or noNode
	// if no member serves.
	owners []int32
	// unheard has the owners of the partitions that are owned by a process that this one does not hear, and nil for the others. It
	// is nil if there are none.
	unheard []*message.Peer
	// voters is the size of the voter set with which this process last had quorum; of the view before it had any.
	voters     int
	superseded chan struct{}
	// since is when this node has become the owner of each partition that it owns.
	since []int64
}

// node is a member as routing sees it.
type node struct {
	name, boot, addr string
	zone             string
	state            member.State
	lives            bool // see runner.lives
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

// setOwners sets owners and unheard. It runs for each of the hundreds of handoffs of a join, so it does not search for the same
// name twice in a row.
func (r *routing) setOwners(owner func(partition int) message.Peer) {
	owners := make([]int32, len(r.table.Members()))
	for i, name := range r.table.Members() {
		owners[i] = int32(r.find(name))
	}
	var last message.Peer
	var silent *message.Peer
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
				r.unheard = make([]*message.Peer, len(r.owners))
			}
			if silent == nil || *silent != last {
				silent = &message.Peer{Name: last.Name, Boot: last.Boot}
			}
			r.unheard[p] = silent
		}
		r.owners[p] = place
		if place == noNode {
			if i := r.table.OwnerIndex(p); i >= 0 {
				r.owners[p] = owners[i]
			}
		}
	}
}

// noteOwned sets since, where old is the routing before.
func (r *routing) noteOwned(old *routing, now int64) {
	r.since = make([]int64, len(r.owners))
	for p, owner := range r.owners {
		if r.since[p] = now; int(owner) == r.self && int(old.owners[p]) == old.self && old.since != nil {
			r.since[p] = old.since[p]
		}
	}
}

func (r *routing) partition(k bucket.Key) int { return k.Shard(len(r.owners)) }

// owns reports whether this node owns k. Whether it may decide depends on quorum and on the shard's seal.
func (r *routing) owns(k bucket.Key) bool { return r.owner(k) == r.self }

// owner returns the index in nodes of the owner of k, or noNode.
func (r *routing) owner(k bucket.Key) int { return int(r.owners[r.partition(k)]) }

// silent returns the owner of k if this process does not hear it, else nil.
func (r *routing) silent(k bucket.Key) *message.Peer {
	if r.unheard == nil {
		return nil
	}
	return r.unheard[r.partition(k)]
}

// ownerOf returns the process that owns a partition as far as this node knows, whether it is heard or not; the zero Peer if no
// member serves.
func (r *routing) ownerOf(partition int) message.Peer {
	switch {
	case r.unheard != nil && r.unheard[partition] != nil:
		return *r.unheard[partition]
	case r.owners[partition] == noNode:
		return message.Peer{}
	}
	return r.nodes[r.owners[partition]].peer()
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
