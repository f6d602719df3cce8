package message

import (
	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/facts"
)

// Queries of the console and tools are answered by all nodes: one node calls each of the others, and the call fails if a
// node does not answer in time.

// TopAsk requests the heaviest keys counted by the receiver's APIs. The response is a Top.
type TopAsk struct {
	// By is limiter.TopBy.
	By     uint8  `cbor:"1,keyasint,omitempty"`
	Domain string `cbor:"2,keyasint,omitempty"`
}

// Top answers a TopAsk.
type Top struct {
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

// FactsAsk requests the facts of a node, with or without the History of its rules. The response is Facts.
type FactsAsk struct {
	History bool `cbor:"1,keyasint,omitempty"`
}

// Facts answers a FactsAsk.
type Facts struct {
	Node facts.Node `cbor:"1,keyasint"`
}

// KeyAsk requests the state of a key under Limits. The response is KeyFacts.
type KeyAsk struct {
	Key    bucket.Key     `cbor:"1,keyasint"`
	Limits *bucket.Limits `cbor:"-"`
}

// KeyFacts answers a KeyAsk.
type KeyFacts struct {
	Key facts.Key `cbor:"1,keyasint"`
}

func (*TopAsk) body()   {}
func (*Top) body()      {}
func (*FactsAsk) body() {}
func (*Facts) body()    {}
func (*KeyAsk) body()   {}
func (*KeyFacts) body() {}
