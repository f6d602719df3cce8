package facts

import (
	"reflect"
	"testing"
	"time"
)

// TestRegionsOf: a region is as bad as the node that sees it worst, but for nodes that know nothing yet; only a region that must decide
// keys and does not is said not to.
func TestRegionsOf(t *testing.T) {
	node := func(name string, change func(*Node), regions ...Region) Node {
		n := Node{Name: name, Region: "eu", Weight: 2, DecidedBy: "eu", Regions: regions}
		change(&n)
		return n
	}
	decides := func(homes ...string) func(*Node) { return func(n *Node) { n.Decides = homes } }
	us := func(state RegionState, seconds int, change func(*Region)) Region {
		r := Region{Name: "us", State: state, InState: time.Duration(seconds) * time.Second, Weight: 3, DecidedBy: "us"}
		if change != nil {
			change(&r)
		}
		return r
	}
	own := RegionView{Region: Region{Name: "eu", Weight: 2, DecidedBy: "eu"}, Self: true}
	for _, c := range []struct {
		name  string
		nodes []Node
		want  []RegionView
	}{
		{"no others", []Node{node("e1", decides("eu"))}, nil},
		{"just started", []Node{{Name: "e1", Region: "eu", Weight: 2, Regions: []Region{{Name: "us", State: RegionUnknown, InState: 1, Weight: 3}}}}, []RegionView{
			{Region: Region{Name: "eu", Weight: 2}, Self: true}, {Region: Region{Name: "us", State: RegionUnknown, InState: 1, Weight: 3}},
		}},
		{"one has just started", []Node{node("e1", decides("eu"), us(RegionLinked, 9, func(r *Region) { r.Nodes, r.RTT = []string{"u2", "u1"}, 60 })), node("e2", decides(), us(RegionUnknown, 1, nil))}, []RegionView{
			own, {Region: us(RegionLinked, 9, func(r *Region) { r.Nodes, r.RTT = []string{"u1", "u2"}, 60 }), Linked: 1, Of: 1},
		}},
		{"one is cut off", []Node{
			node("e1", decides("eu"), us(RegionLinked, 90, func(r *Region) { r.RTT = 60 })), node("e2", decides(), us(RegionUnreached, 5, func(r *Region) { r.Reason, r.RTT = "refused", 70 })),
			node("e3", decides(), us(RegionUnreached, 6, func(r *Region) { r.Reason = "no hello" })),
		}, []RegionView{
			own, {Region: us(RegionUnreached, 6, func(r *Region) { r.Reason, r.RTT = "e2: refused", 70 }), Linked: 1, Of: 3},
		}},
		{"not in force", []Node{node("e1", func(n *Node) { n.RoleProblem = "few are heard" }, us(RegionUnusable, 5, nil))}, []RegionView{
			{Region: Region{Name: "eu", Weight: 2, DecidedBy: "eu", Reason: "e1: few are heard"}, Self: true, Undecided: true}, {Region: us(RegionUnusable, 5, nil), Of: 1},
		}},
		{"taken over", []Node{node("e1", decides("eu", "us"), us(RegionUnreached, 5, func(r *Region) { r.DecidedBy = "eu" }))}, []RegionView{
			own, {Region: us(RegionUnreached, 5, func(r *Region) { r.DecidedBy = "eu" }), Of: 1},
		}},
	} {
		if got := RegionsOf(c.nodes); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v\nwant %+v", c.name, got, c.want)
		}
	}
}
