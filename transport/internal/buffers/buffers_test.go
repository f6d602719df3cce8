package buffers

import "testing"

// TestPool: a buffer is less than twice as large as what was asked for.
func TestPool(t *testing.T) {
	for n := 1 << smallest; n <= 1<<largest; n += n / 3 {
		b := Pool.Get(n)
		if len(*b) != n || cap(*b) >= 2*n {
			t.Errorf("asked for %d bytes, got %d of %d", n, len(*b), cap(*b))
		}
		Pool.Put(b)
	}
}
