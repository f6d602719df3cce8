// Package gubernatordiff asks gubernator itself and sluice's API for its clients the same
// questions at the same times and compares the answers. Sluice is asked by gRPC, as a node serves it, and gubernator through a
// program of another module with dependencies of its own, which the tests build and start:
//
//	GOWORK=off go -C bench test ./gubernatordiff
//
// alike_test.go has seeded sequences to which both must answer alike. differences_test.go has each
// difference that is meant, as docs/internals/gubernator.md lists them: a difference that is not there is a fault.
package gubernatordiff
