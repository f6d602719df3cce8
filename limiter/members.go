package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/ring"
)

// Members is the cluster as one node sees it.
type Members struct {
	// Self is the name of this node.
	Self string
	// Members are sorted by name: those of gossip, in any state, and the Missing.
	Members []Member
	// Ring is the hash of the ring table, 16 hex digits, and Partitions its number of partitions. Nodes that agree have the
	// same hash. Empty before the first table.
	Ring       string
	Partitions int
	State
	// Health is judged by this node alone; that of Status by the reports of all.
	Health Health
}

// Member is one member, its partitions, and its standing with this node.
type Member struct {
	member.Member
	// Missing: it is in the voter set but not in gossip. Of the embedded Member only Name is known.
	Missing bool
	// Partitions is how many the ring assigns to it, Owned how many it owns as far as this node knows.
	Partitions, Owned int
	// Voter: it is in the voter set.
	Voter bool
	// Alive, Silent and Ahead are as in Standing.
	Alive  bool
	Silent time.Duration
	Ahead  *time.Duration
}

// StateName is the state that the member announces, or "missing".
func (m *Member) StateName() string {
	if m.Missing {
		return "missing"
	}
	return m.State.String()
}

// Serves reports whether the member decides checks of clients.
func (m *Member) Serves() bool { return !m.Missing && m.State == member.Serving && m.GRPC != "" }

// membersOf joins the parts of an overview.
func membersOf(o Overview) Members {
	m := Members{State: o.State}
	if o.Ring != nil {
		m.Ring = fmt.Sprintf("%016x", o.Ring.Hash())
		m.Partitions = o.Ring.Partitions()
	}
	if o.View != nil {
		m.Self = o.View.Self
		for _, one := range o.View.Members {
			m.Members = append(m.Members, Member{Member: one})
		}
	}
	for _, name := range o.Set.Members {
		if !slices.ContainsFunc(m.Members, func(one Member) bool { return one.Name == name }) {
			m.Members = append(m.Members, Member{Member: member.Member{Name: name}, Missing: true})
		}
	}
	slices.SortFunc(m.Members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })

	for i := range m.Members {
		one := &m.Members[i]
		_, one.Voter = slices.BinarySearch(o.Set.Members, one.Name)
		if o.Ring != nil {
			one.Partitions = o.Ring.Owned(one.Name)
		}
		one.Silent = -1
		for _, s := range o.Standings { // not of an earlier process of that name
			if s.Name == one.Name && s.Boot == one.Boot {
				one.Alive, one.Silent, one.Owned, one.Ahead = s.Alive, s.Silent, s.Owned, s.Ahead
			}
		}
		if one.Name == m.Self && !one.Missing {
			one.Alive, one.Silent = true, 0
		}
	}
	return m
}

// Overview is what Cluster knows of the cluster and of this node's place in it.
type Overview struct {
	// View is that of gossip, Ring has the assigned owners; either may be nil.
	View *member.View
	Ring *ring.Table
	// Standings are those of other processes, in any order.
	Standings []Standing
	State
}

// State is a node's own.
type State struct {
	// Set is the voter set, zero while none is known.
	Set VoterSet
	// MayDecide: the node has quorum. If not, Reason says why, for people.
	MayDecide bool
	Reason    string
	// Unreached are the nodes that this one waits for and cannot reach, a sentence each.
	Unreached       []string
	PartitionCounts PartitionCounts
	Clocks          Clocks
	// LostRules are rules that deny because of PartitionCounts.Lost, at most 20.
	LostRules []LostRule
}

// VoterSet is one version of the names that majorities are counted in. Its JSON form is that of the HTTP API.
type VoterSet struct {
	// ClusterID is the boot id of the process that founded it. Versions compare within one ClusterID only.
	ClusterID string `json:"cluster_id"`
	// Version counts from 1; 0 is no set.
	Version uint64 `json:"version"`
	// Members are names, sorted.
	Members []string `json:"members"`
}

// What the node knows of processes, clocks and its partitions.
type (
	Standing        = member.Standing
	Clocks          = member.Clocks
	PartitionCounts = facts.PartitionCounts
)

// LostRule is a rule that denies keys of partitions whose counters are lost, for at most Left.
type LostRule struct {
	Domain, Rule string
	Left         time.Duration
}

// Bootstrap implements Service.
func (l *Limiter) Bootstrap(ctx context.Context) (VoterSet, error) {
	return l.changed(ctx, "bootstrap", l.config.Cluster.Bootstrap(ctx))
}

// AcceptLoss implements Service.
func (l *Limiter) AcceptLoss(ctx context.Context) (partitions int, told []string, err error) {
	if partitions, told, err = l.config.Cluster.AcceptLoss(ctx); err != nil {
		return 0, nil, &Error{Code: Unavailable, Message: fmt.Sprintf("cannot accept the loss: %v", err)}
	}
	return partitions, told, nil
}

// Forget implements Service.
func (l *Limiter) Forget(ctx context.Context, name string) (VoterSet, error) {
	if fault := textError(name, false); fault != "" {
		return VoterSet{}, &Error{Code: Invalid, Field: "name", Message: fault}
	}
	return l.changed(ctx, fmt.Sprintf("forget %q", name), l.config.Cluster.Forget(ctx, name))
}

// PromoteRegion implements Service.
func (l *Limiter) PromoteRegion(ctx context.Context, region, home string, stopped bool) error {
	for _, f := range []struct{ name, value string }{{"region", region}, {"home", home}} {
		if fault := textError(f.value, false); fault != "" {
			return &Error{Code: Invalid, Field: f.name, Message: fault}
		}
	}
	_, err := l.changed(ctx, fmt.Sprintf("promote region %q", region), l.config.Cluster.PromoteRegion(ctx, region, home, stopped))
	return err
}

// changed returns the voter set after a change by hand, or the API's error for err.
func (l *Limiter) changed(ctx context.Context, change string, err error) (VoterSet, error) {
	if err == nil {
		return l.config.Cluster.Overview(ctx).Set, nil
	}
	code := Unavailable
	if r, ok := errors.AsType[member.Rejection](err); ok {
		if code = Rejected; r == member.ErrNotVoter {
			code = NotFound
		}
	}
	return VoterSet{}, &Error{Code: code, Message: fmt.Sprintf("cannot %s: %v", change, err)}
}
