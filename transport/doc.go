// Package transport holds what the APIs and the peer port below it share of the wire: limits in protobuf, and where
// callers say what trace a call is part of. What a check means is package limiter's. It starts no goroutine.
package transport
