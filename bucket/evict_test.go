package bucket

import (
	"testing"
	"time"
)

// A key that is used again and again is not pushed out by a flood of new ones; one that
// is left alone is.
func TestFloodLeavesTheUsedAlone(t *testing.T) {
	for _, size := range []int{7, 100, 1000} {
		table := mustTable(t, Config{Shards: 1, MaxEntries: size + 1})
		limits := mustLimits(t, Limit{Algorithm: FixedWindow, Count: 1 << 40, Period: time.Hour})
		spend := func(key uint64) int64 {
			d := table.Do(1, &Request{Key: Key{Hi: key}, Limits: limits, Cost: 1})
			return d.Limit - d.Remaining
		}
		const used, alone = 1, 2
		spend(used)
		spend(alone)
		uses := int64(1)
		for i := range uint64(20 * size) {
			spend(1000 + i)
			if size < 16 || i%uint64(size/16) == 0 {
				uses++
				if got := spend(used); got != uses {
					t.Fatalf("%d entries: after %d others the used key has spent %d, want %d", size, i+1, got, uses)
				}
			}
		}
		if got := spend(alone); got != 1 {
			t.Errorf("%d entries: the key left alone has spent %d, want it forgotten", size, got)
		}
	}
}
