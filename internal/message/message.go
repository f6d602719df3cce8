// Package message is what nodes say to each other about who is counted, who may
// decide, and where partitions are: the vocabulary that cluster/quorum and
// cluster/handoff speak and transport/peer carries. It decides nothing.
//
// Every message may be lost, doubled, delayed or overtaken, and every receiver must
// stand that. docs/protocol.md tells what they are for. Values are immutable once
// they are sent: senders and receivers may share them.
//
// They travel as CBOR (RFC 8949), field by field under the number in its tag; a number is never given to another field.
// A receiver passes over fields that it does not know.
package message

import (
	"github.com/sluice-project/sluice/bucket"
)

// Peer is one process: a member's name, and the boot id of this run of it.
type Peer struct {
	Name string `cbor:"1,keyasint,omitempty"`
	Boot string `cbor:"2,keyasint,omitempty"`
}

// Envelope is a message on its way. A process takes only what names its own boot id.
type Envelope struct {
	From, To Peer
	// Cluster ID is the voter set's ID at the sender, empty if it knows none. Epochs of
	// different cluster IDs cannot be compared.
	ClusterID string
	Body      Body
	// Patient: it tells nothing new, and may wait at its sender for the next message that
	// goes the same way. It is not sent along.
	Patient bool
	// Copy: it goes by a second connection as well, as the first may be waiting for packets that were lost. It is not sent along.
	Copy bool
}

// Body is one of the message types of this package, by pointer.
type Body interface{ body() }

func (*Heartbeat) body()     {}
func (*Ack) body()           {}
func (*Prepare) body()       {}
func (*Promise) body()       {}
func (*Accept) body()        {}
func (*Accepted) body()      {}
func (*Holdings) body()      {}
func (*PendingGrants) body() {}
func (*Claim) body()         {}
func (*Grant) body()         {}
func (*Fetch) body()         {}
func (*TransferBatch) body() {}
func (*Receipt) body()       {}
func (*Room) body()          {}
func (*Load) body()          {}
func (*AcceptLoss) body()    {}
func (*Report) body()        {}
func (*Account) body()       {}

// Wish is what a process wants from the voter set.
type Wish uint8

const (
	// Stay wants no change.
	Stay Wish = iota
	// Join wants to be counted in.
	Join
	// Leave wants to be counted out, having nothing left to give away.
	Leave
)

// Heartbeat asks for an acknowledgement, and shows that its sender lives.
type Heartbeat struct {
	// Sent is the sender's clock (ns); the Ack returns it.
	Sent int64 `cbor:"1,keyasint,omitempty"`
	// Set is the newest version that the sender knows; zero if it knows none.
	Set  Set  `cbor:"2,keyasint,omitzero"`
	Wish Wish `cbor:"3,keyasint,omitempty"`
	// Seen is the newest pending grants of the receiver that the sender has taken in.
	Seen uint64 `cbor:"4,keyasint,omitempty"`
	// Pending grants is the newest pending grants of the sender. Who has not seen it does not take a later
	// version of a set that it knows from this heartbeat.
	PendingGrants uint64 `cbor:"5,keyasint,omitempty"`
	// Unconfirmed: the sender has taken over Set, and has not seen the pending grants of anybody who
	// knew it. Nobody takes it from there.
	Unconfirmed bool `cbor:"6,keyasint,omitempty"`
	// Isolated: the sender is counted with others, and has heard nobody for so long that it takes all for
	// dead, so it has no right to decide, and cannot be told of anything.
	Isolated bool `cbor:"7,keyasint,omitempty"`
	// Lease is how long an acknowledgement of this heartbeat counts towards the sender's quorum, in ns from Sent.
	// 0 is the least that there is.
	Lease int64 `cbor:"8,keyasint,omitempty"`
	// NoQuorum: the sender knows Set, and has had no quorum in it for 100 ms.
	NoQuorum bool `cbor:"9,keyasint,omitempty"`
	// Expect is with how many processes the sender would found a set, itself included; 0: it only joins one.
	Expect int `cbor:"10,keyasint,omitempty"`
	// Founding: the sender's rounds of founding below this are given up.
	Founding uint64 `cbor:"11,keyasint,omitempty"`
	// Void are the IDs of foundings that the sender, which knows no set, has promised to take no part in.
	Void []string `cbor:"12,keyasint,omitempty"`
}

