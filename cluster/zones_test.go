package cluster

import (
	"fmt"
	"slices"
	"testing"

	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/ring"
)

// TestReplicaNodes: replicas are in another zone than the owner's where there is one, and in a third where there is one; both are at
// other nodes than the owner and than each other; without zones the first is at the assigned owner without this process; and where
// zones are as large as each other no node has many more than its part.
func TestReplicaNodes(t *testing.T) {
	for _, c := range []struct {
		name  string
		zones []string // of each node
		// apart says how many different zones owner and replicas have.
		apart int
		// most is how many replicas the fullest node may have, of the average.
		most float64
	}{
		{"one node", []string{""}, 0, 0},
		{"two nodes", []string{"", ""}, 0, 1.1},
		{"three nodes", []string{"", "", ""}, 0, 1.1},
		{"five nodes", []string{"", "", "", "", ""}, 0, 1.15},
		{"three zones of one", []string{"a", "b", "c"}, 3, 1.1},
		{"three zones of two", []string{"a", "b", "c", "a", "b", "c"}, 3, 1.15},
		{"three zones of four", []string{"a", "b", "c", "a", "b", "c", "a", "b", "c", "a", "b", "c"}, 3, 1.2},
		{"two zones of three", []string{"a", "a", "a", "b", "b", "b"}, 2, 1.15},
		{"one zone", []string{"a", "a", "a"}, 1, 1.1},
		{"two zones, one of one node", []string{"a", "a", "a", "a", "b"}, 2, 2.2},
		{"one node does not know its zone", []string{"a", "b", "c", ""}, 0, 1.4},
	} {
		var names []string
		for i := range c.zones {
			names = append(names, fmt.Sprintf("n%02d", i))
		}
		has := make([]int, len(names))
		for self, name := range names {
			v := viewOf(1, names...)
			for i := range v.Members {
				v.Members[i].Zone = c.zones[i]
			}
			nodes, at := nodesOf(v, message.Peer{Name: name, Boot: bootOf(name)})
			for i := range nodes {
				nodes[i].lives = true
			}
			none, err := ring.Build(ring.Config{}, nil)
			must(t, err)
			p := assign(ring.Config{}, &liveMembers{1, nodes, at}, &assignment{table: none, withoutSelf: none})
			for part, owner := range p.view.Owner {
				if owner != self {
					continue
				}
				want := min(2, len(names)-1)
				var all []int
				for _, i := range []int{p.view.Replica[part], p.view.Second[part]} {
					if i != noNode {
						has[i]++
						all = append(all, i)
					}
				}
				if len(all) != want || slices.Contains(all, self) || want == 2 && all[0] == all[1] {
					t.Fatalf("%s: the replicas of partition %d, which %s owns, are at %v", c.name, part, name, all)
				}
				if first := p.view.Replica[part]; !slices.Contains(c.zones, "a") && nameAt(p.view.Members, first) != p.withoutSelf.Owner(part) {
					t.Fatalf("%s: the first replica of partition %d is at n%02d, and %s would take over", c.name, part, first, p.withoutSelf.Owner(part))
				}
				zones := map[string]bool{c.zones[self]: true}
				for _, i := range all {
					zones[c.zones[i]] = true
				}
				if len(zones) < c.apart || c.apart > 1 && c.zones[all[0]] == c.zones[self] {
					t.Fatalf("%s: partition %d is in zone %q, and its replicas at %v", c.name, part, c.zones[self], all)
				}
			}
		}
		total := 0
		for _, n := range has {
			total += n
		}
		ratio := float64(slices.Max(has)) * float64(len(has)) / float64(max(1, total))
		t.Logf("%s: %v, the fullest has %.2f of the average", c.name, has, ratio)
		if ratio > c.most {
			t.Errorf("%s: the nodes have %v replicas, the fullest %.2f of the average, want at most %.2f", c.name, has, ratio, c.most)
		}
	}
}
