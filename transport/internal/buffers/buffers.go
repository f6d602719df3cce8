// Package buffers has the pool that messages are read from and written to.
package buffers

import "google.golang.org/grpc/mem"

// The smallest and the largest buffer of the pool are 2 to the power of these long.
const (
	smallest = 10 // gRPC does not give smaller ones back
	largest  = 20
)

// Pool has buffers of all powers of two between 1 KiB and 1 MiB. gRPC's own knows none between 32 KiB and 1 MiB, and
// clears the whole of one before it is used again: a batch of a thousand checks would pay for 2 MiB of zeros.
var Pool = newPool()

func newPool() mem.BufferPool {
	var exponents []uint8
	for e := uint8(smallest); e <= largest; e++ {
		exponents = append(exponents, e)
	}
	pool, err := mem.NewBinaryTieredBufferPool(exponents...)
	if err != nil {
		panic(err) // 1 MiB is too large for this machine
	}
	return pool
}
