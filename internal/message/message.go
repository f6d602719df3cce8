// Package message has the control messages between nodes about voters, quorum and partition ownership: cluster/quorum and
// cluster/handoff use them, transport/peer carries them. It decides nothing.
//
// Every message may be lost, duplicated, delayed or reordered, and every receiver must tolerate that; see docs/internals/protocol.md.
// Values are immutable once sent, because senders and receivers may share them.
//
// They are encoded in CBOR (RFC 8949), each field under the number in its tag. A number is never reused. Receivers ignore
// unknown fields.
package message

import (
	"slices"

	"github.com/sluicecluster/sluice/bucket"
)

// Peer is one process: the name of a member and the boot ID of one run of it.
type Peer struct {
	Name string `cbor:"1,keyasint,omitempty"`
	Boot string `cbor:"2,keyasint,omitempty"`
}

// Envelope is a message with its addresses. A process accepts only messages to its own boot ID.
type Envelope struct {
	From, To Peer
	// ClusterID is the sender's cluster ID, empty without a voter set. Epochs of different cluster IDs cannot be compared.
	ClusterID string
	Body      Body
	// Patient: it has no news, so the sender may keep it until the next message to the same peer. Not encoded.
	Patient bool
	// Copy: send it on a second connection too, because the first may be waiting for lost packets. Not encoded.
	Copy bool
}

// Body is one of the message types of this package, by pointer.
type Body any

// Wish is what a process wants from the voter set.
type Wish uint8

const (
	// Stay wants no change.
	Stay Wish = iota
	// Join asks to become a voter.
	Join
	// Leave asks to be removed, after everything was handed off.
	Leave
)

// Heartbeat shows that its sender is alive and requests an acknowledgement.
type Heartbeat struct {
	// Sent is the sender's clock (ns); the Ack returns it.
	Sent int64 `cbor:"1,keyasint,omitempty"`
	// Set is the newest version that the sender knows; zero if it knows none.
	Set  Set  `cbor:"2,keyasint,omitzero"`
	Wish Wish `cbor:"3,keyasint,omitempty"`
	// Seen is the Seq of the receiver's newest PendingGrants that the sender has processed.
	Seen uint64 `cbor:"4,keyasint,omitempty"`
	// GrantsSeq is the Seq of the sender's newest PendingGrants. A receiver that has not seen it does not adopt a later version of
	// its set from this heartbeat.
	GrantsSeq uint64 `cbor:"5,keyasint,omitempty"`
	// Unconfirmed: the sender has adopted Set without having seen the pending grants of any process that knew it. Receivers
	// do not adopt it.
	Unconfirmed bool `cbor:"6,keyasint,omitempty"`
	// Isolated: the sender is one of several voters and has heard none for so long that it has no quorum, or it can take no
	// new state.
	Isolated bool `cbor:"7,keyasint,omitempty"`
	// AckTTL is how long (ns from Sent) an acknowledgement counts towards the sender's quorum: F in docs/internals/protocol.md. 0 is
	// the minimum.
	AckTTL int64 `cbor:"8,keyasint,omitempty"`
	// NoQuorum: the sender knows Set, and has had no quorum in it for 100 ms.
	NoQuorum bool `cbor:"9,keyasint,omitempty"`
	// Expect is the number of processes that the sender would found a set with, itself included; 0: it only joins one.
	Expect int `cbor:"10,keyasint,omitempty"`
	// Founding: the sender has given up its founding rounds below this one.
	Founding uint64 `cbor:"11,keyasint,omitempty"`
	// Void are the foundings that the sender, which knows no set, has promised to take no part in.
	Void []string `cbor:"12,keyasint,omitempty"`
	// Pass is a role that the sender has given up and asks the others to give to another region.
	Pass Role `cbor:"13,keyasint,omitzero"`
	// InSync is 1 more than the number of the receiver's newest change of in-sync replicas that the
	// sender knows (OwnedPartitions.UpTo). 0: the sender is of a version that does not report it.
	InSync uint64 `cbor:"14,keyasint,omitempty"`
	// CannotStore: the sender, which knows no set, cannot write to its disk, and so takes no part
	// in founding.
	CannotStore bool `cbor:"15,keyasint,omitempty"`
}

// Ack answers a Heartbeat. Only one with OK counts towards quorum.
type Ack struct {
	Sent int64 `cbor:"1,keyasint,omitempty"`
	// Got is the clock (ns) of the Ack's sender when the Heartbeat arrived; 0 if not reported.
	Got int64 `cbor:"2,keyasint,omitempty"`
	OK  bool  `cbor:"3,keyasint,omitempty"`
	// As in Heartbeat.
	Set         Set    `cbor:"4,keyasint,omitzero"`
	GrantsSeq   uint64 `cbor:"5,keyasint,omitempty"`
	Unconfirmed bool   `cbor:"6,keyasint,omitempty"`
	// AckTTL is that of the heartbeat.
	AckTTL int64 `cbor:"7,keyasint,omitempty"`
}

