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
	// Self is the name of the node that answers.
	Self string
	// Members are sorted by name: whom gossip shows, in any state, and the Missing.
	Members []Member
	// Ring is the ring table's hash, 16 hex digits: equal on nodes that agree.
	// It is empty before the first table.
	Ring string
	// Partitions is the ring table's number of partitions.
	Partitions int
	// Set, MayDecide, Reason and Holdings are the node's own: see Overview.
	Set       VoterSet
	MayDecide bool
	Reason    string
	Unreached []string
	Holdings  Holdings
	Clocks    Clocks
	LostRules []LostRule
}

// Member is one member, its share of the ring, and how it stands with the node that
// answers.
type Member struct {
	member.Member
	// Missing: the voter set counts it and gossip does not show it. Of the embedded
	// Member only Name is known.
	Missing bool
	// Partitions is how many the ring gives to it, Holds how many it holds as far as the
	// node knows.
	Partitions, Holds int
	// Counted: it is in the voter set.
	Counted bool
	// Lives: heard from just now. Silent is how long it has not been; negative if that
	// is not known.
	Lives  bool
	Silent time.Duration
	// Ahead is how far its clock is ahead; nil if that is not known.
	Ahead *time.Duration
}

// StateName is the member's own word about itself, or "missing".
func (m *Member) StateName() string {
	if m.Missing {
		return "missing"
	}
	return m.State.String()
}

// membersOf joins the parts of an overview.
func membersOf(o Overview) Members {
	m := Members{Set: o.Set, MayDecide: o.MayDecide, Reason: o.Reason, Unreached: o.Unreached, Holdings: o.Holdings, Clocks: o.Clocks, LostRules: o.LostRules}
	if o.Ring != nil {
		m.Ring = fmt.Sprintf("%016x", o.Ring.Hash())
		m.Partitions = o.Ring.Partitions()
	}
	shown := make(map[string]bool)
	if o.View != nil {
		m.Self = o.View.Self
		for _, one := range o.View.Members {
			shown[one.Name] = true
			m.Members = append(m.Members, Member{Member: one})
		}
	}
	for _, name := range o.Set.Members {
		if !shown[name] {
			m.Members = append(m.Members, Member{Member: member.Member{Name: name}, Missing: true})
		}
	}
	slices.SortFunc(m.Members, func(a, b Member) int { return cmp.Compare(a.Name, b.Name) })

	type process struct{ name, boot string }
	standings := make(map[process]Standing, len(o.Standings))
	for _, s := range o.Standings {
		standings[process{s.Name, s.Boot}] = s
	}
	for i := range m.Members {
		one := &m.Members[i]
		_, one.Counted = slices.BinarySearch(o.Set.Members, one.Name)
		if o.Ring != nil {
			one.Partitions = o.Ring.Owned(one.Name)
		}
		one.Silent = -1
		// What is known of another run of the process does not count.
		if s, ok := standings[process{one.Name, one.Boot}]; ok {
			one.Lives, one.Silent, one.Holds, one.Ahead = s.Lives, s.Silent, s.Holds, s.Ahead
		}
		if one.Name == m.Self && !one.Missing {
			one.Lives, one.Silent = true, 0
		}
	}
	return m
}

// Overview is what Config.Cluster tells: who is there, and how the node stands among
// them. It is a value; the caller keeps nothing of it.
type Overview struct {
	// View is who gossip shows, Ring who should hold what; either may be nil.
	View *member.View
	Ring *ring.Table
	// Set is the voter set, zero while none is known.
	Set VoterSet
	// MayDecide: the node has quorum to decide. If not, Reason says why, for people.
	MayDecide bool
	Reason    string
	// Unreached says what the node does not reach and waits for, a sentence each.
	Unreached []string
	// Standings are how other processes stand with this one, in any order.
	Standings []Standing
	Holdings  Holdings
	Clocks    Clocks
	// LostRules are rules that deny because of Holdings.Lost, at most 20.
	LostRules []LostRule
}

// VoterSet is one version of the names that majorities are counted in.
type VoterSet struct {
	// Cluster ID is the boot id of the process that founded it: versions of two cluster IDs
	// have nothing to do with each other.
	ClusterID string `json:"cluster_id"`
	// Version counts from 1; 0 is no set.
	Version uint64 `json:"version"`
	// Members are names, sorted.
	Members []string `json:"members"`
}

