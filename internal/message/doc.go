// Package message is what nodes say to each other about who is counted, who may
// decide, and where partitions are: the vocabulary that cluster/quorum and
// cluster/handoff speak and transport/peer carries. It decides nothing.
//
// Every message may be lost, doubled, delayed or overtaken, and every receiver must
// stand that. docs/protocol.md tells what they are for. Values are immutable once
// they are sent: senders and receivers may share them.
package message