// Prepare requests a Promise. Prepare, Promise, Accept and Accepted agree on the next version of the voter set among the
// members of the current one: single-decree Paxos, one instance per version (Lamport, Paxos Made Simple, 2001).
type Prepare struct {
	ID      string `cbor:"1,keyasint,omitempty"`
	Version uint64 `cbor:"2,keyasint,omitempty"` // the one to agree on
	Ballot  Ballot `cbor:"3,keyasint,omitzero"`
}

// Promise answers a Prepare. If not OK, Ballot is the higher one promised before.
type Promise struct {
	Version uint64 `cbor:"1,keyasint,omitempty"`
	Ballot  Ballot `cbor:"2,keyasint,omitzero"`
	OK      bool   `cbor:"3,keyasint,omitempty"`
	// Accepted is the set that the sender has accepted for this version under ballot Under, zero if none.
	Accepted Set    `cbor:"4,keyasint,omitzero"`
	Under    Ballot `cbor:"5,keyasint,omitzero"`
}

// Accept proposes Set for its version.
type Accept struct {
	Set    Set    `cbor:"1,keyasint,omitzero"`
	Ballot Ballot `cbor:"2,keyasint,omitzero"`
}

// Accepted answers an Accept, as Promise does a Prepare.
type Accepted struct {
	Version uint64 `cbor:"1,keyasint,omitempty"`
	Ballot  Ballot `cbor:"2,keyasint,omitzero"`
	OK      bool   `cbor:"3,keyasint,omitempty"`
}

// OwnedPartitions announces the partitions that the sender owns.
type OwnedPartitions struct {
	// Seq numbers the OwnedPartitions of a process; lower ones are out of date.
	Seq uint64 `cbor:"1,keyasint,omitempty"`
	// Full: the sender owns no partition outside Partitions. Otherwise Partitions only adds.
	Full       bool             `cbor:"2,keyasint,omitempty"`
	Partitions []OwnedPartition `cbor:"3,keyasint,omitempty"`
	// The message has the sender's changes of in-sync replicas with numbers above After, up to
	// UpTo.
	After uint64 `cbor:"4,keyasint,omitempty"`
	UpTo  uint64 `cbor:"5,keyasint,omitempty"`
	// Awaits: decisions of the sender wait until the receiver reports that it knows them.
	Awaits bool `cbor:"6,keyasint,omitempty"`
}

// OwnedPartition is one owned partition. While it is being handed to NextOwner, either may be the owner.
type OwnedPartition struct {
	Partition int    `cbor:"1,keyasint,omitempty"`
	Gen       uint64 `cbor:"2,keyasint,omitempty"`
	// Start is the mark that this epoch began with.
	Start Mark `cbor:"3,keyasint,omitzero"`
	// NextOwner is zero unless a close is in flight, or was and a majority does not know yet which
	// replicas have all changes before it.
	NextOwner Peer `cbor:"4,keyasint,omitzero"`
	// Replicated: it has as many complete replicas as its owner wants.
	Replicated bool `cbor:"5,keyasint,omitempty"`
	// Loss is zero unless the partition was taken over without its state.
	Loss Loss `cbor:"6,keyasint,omitzero"`
	// InSync says which replicas of this epoch are out of date.
	InSync InSync `cbor:"7,keyasint,omitzero"`
}

// InSync are the in-sync replicas of a partition at one epoch: those that have every change that
// the owner has counted as replicated. The others may lack some. Zero means that they are not
// known.
type InSync struct {
	// Number is higher after each change of in-sync replicas by one process.
	Number uint64 `cbor:"1,keyasint,omitempty"`
	// Syncs are 1 more than the numbers of the initial syncs that made them, 0 in unused places.
	Syncs [4]uint64 `cbor:"2,keyasint,omitzero"`
}

// Excludes reports whether the replica of the initial sync numbered sync may be out of date.
func (s InSync) Excludes(sync uint64) bool {
	return s.Number != 0 && !slices.Contains(s.Syncs[:], sync+1)
}

