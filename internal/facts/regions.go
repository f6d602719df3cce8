package facts

import (
	"cmp"
	"maps"
	"slices"
)

// RegionView is a region as the nodes of one region see it.
type RegionView struct {
	// Region has the state and the reason of a node that is not linked, if there is one, and the longest round trip.
	Region
	// Self: it is the region of these nodes. Its Reason is their RoleProblem.
	Self bool
	// Linked is how many nodes are linked to it, of Of that know.
	Linked, Of int
	// Undecided: the nodes' region is to decide the keys whose home it is, and does not now.
	Undecided bool
}

// RegionsOf returns how nodes of one region see the regions: their own first, then the others by name; nil without others.
func RegionsOf(nodes []Node) []RegionView {
	own, others := RegionView{Self: true}, map[string]*RegionView{}
	var decides []string
	for i := range nodes {
		n := &nodes[i]
		decides = append(decides, n.Decides...)
		own.Name, own.Weight, own.DecidedBy = cmp.Or(own.Name, n.Region), cmp.Or(own.Weight, n.Weight), cmp.Or(n.DecidedBy, own.DecidedBy)
		if n.RoleProblem != "" {
			own.Reason = n.Name + ": " + n.RoleProblem
		}
		for j := range n.Regions {
			r := &n.Regions[j]
			v := others[r.Name]
			if v == nil {
				v = &RegionView{Region: Region{Name: r.Name, State: RegionUnknown}}
				others[r.Name] = v
			}
			v.add(n.Name, r)
		}
	}
	if len(others) == 0 {
		return nil
	}
	list := []RegionView{own}
	for _, name := range slices.Sorted(maps.Keys(others)) {
		list = append(list, *others[name])
	}
	for i := range list {
		v := &list[i]
		slices.Sort(v.Nodes)
		v.Nodes = slices.Compact(v.Nodes)
		if slices.Contains(decides, v.Name) {
			v.DecidedBy = own.Name
		} else {
			v.Undecided = v.DecidedBy == own.Name && own.Name != ""
		}
	}
	return list
}

// add adds what a node says. A node that knows nothing yet hides nothing.
func (v *RegionView) add(node string, r *Region) {
	v.Weight, v.DecidedBy, v.RTT = cmp.Or(v.Weight, r.Weight), cmp.Or(r.DecidedBy, v.DecidedBy), max(v.RTT, r.RTT)
	v.Nodes = append(v.Nodes, r.Nodes...)
	if v.Reason == "" && r.Reason != "" {
		v.Reason = node + ": " + r.Reason
	}
	switch {
	case r.State == v.State:
		v.InState = max(v.InState, r.InState)
	case v.State == RegionUnknown, v.State == RegionLinked && r.State != RegionUnknown:
		v.State, v.InState = r.State, r.InState
	}
	if r.State == RegionLinked {
		v.Linked++
	}
	if r.State != RegionUnknown {
		v.Of++
	}
}
