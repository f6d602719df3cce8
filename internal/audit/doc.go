// Package audit hammers a running cluster with checks and says whether it kept its
// limits: which keys were admitted more or less than their limit allows, what got no answer,
// and for how long keys had none.
//
// It is a caller like any other, over the public gRPC API, and knows nothing of what is inside the
// nodes. It decides which checks to make, where to send them again when a node fails, and how to
// count what became of them. What a limit may admit is decided by package model. Printing, flags and
// exit codes are left to cmd/sluice.
//
// [Run] owns the callers' goroutines and connections and returns when all have ended. A [Discovery]
// owns one goroutine, from Discover to Close.
package audit
