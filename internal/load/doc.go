// Package load puts a load on a cluster and counts what comes back: callers that each
// wait for their answer and ask again, about keys drawn evenly or with a skew. It
// decides which keys are asked, when, and what is recorded; how a call is written on
// the wire is the Target's, and package door has one for each of sluice's doors.
//
// Run owns a goroutine per caller and waits for all.
package load