// Loss describes lost counters of a partition, as far as its owner knows.
type Loss struct {
	// Last is the last epoch whose state may be lost. A returning state of this or a later epoch ends the loss.
	Last Epoch `cbor:"1,keyasint,omitzero"`
	// LastCertain is the last lost epoch if it turns out that no process owned the partition at Last; equal to Last where
	// ownership is certain.
	LastCertain Epoch `cbor:"2,keyasint,omitzero"`
	// Complete is the highest epoch whose state is complete: nothing is lost of it or of earlier epochs.
	Complete Epoch `cbor:"3,keyasint,omitzero"`
	// Age is the time (ns) since the takeover without that state.
	Age int64 `cbor:"4,keyasint,omitempty"`
	// InSync are the in-sync replicas of epoch LastCertain. The other replicas do not end the loss.
	InSync InSync `cbor:"5,keyasint,omitzero"`
	// Owned is the highest epoch with announced ownership that the claimer knew. LastCertain and
	// Complete take all owners up to there into account.
	Owned Epoch `cbor:"6,keyasint,omitzero"`
	// Before are earlier lost epochs, after LastCertain and latest first, that may only have been
	// granted, as Last.
	Before [4]Epoch `cbor:"7,keyasint,omitzero"`
}

// AcceptLoss tells all members that an operator has declared lost counters unspent.
type AcceptLoss struct{}

// PendingGrants lists the claims that the sender has granted or learned. It is resent until the receiver's heartbeats have
// seen it; until then they are not acknowledged.
type PendingGrants struct {
	Seq    uint64         `cbor:"1,keyasint,omitempty"`
	Grants []PendingGrant `cbor:"2,keyasint,omitempty"`
}

// PendingGrant is a promised partition and its claimer.
type PendingGrant struct {
	Partition int    `cbor:"1,keyasint,omitempty"`
	Gen       uint64 `cbor:"2,keyasint,omitempty"`
	Claimer   Peer   `cbor:"3,keyasint,omitzero"`
}

// Claim requests partitions that have no live owner.
type Claim struct {
	// ID is unique in the claiming process. The claim is resent until answered.
	ID    uint64    `cbor:"1,keyasint,omitempty"`
	Parts []Claimed `cbor:"2,keyasint,omitempty"`
	// Probe asks whether the receiver would grant it, without a promise.
	Probe bool `cbor:"3,keyasint,omitempty"`
}

// Claimed is one partition with the generation of the claim.
type Claimed struct {
	Partition int    `cbor:"1,keyasint,omitempty"`
	Gen       uint64 `cbor:"2,keyasint,omitempty"`
}

// ClaimResponse answers a Claim: which partitions the sender grants. (Units of a lease are granted by bucket.Grant.)
type ClaimResponse struct {
	ID    uint64              `cbor:"1,keyasint,omitempty"`
	Parts []ClaimResponsePart `cbor:"2,keyasint,omitempty"`
	// Votes: the sender is past its grace, so its grants count towards a majority.
	Votes bool `cbor:"3,keyasint,omitempty"`
	// Version is the sender's voter set version at the time. A vote for a claimer with a lower version does not count.
	Version uint64 `cbor:"4,keyasint,omitempty"`
	// Probe: the sender would answer this, but has promised nothing.
	Probe bool `cbor:"5,keyasint,omitempty"`
	// Acked are the processes whose heartbeats the sender has recently acknowledged.
	Acked []Acked `cbor:"6,keyasint,omitempty"`
}

// ClaimResponsePart answers for one partition.
type ClaimResponsePart struct {
	Partition int `cbor:"1,keyasint,omitempty"`
	// OK: the sender has promised the generation to the claimer.
	OK bool `cbor:"2,keyasint,omitempty"`
	// Known is the highest epoch that the sender knows, without this grant, and Owner its owner.
	Known Epoch `cbor:"3,keyasint,omitzero"`
	Owner Peer  `cbor:"4,keyasint,omitzero"`
	// Has is the completeness of the sender's state, and State its mark.
	Has   Completeness `cbor:"5,keyasint,omitempty"`
	State Mark         `cbor:"6,keyasint,omitzero"`
	// LastOwned is the highest epoch with announced ownership that the sender knows. MaybeOwned is a later epoch that was
	// granted before to another process, which may have owned the partition.
	LastOwned  Epoch `cbor:"7,keyasint,omitzero"`
	MaybeOwned Epoch `cbor:"8,keyasint,omitzero"`
	// InSync are the in-sync replicas of epoch LastOwned that the sender knows.
	InSync InSync `cbor:"9,keyasint,omitzero"`
	// Sync is 1 more than the number of the initial sync by which the owner at State.Epoch has made
	// the sender's state. 0: the state is no replica of that owner.
	Sync uint64 `cbor:"10,keyasint,omitempty"`
}

