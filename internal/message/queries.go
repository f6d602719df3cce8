package message

import (
	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/facts"
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