// Ack answers a Heartbeat. Only one that is OK counts towards quorum.
type Ack struct {
	Sent int64 `cbor:"1,keyasint,omitempty"`
	// Got is the clock (ns) of the Ack's sender when the Heartbeat came in; 0 if it does not say.
	Got int64 `cbor:"2,keyasint,omitempty"`
	OK  bool  `cbor:"3,keyasint,omitempty"`
	// Set is the newest version that the sender knows, pending grants and Unconfirmed are as in a Heartbeat.
	Set           Set    `cbor:"4,keyasint,omitzero"`
	PendingGrants uint64 `cbor:"5,keyasint,omitempty"`
	Unconfirmed   bool   `cbor:"6,keyasint,omitempty"`
	// Lease is that of the heartbeat.
	Lease int64 `cbor:"7,keyasint,omitempty"`
}

// Prepare asks for a Promise. With Accept and Accepted they agree on the next version of the
// voter set among the members of the present one: single-decree Paxos, one instance a
// version (Lamport, Paxos Made Simple, 2001).
type Prepare struct {
	ID      string `cbor:"1,keyasint,omitempty"`
	Version uint64 `cbor:"2,keyasint,omitempty"` // the one to be agreed on
	Ballot  Ballot `cbor:"3,keyasint,omitzero"`
}

