// Package guard names the single rules that keep the protocol and the counters right, so that tests can remove one and show which
// failure it prevents. Only a build with the tag guards can remove one. In any other build On is constant, and the compiler
// deletes each use of it. The package decides nothing, and starts no goroutine.
package guard

// Guard is a set of rules.
type Guard uint64

// The rules of grants, see package bucket.
const (
	// Held: units of an open grant are subtracted from the capacity.
	Held Guard = 1 << iota
	// Lapse: a lease counts as spent at its deadline.
	Lapse
	// SettleOnce: a grant is returned once.
	SettleOnce

	// The rules of handoff and takeover, see package cluster/handoff.

	// EpochCheck: a node rejects parts of an epoch below the highest that it knows, and an owner that learns of a higher epoch steps down.
	EpochCheck
	// ClaimMajority: a claim needs a majority of the voters.
	ClaimMajority
	// ClaimWait: a claim waits until acknowledgements of absent nodes have expired.
	ClaimWait
	// Promise: a node acknowledges only heartbeats whose sender knows its pending grants.
	Promise
	// Freeze: the owner decides nothing after it has packed the close.
	Freeze
	// RejectionMemory: a node does not accept a close later that it has rejected.
	RejectionMemory
	// Checksum: a replica with a wrong checksum is dropped.
	Checksum
	// DivergentMerge: the new owner merges the divergent state of the old one.
	DivergentMerge
	// Inheritance: a node that hears of a claim makes it a pending grant of its own.
	Inheritance
	// Memory: an owner claims its partitions again after a time in which voters may have forgotten their grants.
	Memory
	// SecondReplica: a change is confirmed when all Replicas have it, not when the first has it.
	SecondReplica
	// LostState: a takeover without state is a loss of counters, not a fresh start.
	LostState
	// InSync: an owner counts nothing as replicated after it has left out a replica until a
	// majority knows that, and a takeover from a replica that was left out is a loss of counters.
	InSync
	// LossEnds: a state of what an owner has lost is merged, and ends the loss, though the owner
	// began with all of it.
	LossEnds
	// OneSet: states of a voter set that was dissolved are not compared with those of the present set.
	OneSet

	// The rules of shares, see package cluster/share.

	// Unacknowledged: the next share excludes units that the node has admitted and no owner has acknowledged.
	Unacknowledged
	// LatestAnswer: a node computes a share again after an answer of the owner.
	LatestAnswer
	// OncePerWindow: a share is of the current window, not of the one in which quorum ended, if the node knows more of the current one.
	OncePerWindow
	// Dropped: a node remembers what was left of a partition that it drops.
	Dropped
	// LostAnswer: a charge whose answer is lost is not sent again.
	LostAnswer
	// SentIsSaved: a charge in flight is on disk too.
	SentIsSaved
	// Expiry: expired units are not charged.
	Expiry

	// The rules of leases of clients, see package lease.

	// LeaseDeadline: nothing of a lease is spent at its deadline or later.
	LeaseDeadline
	// LeaseMargin: the deadline is earlier than the owner's, for clocks that are slow.
	LeaseMargin
	// LeaseEnd: nothing of a lease is spent after its client has settled it.
	LeaseEnd

	// The rules of slots, see packages bucket and limiter.

	// EndedStays: a grant that has ended is not extended.
	EndedStays
	// Renewed: a slot that its owner does not have is not renewed.
	Renewed
	// FenceRises: no two slots have one fencing number.
	FenceRises
	// Gather: a line waits for those who come from another node's line.
	Gather
	// WakeAgain: a line that is told of a free unit while it asks for one asks again.
	WakeAgain

	// The rules of leases of nodes and regions, see package cluster/lease.

	// SinceSent: a lease ends at its leaseholder so long after the request, not after the answer.
	SinceSent
	// NodeDeadline: nothing of a lease is spent at its deadline or later.
	NodeDeadline
	// SubEnd: a lease out of a lease ends before that one.
	SubEnd
	// SubHeld: a lease of which others have a part is not returned, nor reported as spent.
	SubHeld

	// The rules of roles of regions, see package cluster.

	// RoleLease: a region plays its roles only while it has quorum among the regions.
	RoleLease
	// RoleWait: a region plays a role that it gets only after the one that had it may not any more.
	RoleWait
	// RoleCounters: a role is passed on when its counters have arrived.
	RoleCounters
	// RoleBegun: a region that has begun anew without its counters does not say that it has them.
	RoleBegun

	// The rules of keys that move between regions, see package cluster.

	// MoveSeal: a region does not decide a key that it moves away.
	MoveSeal
	// MoveCounter: the next home has the counter when it begins to decide a key.
	MoveCounter
)
