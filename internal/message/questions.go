package message

import (
	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/facts"
)

// What people ask of a node is answered by all nodes. One node asks each of the others with one call, which fails where the other
// does not answer in time. No machine takes these messages.

// TopAsk asks for the heaviest keys that the receiver's APIs have counted. A Top answers it.
type TopAsk struct {
	// By is limiter.TopBy.
	By     uint8  `cbor:"1,keyasint,omitempty"`
	Domain string `cbor:"2,keyasint,omitempty"`
}

// Top answers a TopAsk.
type Top struct {
	// Off: the sender counts nothing.
	Off bool `cbor:"1,keyasint,omitempty"`
	// Covers is how much time (ns) up to now the counts are about.
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

// FactsAsk asks a node for what it tells of itself, with or without the History of its rules. Facts answer it.
type FactsAsk struct {
	History bool `cbor:"1,keyasint,omitempty"`
}

// Facts answers a FactsAsk.
type Facts struct {
	Node facts.Node `cbor:"1,keyasint"`
}

// KeyAsk asks a node for what it knows of a key under Limits. KeyFacts answers it.
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
