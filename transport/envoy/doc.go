// Package envoy is the door for Envoy: its rate limit service
// envoy.service.ratelimit.v3.RateLimitService on a *grpc.Server that the caller makes and
// serves, in Envoy's own published types.
//
// It decides what a request in Envoy's words asks, which code the whole of it gets, and
// what Envoy is told beside it. Which rule applies and how much is left is the
// limiter.Service's. docs/envoy.md is its reference and lists what differs from
// envoyproxy/ratelimit, and why. It starts no goroutine.
package envoy
