package limiter

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/ring"
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
	// Set, MayDecide, Reason and PartitionCounts are the node's own: see Overview.
	Set             VoterSet
	MayDecide       bool
	Reason          string
	Unreached       []string
	PartitionCounts PartitionCounts
	Clocks          Clocks
	LostRules       []LostRule
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
	m := Members{
		Set: o.Set, MayDecide: o.MayDecide, Reason: o.Reason, Unreached: o.Unreached,
		PartitionCounts: o.PartitionCounts, Clocks: o.Clocks, LostRules: o.LostRules,
	}
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

// Overview is the cluster and this node's place in it: see Config.Cluster.
type Overview struct {
	// View is that of gossip, Ring has the assigned owners; either may be nil.
	View *member.View
	Ring *ring.Table
	// Set is the voter set, zero while none is known.
	Set VoterSet
	// MayDecide: the node has quorum. If not, Reason says why, for people.
	MayDecide bool
	Reason    string
	// Unreached are the nodes that this one waits for and cannot reach, a sentence each.
	Unreached []string
	// Standings are those of other processes, in any order.
	Standings       []Standing
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

// Standing and Clocks are what the node knows of processes and clocks.
type (
	Standing = member.Standing
	Clocks   = member.Clocks
)

// PartitionCounts are numbers of partitions of a node, as of now. Their JSON form is that of the HTTP API.
type PartitionCounts struct {
	// Owned are those that the node owns.
	Owned int `json:"owned"`
	// Unprotected are owned ones without a complete replica.
	Unprotected int `json:"unprotected"`
	// BelowReplicas are owned ones with fewer complete replicas than are wanted and than there are nodes for.
	BelowReplicas int `json:"below_replicas"`
	// HandingOver are in handoff to another owner.
	HandingOver int `json:"handing_over"`
	// Replicas are those of partitions that other nodes own.
	Replicas int `json:"replicas"`
	// TakingOver are takeovers in progress, of partitions without a living owner.
	TakingOver int `json:"taking_over"`
	// Divergent are states that are still to be merged into their owner's.
	Divergent int `json:"divergent"`
	// Lost are owned ones that were taken over without their counters.
	Lost int `json:"lost"`
}

// LostRule is a rule that denies keys of partitions whose counters are lost, for at most Left.
type LostRule struct {
	Domain, Rule string
	Left         time.Duration
}

// The errors of Config.Forget, alone or wrapped with more.
var (
	ErrNotVoter  = &Error{Code: NotFound, Message: "it is not in the voter set"}
	ErrAlive     = &Error{Code: Rejected, Message: "it is alive; stop it first"}
	ErrThisNode  = &Error{Code: Rejected, Message: "it is the node that received the call; stop it, and call another"}
	ErrLastVoter = &Error{Code: Rejected, Message: "it is the only member of the voter set"}
	ErrNoSet     = &Error{Code: Rejected, Message: "this node knows no voter set; call one that does"}
)

// ErrHasQuorum is the error of Config.Bootstrap.
var ErrHasQuorum = &Error{Code: Rejected, Message: "this node has quorum in its voter set, so nothing has to be founded"}

// Bootstrap implements Service.
func (l *Limiter) Bootstrap(ctx context.Context) (VoterSet, error) {
	if l.config.Bootstrap == nil {
		return VoterSet{}, ErrHasQuorum
	}
	switch err := l.config.Bootstrap(ctx); {
	case err == nil:
		return l.config.Cluster(ctx).Set, nil
	case errors.Is(err, ErrHasQuorum):
		return VoterSet{}, ErrHasQuorum
	default:
		return VoterSet{}, &Error{Code: Unavailable, Message: fmt.Sprintf("cannot bootstrap: %v", err)}
	}
}

// AcceptLoss implements Service.
func (l *Limiter) AcceptLoss(ctx context.Context) (partitions int, told []string, err error) {
	if l.config.AcceptLoss == nil {
		return 0, nil, nil
	}
	if partitions, told, err = l.config.AcceptLoss(ctx); err != nil {
		return 0, nil, &Error{Code: Unavailable, Message: fmt.Sprintf("cannot accept the loss: %v", err)}
	}
	return partitions, told, nil
}

// Forget implements Service.
func (l *Limiter) Forget(ctx context.Context, name string) (VoterSet, error) {
	if fault := textError(name, false); fault != "" {
		return VoterSet{}, &Error{Code: Invalid, Field: "name", Message: fault}
	}
	var err error = ErrNoSet
	if l.config.Forget != nil {
		err = l.config.Forget(ctx, name)
	}
	if err == nil {
		return l.config.Cluster(ctx).Set, nil
	}
	code := Unavailable
	if e, ok := errors.AsType[*Error](err); ok {
		code = e.Code
	}
	return VoterSet{}, &Error{Code: code, Message: fmt.Sprintf("cannot forget %q: %v", name, err)}
}