// Standing is what a node knows of one process.
type Standing struct {
	// Boot is empty for a name that is counted and that gossip does not show.
	Name, Boot string
	// Lives: heard from just now.
	Lives bool
	// Silent is how long it has not been heard from; negative if that is not known.
	Silent time.Duration
	// Holds is how many partitions it holds, as far as is known.
	Holds int
	// Ahead is how far its clock is ahead; nil if that is not known.
	Ahead *time.Duration
}

// Clocks is how the voters' clocks stand.
type Clocks struct {
	// Known: those of a majority are known. Agree: those of a majority do.
	Known, Agree bool
	// Correction is how far the node aligns windows ahead of its own clock.
	Correction time.Duration
}

// Holdings are numbers of partitions that a node has something of, as of now.
type Holdings struct {
	// Holding are those that the node owns.
	Holding int `json:"holding"`
	// Unprotected are owned ones without a complete replica.
	Unprotected int `json:"unprotected"`
	// BelowReplicas are owned ones with fewer complete replicas than are wanted and than there are nodes for.
	BelowReplicas int `json:"below_replicas"`
	// HandingOver are in handoff to another owner.
	HandingOver int `json:"handing_over"`
	// Copies are replicas of partitions that other nodes own.
	Copies int `json:"copies"`
	// Claims are takeovers in progress, of partitions without a living owner.
	Claims int `json:"claims"`
	// Divergent are states that are still to be merged into their owner's.
	Divergent int `json:"divergent"`
	// Lost are owned ones that were taken over without their counters.
	Lost int `json:"lost"`
}

// LostRule is a rule that denies keys of partitions whose counters are lost, for how much longer at most.
type LostRule struct {
	Domain, Rule string
	Left         time.Duration
}

// Why a member is not forgotten: what Config.Forget returns, alone or wrapped with more.
var (
	// ErrNotCounted: nobody in the voter set has that name.
	ErrNotCounted = &Error{Code: NotFound, Message: "it is not in the voter set"}
	// ErrLives: the member is heard from, so it cannot be gone.
	ErrLives = &Error{Code: Rejected, Message: "it lives; stop it first"}
	// ErrThisNode: the name is that of the node that was asked.
	ErrThisNode = &Error{Code: Rejected, Message: "it is the node that was asked; stop it, and ask another"}
	// ErrLastCounted: nobody would be left to count.
	ErrLastCounted = &Error{Code: Rejected, Message: "nobody else is in the voter set"}
	// ErrNoSet: the node knows no voter set.
	ErrNoSet = &Error{Code: Rejected, Message: "this node knows no voter set; ask one that does"}
)

// ErrHasQuorum is why a node founds no voter set by hand: what Config.Bootstrap returns.
var ErrHasQuorum = &Error{Code: Rejected, Message: "this node has quorum in its voter set, so nothing has to be founded"}

// Bootstrap implements Service.
func (s *Limiter) Bootstrap(ctx context.Context) (VoterSet, error) {
	if s.config.Bootstrap == nil {
		return VoterSet{}, ErrHasQuorum
	}
	switch err := s.config.Bootstrap(ctx); {
	case err == nil:
		return s.config.Cluster(ctx).Set, nil
	case errors.Is(err, ErrHasQuorum):
		return VoterSet{}, ErrHasQuorum
	default:
		return VoterSet{}, &Error{Code: Unavailable, Message: fmt.Sprintf("cannot bootstrap: %v", err)}
	}
}

// AcceptLoss implements Service.
func (s *Limiter) AcceptLoss(ctx context.Context) (partitions int, told []string, err error) {
	if s.config.AcceptLoss == nil {
		return 0, nil, nil
	}
	if partitions, told, err = s.config.AcceptLoss(ctx); err != nil {
		return 0, nil, &Error{Code: Unavailable, Message: fmt.Sprintf("cannot accept the loss: %v", err)}
	}
	return partitions, told, nil
}

// Forget implements Service.
func (s *Limiter) Forget(ctx context.Context, name string) (VoterSet, error) {
	if fault := textFault(name, false); fault != "" {
		return VoterSet{}, &Error{Code: Invalid, Field: "name", Message: fault}
	}
	var err error = ErrNoSet
	if s.config.Forget != nil {
		err = s.config.Forget(ctx, name)
	}
	if err == nil {
		return s.config.Cluster(ctx).Set, nil
	}
	code := Unavailable
	if e, ok := errors.AsType[*Error](err); ok {
		code = e.Code
	}
	return VoterSet{}, &Error{Code: code, Message: fmt.Sprintf("cannot forget %q: %v", name, err)}
}