// Completeness ranks states of a partition.
type Completeness uint8

const (
	// None is no state.
	None Completeness = iota
	// Partial is a copy whose initial sync has not finished.
	Partial
	// Complete is the full state as of its Mark.
	Complete
)

// Acked is how much longer the sender's acknowledgement may count towards the quorum of process Boot.
type Acked struct {
	Boot string `cbor:"1,keyasint,omitempty"`
	Left int64  `cbor:"2,keyasint,omitempty"` // ns from the creation of this message
}

// Fetch requests the state of a partition that the receiver offered in its ClaimResponse.
type Fetch struct {
	Partition int    `cbor:"1,keyasint,omitempty"`
	Gen       uint64 `cbor:"2,keyasint,omitempty"` // of the claim
	State     Mark   `cbor:"3,keyasint,omitzero"`
}

// TransferBatch carries counters of several partitions. Batches between two processes are numbered from 1, processed in
// order and exactly once, and resent until their Receipt arrives.
type TransferBatch struct {
	N     uint64 `cbor:"1,keyasint,omitempty"`
	Parts Parts  `cbor:"2,keyasint"`
	// Age is the time (ns, 0 or more) since the counters of Image were exported; a batch may be resent for a while.
	Age int64 `cbor:"3,keyasint,omitempty"`
	// Image has the counters of all parts in order, with at most MaxSets sets of limits.
	Image bucket.Image `cbor:"4,keyasint,omitzero"`
}

// MaxSets is the maximum number of sets of limits in a transfer batch, which a frame between nodes can define.
const MaxSets = 4096

// Part is the content of a transfer batch for one partition.
type Part struct {
	Partition int
	Kind      Kind
	// Epoch is the sender's epoch of the state. For a Merge, it is the epoch that the owner no longer lacks once it has all
	// of it, and zero where another process may have made decisions since.
	Epoch Epoch
	// InitialSync numbers the sender's initial syncs to the receiver, so that parts of an earlier one are recognized. 0
	// continues the state of the last handoff.
	InitialSync uint64
	// Seq: with this part the receiver has the sender's changes up to Seq.
	Seq uint64
	// Start is the mark that Epoch began with (Begin), to recognize divergent copies.
	Start Mark
	// Next is the epoch at which the receiver becomes owner (Close).
	Next Epoch
	// Counters and Bytes are the size of this part's portion of the Image.
	Counters int
	Bytes    int
	// Sum is the checksum over all portions of this initial sync including this one (End and Close).
	Sum uint64
	// Loss is the loss of the state.
	Loss Loss
	// Begin: an initial sync begins, replacing the receiver's copy. End: it is complete.
	Begin bool
	End   bool
}

// Kind says what a Part is for.
type Kind uint8

const (
	// InitialSync creates and updates a replica.
	InitialSync Kind = iota + 1
	// Close makes the receiver the owner.
	Close
	// Answer is a state requested by Fetch. Next.Gen is the generation of the claim.
	Answer
	// Merge sends the owner the decisions of a divergent copy.
	Merge
	// Drop tells the receiver to drop its replica.
	Drop
)

// Receipt answers the transfer batch of the same N.
type Receipt struct {
	N uint64 `cbor:"1,keyasint,omitempty"`
	// Rejected are the parts that were rejected.
	Rejected []Rejection `cbor:"2,keyasint,omitempty"`
	// NotServing: the sender is not serving, so it must not get partitions. Gossip may show that later.
	NotServing bool `cbor:"3,keyasint,omitempty"`
}

// Rejection identifies a rejected part by its index.
type Rejection struct {
	Part int `cbor:"1,keyasint,omitempty"`
	// Known is the highest epoch that the receiver knows, Owner its owner.
	Known Epoch `cbor:"2,keyasint,omitzero"`
	Owner Peer  `cbor:"3,keyasint,omitzero"`
}

// DenialInvalidation is a denial cache invalidation: units were given back to these keys of the sender, so denials cached elsewhere may
// be stale.
type DenialInvalidation struct {
	Keys []bucket.Key `cbor:"1,keyasint,omitempty"`
}

// Load is the load that a service has reported to the sender for a pool of the rules. It is for the receiver's APIs.
type Load struct {
	Domain   string `cbor:"1,keyasint,omitempty"`
	Pool     string `cbor:"2,keyasint,omitempty"`
	Reporter string `cbor:"3,keyasint,omitempty"`
	// Load is 0 to 1.
	Load float64 `cbor:"4,keyasint,omitempty"`
	// Stamp orders the reports of one reporter; the highest is the newest.
	Stamp int64 `cbor:"5,keyasint,omitempty"`
}
