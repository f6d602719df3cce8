// Package gubernator is the door for clients of gubernator v1: its service
// pb.gubernator.V1 on a *grpc.Server that the caller makes and serves, and the same three
// calls as JSON over HTTP.
//
// It decides what a limit that comes in gubernator's words means here, and in which of
// its words the answer goes back. How much is left is the limiter.Service's.
// docs/gubernator.md is its reference and lists what differs, and why. It starts no goroutine.
package gubernator
