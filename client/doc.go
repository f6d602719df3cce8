// Package client asks a sluice cluster from Go.
//
// A Client keeps one stream to each node that it asks. Concurrent calls travel together: a check
// is sent at once while few frames are unanswered, and gathers with others while they are.
// Answers name the node that holds the key, and the Client asks that node next time, so most
// checks are decided where they arrive. A denial is answered from memory for as long as the node
// says that it stands, 100 ms at most.
//
// What happens when no node answers in time is the caller's choice, see FailurePolicy, and every
// Decision says in Source who decided it. An error means that the call was wrong, that its
// context ended, or that the Client is closed.
//
// A Client is safe for concurrent use and owns its goroutines: Close ends them and waits.
// The packages below this one bring limits to net/http, gRPC, listeners and streams of bytes, and
// what a Client does to Prometheus and OpenTelemetry.
package client
