package cluster

import (
	"context"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/ring"
)

// liveMembers has the members of a view, each with whether it lives. It is immutable.
type liveMembers struct {
	seq   uint64 // of gossip's view
	nodes []node // sorted by name
	self  int    // index in nodes
}

func (m *liveMembers) state() member.State { return m.nodes[m.self].state }

// byName returns the node that gossip shows under name, nil if none.
func (m *liveMembers) byName(name string) *node {
	if i := slices.IndexFunc(m.nodes, func(n node) bool { return n.name == name }); i >= 0 {
		return &m.nodes[i]
	}
	return nil
}

// assignment has the assigned owners and replica nodes for liveMembers: the ring table of the members that serve and live, and the
// table without this process, whose owners are its replica nodes where zones allow it.
type assignment struct {
	live        *liveMembers
	table       *ring.Table
	withoutSelf *ring.Table
	view        handoff.View
	changed     bool // table is another than before
	err         error
}

// assign returns the assignment of m. Tables of before are reused where the members are the same.
func assign(c ring.Config, m *liveMembers, before *assignment) *assignment {
	a := &assignment{live: m}
	var all, others []string
	for i, n := range m.nodes {
		if !n.lives {
			continue
		}
		a.view.Members, a.view.Serves = append(a.view.Members, n.peer()), append(a.view.Serves, n.state == member.Serving)
		if n.state == member.Serving {
			all = append(all, n.name)
			if i != m.self {
				others = append(others, n.name)
			}
		}
	}
	a.table, a.withoutSelf = before.table, before.withoutSelf
	if !slices.Equal(a.table.Members(), all) {
		a.changed = true
		if a.table, a.err = ring.Build(c, all); a.err != nil {
			return a
		}
	}
	switch {
	case len(all) == len(others):
		a.withoutSelf = a.table
	case !slices.Equal(a.withoutSelf.Members(), others):
		if a.withoutSelf, a.err = ring.Build(c, others); a.err != nil {
			return a
		}
	}
	a.view.Owner = owners(a.table, a.view.Members)
	a.view.Replica, a.view.Second = replicaNodes(m, owners(a.withoutSelf, a.view.Members))
	return a
}

// owners lists t's owners by partition, as indexes in members, which has them all.
func owners(t *ring.Table, members []message.Peer) []int {
	places := make([]int, len(t.Members()))
	for i, name := range t.Members() {
		places[i] = slices.IndexFunc(members, func(p message.Peer) bool { return p.Name == name })
	}
	list := make([]int, t.Partitions())
	for p := range list {
		list[p] = noNode
		if i := t.OwnerIndex(p); i >= 0 {
			list[p] = places[i]
		}
	}
	return list
}

// assigner builds assignments in a goroutine of its own: a ring table takes milliseconds, for which heartbeats must not wait. Of
// several requests it serves the last.
type assigner struct {
	config ring.Config
	retain func(addrs []string)
	last   *assignment       // of the goroutine
	next   chan *liveMembers // holds the last request
	done   chan *assignment  // to the runner
}

func newAssigner(c ring.Config, retain func([]string), first *assignment) *assigner {
	return &assigner{c, retain, first, make(chan *liveMembers, 1), make(chan *assignment)}
}

// request requests the assignment of m. It does not block. Only the runner may call it.
func (a *assigner) request(m *liveMembers) {
	select {
	case <-a.next:
	default:
	}
	a.next <- m
}

// run builds assignments until ctx ends.
func (a *assigner) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case m := <-a.next:
			next := assign(a.config, m, a.last)
			if next.err == nil {
				a.last = next
				var addrs []string // of the other members, also those that do not live
				for i, n := range m.nodes {
					if i != m.self && n.addr != "" {
						addrs = append(addrs, n.addr)
					}
				}
				a.retain(addrs)
			}
			select {
			case <-ctx.Done():
			case a.done <- next:
			}
		}
	}
}

// signal wakes the receiver of a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// replicaNode is a member that may have replicas of this process's partitions.
type replicaNode struct {
	member int // index in the view's Members
	hash   uint64
	zone   string
}

// replicaNodes returns for each partition the members that should have this process's first and second replica, as indexes in
// the view's Members, or noNode. The first is the owner in the ring without this process, which would take the partition over,
// unless it is in this process's zone and another zone has members. The second is in a third zone where there is one. The
// others are placed by rendezvous hashing, so few replicas move when a member comes or goes.
func replicaNodes(s *liveMembers, ringOwner []int) (first, second []int) {
	var others []replicaNode
	at, zone := 0, s.nodes[s.self].zone
	for i, n := range s.nodes {
		if !n.lives {
			continue
		}
		if i != s.self && n.state == member.Serving {
			others = append(others, replicaNode{at, xxhash.Sum64String(n.name), n.zone})
		}
		at++
	}
	first, second = make([]int, len(ringOwner)), make([]int, len(ringOwner))
	for p, owner := range ringOwner {
		a := best(others, p, func(n replicaNode) int {
			switch {
			case zonesDiffer(zone, n.zone):
				return 1 + boolInt(n.member == owner)
			case n.member == owner:
				return 0
			}
			return -1
		})
		first[p], second[p] = noNode, noNode
		if a == nil {
			continue
		}
		first[p] = a.member
		b := best(others, p, func(n replicaNode) int {
			if n.member == a.member {
				return -1
			}
			return boolInt(zonesDiffer(zone, n.zone) && zonesDiffer(a.zone, n.zone))
		})
		if b != nil {
			second[p] = b.member
		}
	}
	return first, second
}

// zonesDiffer reports whether two zones are known and not the same.
func zonesDiffer(a, b string) bool { return a != "" && b != "" && a != b }

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// best returns the node of the highest rank, of several the one of the highest weight for a partition; nil if all ranks are
// below 0.
func best(nodes []replicaNode, partition int, rank func(replicaNode) int) (found *replicaNode) {
	most, weight := 0, uint64(0)
	for i := range nodes {
		n := &nodes[i]
		r := rank(*n)
		if r < most {
			continue
		}
		if w := mix(n.hash + uint64(partition)); found == nil || r > most || w > weight {
			found, most, weight = n, r, w
		}
	}
	return found
}

// mix is the finalizer of splitmix64: every bit of x moves every bit of the result.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
