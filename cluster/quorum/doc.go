// Package quorum decides who is counted (the stable set) and whether this process
// may decide anything at full limit (the right). docs/protocol.md has the rules.
// What a process may decide, partition by partition, is cluster/handoff's.
//
// Machine is a pure step function: it takes the time, messages and the view, and
// leaves messages to be sent. It starts no goroutine, reads no clock and draws no
// random numbers; its owner calls it from one goroutine.
package quorum
