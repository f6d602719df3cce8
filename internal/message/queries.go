package message

import (
	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/facts"
)

// Queries of the console and tools are answered by all nodes: one node calls each of the others, and the call fails if a
// node does not answer in time.

// TopRequest requests the heaviest keys counted by the receiver's APIs. The response is a TopResponse.
type TopRequest struct {
	// By is limiter.TopBy.
	By     uint8  `cbor:"1,keyasint,omitempty"`
	Domain string `cbor:"2,keyasint,omitempty"`
}

// TopResponse answers a TopRequest.
type TopResponse struct {
	// Off: counting is disabled.
	Off bool `cbor:"1,keyasint,omitempty"`
	// Covers is the time (ns) up to now that the counts cover.
	Covers int64    `cbor:"2,keyasint,omitempty"`
	Keys   []TopKey `cbor:"3,keyasint,omitempty"`
}

// TopKey is one key with its name, as transport writes it.
type TopKey struct {
	Key   bucket.Key `cbor:"1,keyasint,omitzero"`
	Name  []byte     `cbor:"2,keyasint,omitempty"`
	Count uint64     `cbor:"3,keyasint,omitempty"`
	Error uint64     `cbor:"4,keyasint,omitempty"`
}

// FactsRequest requests the facts of a node, with the newest Slots of its histories. The response is a FactsResponse.
type FactsRequest struct {
	Slots uint8 `cbor:"2,keyasint,omitempty"`
}

// FactsResponse answers a FactsRequest.
type FactsResponse struct {
	Node facts.Node `cbor:"1,keyasint"`
}

// KeyRequest requests the state of a key under Limits. The response is a KeyResponse.
type KeyRequest struct {
	Key    bucket.Key     `cbor:"1,keyasint"`
	Limits *bucket.Limits `cbor:"-"`
}

// KeyResponse answers a KeyRequest.
type KeyResponse struct {
	Key facts.Key `cbor:"1,keyasint"`
}

// TurnRequest asks a node to wait in its line of those who wait for slots. The response is a TurnResponse.
type TurnRequest struct {
	Turn facts.Turn `cbor:"1,keyasint"`
}

// TurnResponse answers a TurnRequest.
type TurnResponse struct {
	Moved bool `cbor:"1,keyasint,omitempty"`
}

// RegionRequest asks a node of another region for its state. It may come each second. The response is a RegionResponse.
type RegionRequest struct {
	// Rules is a checksum of the rules of global limits in the sender's region, 0 if it has told none.
	Rules uint64 `cbor:"1,keyasint,omitempty"`
}

// RegionResponse answers a RegionRequest.
type RegionResponse struct {
	// ClusterID is that of the node's voter set, empty without one: it tells two clusters of one region's name apart.
	ClusterID string `cbor:"1,keyasint,omitempty"`
	// Clock is the node's, Unix time in ns.
	Clock int64 `cbor:"2,keyasint,omitempty"`
	// Rules is as in the request. Globals are the rules if the two differ.
	Rules   uint64       `cbor:"3,keyasint,omitempty"`
	Globals []GlobalRule `cbor:"4,keyasint,omitempty"`
}

// GlobalRule is a rule of a limit that all regions share: its path, its home, and a checksum of its limits.
type GlobalRule struct {
	Name string `cbor:"1,keyasint,omitempty"`
	Home string `cbor:"2,keyasint,omitempty"`
	Sum  uint64 `cbor:"3,keyasint,omitempty"`
}

// RegionMessages are messages of one region's speaker to another's, about which regions there are and who plays their roles. Any node
// passes them on to the speaker of its region. The response of another region's node is a RegionResponse, and says only that they have
// arrived.
type RegionMessages struct {
	// From is the region, and the boot ID of the sender as its speaker. A receiver that did not know it sends its own.
	From Peer            `cbor:"1,keyasint,omitzero"`
	List []RegionMessage `cbor:"2,keyasint,omitempty"`
	// Regions are the other ones in the sender's list.
	Regions []string `cbor:"6,keyasint,omitempty"`
	// Counters or Taken make it a message of one node to others, and of no speaker.
	Counters *RoleCounters  `cbor:"3,keyasint,omitempty"`
	Taken    *CountersTaken `cbor:"4,keyasint,omitempty"`
	// Homes make it a message to the owners of their keys, which any node passes on.
	Homes []KeyHome `cbor:"5,keyasint,omitempty"`
	// Began is the boot ID of the first speaker since the region has begun without any state, "" if that is the sender.
	Began string `cbor:"7,keyasint,omitempty"`
	// Before is what the receiver's region said before as Began: it has begun anew since, without the counters that it had.
	Before string `cbor:"8,keyasint,omitempty"`
}

// MaxHomes is the maximum number of Homes of a message.
const MaxHomes = 256

// MaxHomeEpoch is the maximum epoch of a KeyHome: at a move each ten seconds, of a century.
const MaxHomeEpoch = 1<<29 - 1

// KeyHome is about the home of a key. Without Told it is for the directory of the key: it asks for the home, or for it to be made Home with
// that epoch.
type KeyHome struct {
	Key   bucket.Key `cbor:"1,keyasint"`
	Home  string     `cbor:"2,keyasint,omitempty"`
	Epoch uint64     `cbor:"3,keyasint,omitempty"`
	// Told: the directory says that Home is the home since that epoch; 0 if it always was.
	Told bool `cbor:"4,keyasint,omitempty"`
	// For is the region that asks or is told, where another one passes that on, or is to pass on a question for the home.
	For string `cbor:"5,keyasint,omitempty"`
}

