// Package grpcapi is the gRPC door: sluice.v1 on a *grpc.Server that the caller
// makes and serves, with the standard health and reflection services beside it.
//
// It decides gRPC status codes, and that an operator's call comes from this machine;
// nothing about checks, which are the limiter.Service's. Each CheckStream has a
// goroutine that reads and one per request in flight; the stream's handler waits for
// the latter, Close for all.
package grpcapi
