// Package member has the membership values that gossip produces and that routing, APIs and tools read. Values are immutable
// once published.
package member

import "time"

// State is the state that a member announces.
type State uint8

const (
	// Joining: started, gets no keys yet.
	Joining State = iota
	// Serving: in the ring.
	Serving
	// Leaving: no longer in the ring.
	Leaving
)

func (s State) String() string {
	switch s {
	case Joining:
		return "joining"
	case Serving:
		return "serving"
	case Leaving:
		return "leaving"
	}
	return "unknown"
}

// Member is one process of the cluster.
type Member struct {
	// Name is the logical name, for example the pod's. It survives restarts.
	Name string
	// Boot is the ID of this run of the process: start time in nanoseconds (hex), a dash and a random part. Later starts
	// sort higher.
	Boot string
	// Addresses for other processes, host:port.
	Gossip, Peer, GRPC, HTTP string
	State                    State
	// Zone is its availability zone, for example of a cloud; empty if not configured.
	Zone string
	// Version is the program's version.
	Version string
}

// Standing is one process as a node sees it.
type Standing struct {
	// Boot is empty for a voter that is not in gossip.
	Name, Boot string
	// Alive: it was heard recently. Silent is the time since; negative if it was never heard or that is not known.
	Alive  bool
	Silent time.Duration
	// Owned is the number of partitions that it owns, as far as the node knows.
	Owned int
	// Ahead is how far its clock is ahead of the median of the voters that agree or, if none do, of the node's; nil if not known.
	Ahead *time.Duration
}

// Clocks compares a node's clock with the voters'.
type Clocks struct {
	// MaxSkew is --max-clock-skew.
	MaxSkew time.Duration
	// Known: the clocks of a majority of the voters are known. Agree: those of a majority differ by at most MaxSkew.
	Known, Agree bool
	// Ahead is how far the node's clock is ahead of the median of those that agree, 0 if none do.
	Ahead time.Duration
	// Correction is how far windows are aligned ahead of the node's clock.
	Correction time.Duration
}

// View is the membership that gossip shows. It is for routing and never gives quorum.
type View struct {
	// Self is the name of this node.
	Self string
	// Members are sorted by name, one per name, in any state.
	Members []Member
	// Seq numbers the views of this process from 1.
	Seq uint64
}

// Lookup returns the member called name.
func (v *View) Lookup(name string) (Member, bool) {
	for _, m := range v.Members {
		if m.Name == name {
			return m, true
		}
	}
	return Member{}, false
}

// Rejection is why a node rejects a change of the voter set by hand.
type Rejection string

func (r Rejection) Error() string { return string(r) }

const (
	ErrNoSet     Rejection = "this node knows no voter set; call one that does"
	ErrThisNode  Rejection = "it is the node that received the call; stop it, and call another"
	ErrNotVoter  Rejection = "it is not in the voter set"
	ErrAlive     Rejection = "it is alive; stop it first"
	ErrLastVoter Rejection = "it is the only member of the voter set"
	ErrHasQuorum Rejection = "this node has quorum in its voter set, so nothing has to be founded"
	ErrNoRegions Rejection = "this node knows no other regions; set --regions"
)