// RoleCounters are counters of keys of one home, of a region that decides them no more, or is about to pass that on.
type RoleCounters struct {
	// From is the node that has sent them, which gets a CountersTaken from each owner there.
	From string `cbor:"1,keyasint,omitempty"`
	// Partitions is the number of its ring.
	Partitions int `cbor:"2,keyasint,omitempty"`
	// Batch has parts of kind Merge. It is numbered by the sender.
	Batch TransferBatch `cbor:"3,keyasint"`
	// Key: it is one key, which is to have its home in the receiver's region.
	Key bool `cbor:"4,keyasint,omitempty"`
}

// CountersTaken answers RoleCounters.
type CountersTaken struct {
	To string `cbor:"1,keyasint,omitempty"`
	N  uint64 `cbor:"2,keyasint,omitempty"`
	// Partitions are those of the batch whose counters an owner has now.
	Partitions []int `cbor:"3,keyasint,omitempty"`
	// Problem is why none ever will.
	Problem string `cbor:"4,keyasint,omitempty"`
}

// RegionMessage has one of the bodies.
type RegionMessage struct {
	To        Peer       `cbor:"1,keyasint,omitzero"`
	ClusterID string     `cbor:"2,keyasint,omitempty"`
	Heartbeat *Heartbeat `cbor:"3,keyasint,omitempty"`
	Ack       *Ack       `cbor:"4,keyasint,omitempty"`
	Prepare   *Prepare   `cbor:"5,keyasint,omitempty"`
	Promise   *Promise   `cbor:"6,keyasint,omitempty"`
	Accept    *Accept    `cbor:"7,keyasint,omitempty"`
	Accepted  *Accepted  `cbor:"8,keyasint,omitempty"`
}

// RegionMessageOf returns e as one of RegionMessages.
func RegionMessageOf(e Envelope) RegionMessage {
	m := RegionMessage{To: e.To, ClusterID: e.ClusterID}
	m.Heartbeat, _ = e.Body.(*Heartbeat)
	m.Ack, _ = e.Body.(*Ack)
	m.Prepare, _ = e.Body.(*Prepare)
	m.Promise, _ = e.Body.(*Promise)
	m.Accept, _ = e.Body.(*Accept)
	m.Accepted, _ = e.Body.(*Accepted)
	return m
}

// Supersedes reports whether old says nothing that m does not.
func (m *RegionMessage) Supersedes(old RegionMessage) bool {
	return m.To == old.To && (m.Heartbeat != nil && old.Heartbeat != nil || m.Ack != nil && old.Ack != nil)
}

// Envelope returns m as a message of from. Its body is nil if m has none.
func (m *RegionMessage) Envelope(from Peer) Envelope {
	e := Envelope{From: from, To: m.To, ClusterID: m.ClusterID}
	switch {
	case m.Heartbeat != nil:
		e.Body = m.Heartbeat
	case m.Ack != nil:
		e.Body = m.Ack
	case m.Prepare != nil:
		e.Body = m.Prepare
	case m.Promise != nil:
		e.Body = m.Promise
	case m.Accept != nil:
		e.Body = m.Accept
	case m.Accepted != nil:
		e.Body = m.Accepted
	}
	return e
}

// PassRequest asks the speaker of the own region to pass on a role, or to take it over from a region that is stopped, as an operator wants.
// The response is a PassResponse.
type PassRequest struct {
	Role    Role `cbor:"1,keyasint,omitzero"`
	Stopped bool `cbor:"2,keyasint,omitempty"`
}

// PassResponse answers a PassRequest.
type PassResponse struct {
	// Problem is why nothing was done, empty if it was.
	Problem string `cbor:"1,keyasint,omitempty"`
}

// RolesRequest asks the speaker of the own region which roles the region plays. A RolesResponse comes as a message.
type RolesRequest struct {
	// Sent is the sender's clock (ns); the response returns it.
	Sent int64 `cbor:"1,keyasint,omitempty"`
	// Moved is how far the sender is in moving the counters of a role.
	Moved Moved `cbor:"2,keyasint,omitzero"`
	// Begins: the sender is about to speak, and asks all nodes of its region what the speaker before has told them.
	Begins bool `cbor:"3,keyasint,omitempty"`
}

// Passing is a role that a region is about to pass on.
type Passing struct {
	Role Role `cbor:"1,keyasint,omitzero"`
	// Sealed: no node of the region decides keys of that home any more.
	Sealed bool `cbor:"2,keyasint,omitempty"`
}

// Moved says which partitions' counters the other region has got.
type Moved struct {
	Passing Passing `cbor:"1,keyasint,omitzero"`
	// Bits has a bit for each partition, from the lowest of each byte.
	Bits    []byte `cbor:"2,keyasint,omitempty"`
	Problem string `cbor:"3,keyasint,omitempty"`
}

// RolesResponse answers a RolesRequest.
type RolesResponse struct {
	Sent int64 `cbor:"1,keyasint,omitempty"`
	// Set is the newest version that the speaker knows.
	Set Set `cbor:"2,keyasint,omitzero"`
	// Left is how long (ns) from Sent the region may play the roles.
	Left  int64    `cbor:"3,keyasint,omitempty"`
	Plays []Played `cbor:"4,keyasint,omitempty"`
	// Passing is the role whose counters the receiver is to send.
	Passing Passing `cbor:"5,keyasint,omitzero"`
	// Begun are the regions, by name, each with its RegionMessages.Began.
	Begun []Peer `cbor:"6,keyasint,omitempty"`
	// Begins is as in the request.
	Begins bool `cbor:"7,keyasint,omitempty"`
}

// Played is a role that a region plays.
type Played struct {
	Of string `cbor:"1,keyasint,omitempty"`
	// Age is since when (ns before now) the region plays a role without the counters of the region that played it before; 0: it has them.
	Age int64 `cbor:"2,keyasint,omitempty"`
}
