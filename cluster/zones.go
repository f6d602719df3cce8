package cluster

import (
	"github.com/cespare/xxhash/v2"

	"github.com/sluice-project/sluice/internal/member"
)

// replicaNode is a member that may have replicas of this process's partitions.
type replicaNode struct {
	place int // in the view's Members
	hash  uint64
	zone  string
}

// replicaNodes returns for each partition the members that should have this process's first and second replica, as places in the view's
// Members, or nobody. The first is the owner in the ring without this process, who would take the partition over, unless
// another zone than this process's has members and that one is not in it. The second is in a third zone where there is one. What the ring
// does not say is placed by rendezvous hashing, so few replicas move when a member comes or goes.
func replicaNodes(s *scene, ringOwner []int) (first, second []int) {
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
			case apart(zone, n.zone):
				return 1 + boolInt(n.place == owner)
			case n.place == owner:
				return 0
			}
			return -1
		})
		first[p], second[p] = nobody, nobody
		if a == nil {
			continue
		}
		first[p] = a.place
		b := best(others, p, func(n replicaNode) int {
			if n.place == a.place {
				return -1
			}
			return boolInt(apart(zone, n.zone) && apart(a.zone, n.zone))
		})
		if b != nil {
			second[p] = b.place
		}
	}
	return first, second
}

// apart reports whether two zones are known and not the same.
func apart(a, b string) bool { return a != "" && b != "" && a != b }

func boolInt(b bool) int {
	if b {
		return 1
	}
	return 0
}

// best returns the node of the highest rank, and of those the one of the highest weight for a partition; nil if all ranks are below 0.
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