// Promise answers a Prepare. If it is not OK, Ballot is the higher one promised before.
type Promise struct {
	Version uint64 `cbor:"1,keyasint,omitempty"`
	Ballot  Ballot `cbor:"2,keyasint,omitzero"`
	OK      bool   `cbor:"3,keyasint,omitempty"`
	// Accepted is what the sender has accepted for this version, under Under; zero
	// if nothing.
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

// Holdings tells which partitions the sender holds.
type Holdings struct {
	// Seq counts the Holdings of this process; lower ones are out of date.
	Seq uint64 `cbor:"1,keyasint,omitempty"`
	// Full: what is not in Held is not held. Else Held only adds.
	Full bool      `cbor:"2,keyasint,omitempty"`
	Held []Holding `cbor:"3,keyasint,omitempty"`
}

// Holding is one partition that is held, or that is being handed to NextOwner: then
// either may be the owner.
type Holding struct {
	Partition int    `cbor:"1,keyasint,omitempty"`
	Gen       uint64 `cbor:"2,keyasint,omitempty"`
	// Start is what this epoch began with.
	Start Mark `cbor:"3,keyasint,omitzero"`
	// NextOwner is zero unless a close is on its way.
	NextOwner Peer `cbor:"4,keyasint,omitzero"`
	// Replicated: it has as many complete replicas as the sender wants.
	Replicated bool `cbor:"5,keyasint,omitempty"`
	// Loss is zero unless the partition was taken over without its state.
	Loss Loss `cbor:"6,keyasint,omitzero"`
}

// Loss says that counters of a partition are lost, as far as its owner knows.
type Loss struct {
	// Of is the epoch whose state is lost: one of it, or of a later one, ends the loss.
	Of Epoch `cbor:"1,keyasint,omitzero"`
	// Sure is what is lost if nobody has owned the partition at Of, where that is not known; else Of.
	Sure Epoch `cbor:"2,keyasint,omitzero"`
	// Has is the highest epoch of which all is there: nothing is lost of it, nor of one before.
	Has Epoch `cbor:"3,keyasint,omitzero"`
	// Age is how long ago the partition was taken over without it (ns).
	Age int64 `cbor:"4,keyasint,omitempty"`
}

// AcceptLoss tells all that an operator takes lost counters for unspent.
type AcceptLoss struct{}

// PendingGrants tells which claims the sender has granted or heard of, until the receiver has said in its
// heartbeats that it has seen it. Until then its heartbeats are not acknowledged.
type PendingGrants struct {
	Seq    uint64    `cbor:"1,keyasint,omitempty"`
	Grants []Granted `cbor:"2,keyasint,omitempty"`
}

// Granted is one partition and to whom it was promised.
type Granted struct {
	Partition int    `cbor:"1,keyasint,omitempty"`
	Gen       uint64 `cbor:"2,keyasint,omitempty"`
	Claimer   Peer   `cbor:"3,keyasint,omitzero"`
}

// Claim asks for partitions that have no living owner.
type Claim struct {
	// ID is unique in the claiming process. It is sent again until it is answered.
	ID    uint64    `cbor:"1,keyasint,omitempty"`
	Parts []Claimed `cbor:"2,keyasint,omitempty"`
	// Probe asks who would grant, and makes nobody promise anything.
	Probe bool `cbor:"3,keyasint,omitempty"`
}

// Claimed is one partition, with the generation that the claimer wants to hold it at.
type Claimed struct {
	Partition int    `cbor:"1,keyasint,omitempty"`
	Gen       uint64 `cbor:"2,keyasint,omitempty"`
}

// Grant answers a Claim.
type Grant struct {
	ID    uint64      `cbor:"1,keyasint,omitempty"`
	Parts []GrantPart `cbor:"2,keyasint,omitempty"`
	// Votes: the sender is past its grace, so its grants count towards a majority.
	Votes bool `cbor:"3,keyasint,omitempty"`
	// Version of the set that the sender knew when it made this message. A vote for who does not
	// know that version yet does not count.
	Version uint64 `cbor:"4,keyasint,omitempty"`
	// Probe: this is what the sender would answer.
	Probe bool `cbor:"5,keyasint,omitempty"`
	// Acked are the processes whose heartbeats the sender has acknowledged lately.
	Acked []Acked `cbor:"6,keyasint,omitempty"`
}

// GrantPart answers for one partition.
type GrantPart struct {
	Partition int `cbor:"1,keyasint,omitempty"`
	// OK: the sender has promised the generation to the claimer.
	OK bool `cbor:"2,keyasint,omitempty"`
	// Known is the highest epoch that the sender knows, this grant left aside, and
	// Owner who has it.
	Known Epoch `cbor:"3,keyasint,omitzero"`
	Owner Peer  `cbor:"4,keyasint,omitzero"`
	// Has says what state the sender has; None is no state.
	Has   Completeness `cbor:"5,keyasint,omitempty"`
	State Mark         `cbor:"6,keyasint,omitzero"`
	// Owned is the highest epoch at which a process has said that it owns the partition, as far as the sender knows, Granted the
	// one that was granted before this claim, to another process.
	Owned   Epoch `cbor:"7,keyasint,omitzero"`
	Granted Epoch `cbor:"8,keyasint,omitzero"`
}

// Completeness ranks states of a partition.
type Completeness uint8

const (
	// None is no state.
	None Completeness = iota
	// Partial is a copy whose initial sync has not come to its end.
	Partial
	// Complete is a whole state as of its Mark.
	Complete
)

// Acked is how much longer an acknowledgement that the sender gave to the process Boot may count
// towards that process's quorum.
type Acked struct {
	Boot string `cbor:"1,keyasint,omitempty"`
	Left int64  `cbor:"2,keyasint,omitempty"` // ns after this message was made
}

// Fetch asks for the state of a partition that the receiver listed in its Grant.
type Fetch struct {
	Partition int    `cbor:"1,keyasint,omitempty"`
	Gen       uint64 `cbor:"2,keyasint,omitempty"` // of the claim
	State     Mark   `cbor:"3,keyasint,omitzero"`
}

// TransferBatch carries counters of several partitions. Between two processes transfer batches are
// numbered from 1 and taken in that order, each exactly once; they are sent again
// until their Receipt comes.
type TransferBatch struct {
	N     uint64 `cbor:"1,keyasint,omitempty"`
	Parts []Part `cbor:"2,keyasint,omitempty"`
	// Age is how long ago (ns, 0 or more) the counters of Image were exported: a batch may be sent again for a while.
	Age int64 `cbor:"3,keyasint,omitempty"`
	// Image has the counters of all parts, one part after the other, of at most MaxSets sets of limits.
	Image bucket.Image `cbor:"4,keyasint,omitzero"`
}

// MaxSets is the most sets of limits of a transfer batch, which a frame between nodes can define.
const MaxSets = 4096

// Part is what a transfer batch says about one partition.
type Part struct {
	Partition int  `cbor:"1,keyasint,omitempty"`
	Kind      Kind `cbor:"2,keyasint,omitempty"`
	// Epoch under which the sender has the state. Of a Merge it says what the owner lacks no longer when it has all of it;
	// zero where another process may have decided since.
	Epoch Epoch `cbor:"3,keyasint,omitzero"`
	// Initial sync numbers the sender's initial syncs of the receiver, so that a part of an
	// earlier one is known as such. 0 goes on from the state of the last hand-off.
	InitialSync uint64 `cbor:"4,keyasint,omitempty"`
	// Seq: the receiver is level with the sender's change number Seq.
	Seq uint64 `cbor:"5,keyasint,omitempty"`
	// Start is what Epoch began with (Begin), so that divergent copies can be told.
	Start Mark `cbor:"6,keyasint,omitzero"`
	// Next is the epoch at which the receiver shall hold the partition (Close).
	Next Epoch `cbor:"7,keyasint,omitzero"`
	// Counters and Bytes are this part's portion of the Image.
	Counters int `cbor:"8,keyasint,omitempty"`
	Bytes    int `cbor:"9,keyasint,omitempty"`
	// Sum is the checksum over all portions of this initial sync up to and with this one
	// (End and Close).
	Sum uint64 `cbor:"10,keyasint,omitempty"`
	// Loss is that of the state.
	Loss Loss `cbor:"11,keyasint,omitzero"`
	// Begin: forget what you have, an initial sync begins. End: it is complete.
	Begin bool `cbor:"12,keyasint,omitempty"`
	End   bool `cbor:"13,keyasint,omitempty"`
}

// Kind says what a Part is for.
type Kind uint8

const (
	// Initial sync makes the receiver a copy, and keeps it one.
	InitialSync Kind = iota + 1
	// Close makes the receiver the owner.
	Close
	// Answer is an initial sync that was asked for by Fetch. Gen of the claim is Next.Gen.
	Answer
	// Merge gives the owner what a divergent copy of its history has spent.
	Merge
	// Drop tells the receiver that its copy is of no use any more.
	Drop
)

// Receipt answers the transfer batch of the same N.
type Receipt struct {
	N uint64 `cbor:"1,keyasint,omitempty"`
	// Rejected are the parts, by place, that were not taken.
	Rejected []Rejection `cbor:"2,keyasint,omitempty"`
	// NotServing: the sender does not serve, so it is to be handed no partition. Gossip may say so later.
	NotServing bool `cbor:"3,keyasint,omitempty"`
}

// Rejection says why a part was not taken.
type Rejection struct {
	Part int `cbor:"1,keyasint,omitempty"`
	// Known is the highest epoch that the refuser knows, Owner who has it.
	Known Epoch `cbor:"2,keyasint,omitzero"`
	Owner Peer  `cbor:"3,keyasint,omitzero"`
}

// Room tells of keys that the sender holds and has lately denied: something was given back to them, so
// what others remember of those denials may not be true any more.
type Room struct {
	Keys []bucket.Key `cbor:"1,keyasint,omitempty"`
}

// Load is the load that a service has reported to the sender for a pool of the rules. It is for the receiver's
// APIs; no machine takes it.
type Load struct {
	Domain   string `cbor:"1,keyasint,omitempty"`
	Pool     string `cbor:"2,keyasint,omitempty"`
	Reporter string `cbor:"3,keyasint,omitempty"`
	// Load is 0 to 1.
	Load float64 `cbor:"4,keyasint,omitempty"`
	// Stamp orders the reports of one reporter: the higher one is the newer.
	Stamp int64 `cbor:"5,keyasint,omitempty"`
}
