// Package member says who is in the cluster: the values that gossip produces and
// that routing, APIs and tools read. Values are immutable once published.
package member

// State is a member's own word about itself.
type State uint8

const (
	// Joining: started, not yet to be given keys.
	Joining State = iota
	// Serving: in the ring.
	Serving
	// Leaving: on its way out, no longer in the ring.
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
	// Name is the logical name, for example the pod's. It outlives restarts.
	Name string
	// Boot names this run of the process: start time in nanoseconds, hex, a dash
	// and a random part. The later start sorts higher.
	Boot string
	// Addresses that others may dial, host:port.
	Gossip, Peer, GRPC, HTTP string
	State                    State
	// Zone is where it runs, for example a zone of a cloud; empty if it was not told.
	Zone string
	// Version is the program's version.
	Version string
}

// View is who gossip shows now. It routes; it never gives quorum.
type View struct {
	// Self is the name of this node.
	Self string
	// Members are sorted by name, one per name, in any state.
	Members []Member
	// Seq counts the views of this process, from 1.
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
