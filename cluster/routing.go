package cluster

import (
	"slices"
	"strings"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/ring"
)

// nobody stands for no node, where an index into routing.nodes is wanted.
const nobody = -1

// routing is all that a check needs to find its holder. One is published at a time;
// it is immutable but for superseded, which is closed when the next one is.
type routing struct {
	table *ring.Table
	seq   uint64 // of the view
	// nodes are the view's members in any state, sorted by name, self among them.
	nodes []node
	// self is this process's place in nodes and ring in table.Members; nobody if it
	// is not there.
	self, ring int
	// owners gives the place in nodes for a place in table.Members.
	owners     []int
	superseded chan struct{}
}

// node is a member as routing sees it.
type node struct{ name, addr string }

// newRouting makes routing from v. It keeps table, which was built from the names in
// before, if the serving members are still these.
func newRouting(c ring.Config, v member.View, name, boot string, before *routing) (*routing, error) {
	r := &routing{seq: v.Seq, self: nobody, ring: nobody, superseded: make(chan struct{})}
	members := slices.SortedFunc(slices.Values(v.Members), func(a, b member.Member) int { return strings.Compare(a.Name, b.Name) })
	var serving []string
	for i, m := range members {
		r.nodes = append(r.nodes, node{name: m.Name, addr: m.Peer})
		// A process that runs under this node's name and is not this one is somebody else.
		if m.Name == name && m.Boot == boot {
			r.self = i
		}
		if m.State == member.Serving {
			if r.self == i {
				r.ring = len(serving)
			}
			serving = append(serving, m.Name)
			r.owners = append(r.owners, i)
		}
	}
	if before != nil && slices.Equal(before.table.Members(), serving) {
		r.table = before.table
		return r, nil
	}
	table, err := ring.Build(c, serving)
	if err != nil {
		return nil, err
	}
	r.table = table
	return r, nil
}

func (r *routing) partition(k bucket.Key) int { return k.Shard(r.table.Partitions()) }

// holds reports whether this node decides k: while there are no epochs, whether the
// ring gives it the partition. All deciding asks here first.
func (r *routing) holds(k bucket.Key) bool {
	return r.ring != nobody && r.table.OwnerIndex(r.partition(k)) == r.ring
}

// owner returns the place in nodes of the node that should hold k, or nobody.
func (r *routing) owner(k bucket.Key) int {
	i := r.table.OwnerIndex(r.partition(k))
	if i < 0 {
		return nobody
	}
	return r.owners[i]
}

// find returns the place in nodes of the member called name, or nobody.
func (r *routing) find(name string) int {
	i, ok := slices.BinarySearchFunc(r.nodes, name, func(n node, name string) int { return strings.Compare(n.name, name) })
	if !ok {
		return nobody
	}
	return i
}

// members returns the size of the view, at least 1.
func (r *routing) members() int { return max(1, len(r.nodes)) }

// peerAddrs returns where the other members are.
func (r *routing) peerAddrs() []string {
	var addrs []string
	for i, n := range r.nodes {
		if i != r.self && n.addr != "" {
			addrs = append(addrs, n.addr)
		}
	}
	return addrs
}
