package bucket_test

import (
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// TestLendGuards: what is admitted at one moment of a limit of 10, by a borrower that spends at that moment and by the holder, with each guard and without it.
func TestLendGuards(t *testing.T) {
	for _, c := range []struct {
		name     string
		without  bucket.Guard
		limit    bucket.Limit
		lent, at string
		life     time.Duration
		returns  int // of half of it
		more     int64
	}{
		{"burst shrink", bucket.BurstShrink, per(bucket.TokenBucket, 10, 10*time.Second), "0:00", "0:01.999999999", 2 * time.Second, 0, 11},
		{"burst shrink of a meter", bucket.BurstShrink, per(bucket.LeakyBucket, 10, 100*time.Second), "0:00", "0:49.999999998", 50*time.Second - 1, 0, 14},
		{"late date", bucket.LateDate, per(bucket.SlidingLog, 10, 4*time.Minute), "0:00", "4:00", 6 * time.Second, 0, 20},
		{"late date of sub-windows", bucket.LateDate, per(bucket.SlidingWindow, 10, 4*time.Minute), "0:00", "4:04", 6 * time.Second, 0, 20},
		{"boundary clip", bucket.BoundaryClip, per(bucket.FixedWindow, 10, time.Minute), "0:58", "1:00", 6 * time.Second, 0, 20},
		{"boundary clip, weighted", bucket.BoundaryClip, per(bucket.SlidingCounter, 10, time.Minute), "0:58", "1:03", 6 * time.Second, 0, 11},
		{"settled once", bucket.SettleOnce, per(bucket.FixedWindow, 10, time.Minute), "0:10", "0:11", 6 * time.Second, 2, 15},
	} {
		for _, without := range []bucket.Guard{0, c.without} {
			table := mustTable(t, bucket.Config{Shards: 1, Without: without})
			limits := mustLimits(t, c.limit)
			g := lend(t, table, clock(t, c.lent), limits, 10, c.life)
			now, spent := clock(t, c.at), g.Units
			switch {
			case c.returns > 0:
				for range c.returns {
					table.Return(now, bucket.Key{}, g.ID, g.Units/2)
				}
				spent -= g.Units / 2
			case now >= clock(t, c.lent)+int64(g.For):
				// Nothing can be spent any more at that moment; and of a log what was spent in the last moment counts.
				if spent = 0; c.limit.Algorithm == bucket.SlidingLog || c.limit.Algorithm == bucket.SlidingWindow {
					spent = g.Units
				}
			}
			for table.Do(now, &bucket.Request{Limits: limits, Cost: 1}).Allowed {
				spent++
			}
			if without == 0 && spent > 10 || without != 0 && spent != c.more {
				t.Errorf("%s, without %b: %d admitted, want %d without it and 10 with it", c.name, without, spent, c.more)
			}
		}
	}
}
