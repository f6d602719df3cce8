package bucket_test

import (
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/leaf/guard"
)

// grantGuard is a lease under a limit of 10 that admits more at one moment if a rule is removed.
type grantGuard struct {
	name        string
	removed     guard.Guard
	limit       bucket.Limit
	granted, at string
	life        time.Duration
	returns     int   // how often half of the lease is returned
	more        int64 // units admitted without the rule
}

var grantGuards = []grantGuard{
	{"burst shrink", guard.BurstShrink, per(bucket.TokenBucket, 10, 10*time.Second), "0:00", "0:01.999999999", 2 * time.Second, 0, 11},
	{"burst shrink of a meter", guard.BurstShrink, per(bucket.LeakyBucket, 10, 100*time.Second), "0:00", "0:49.999999998", 50*time.Second - 1, 0, 14},
	{"late date", guard.LateDate, per(bucket.SlidingLog, 10, 4*time.Minute), "0:00", "4:00", 6 * time.Second, 0, 20},
	{"late date of sub-windows", guard.LateDate, per(bucket.SlidingWindow, 10, 4*time.Minute), "0:00", "4:04", 6 * time.Second, 0, 20},
	{"boundary clip", guard.BoundaryClip, per(bucket.FixedWindow, 10, time.Minute), "0:58", "1:00", 6 * time.Second, 0, 20},
	{"boundary clip, weighted", guard.BoundaryClip, per(bucket.SlidingCounter, 10, time.Minute), "0:58", "1:03", 6 * time.Second, 0, 11},
	{"settled once", guard.SettleOnce, per(bucket.FixedWindow, 10, time.Minute), "0:10", "0:11", 6 * time.Second, 2, 15},
}

// TestGrantGuards: at one moment the lease owner and the owner admit no more than the limit together. TestGrantGuardsRemoved removes the rules.
func TestGrantGuards(t *testing.T) {
	for _, c := range grantGuards {
		if got := c.admitted(t); got > 10 {
			t.Errorf("%s: %d admitted, want at most 10", c.name, got)
		}
	}
}

// admitted returns the units that the lease owner and the owner admit at the moment c.at.
func (c *grantGuard) admitted(t *testing.T) int64 {
	t.Helper()
	table := mustTable(t, bucket.Config{Shards: 1})
	limits := mustLimits(t, c.limit)
	g := grant(t, table, clock(t, c.granted), limits, 10, c.life)
	now, spent := clock(t, c.at), g.Units
	switch {
	case c.returns > 0:
		for range c.returns {
			table.Return(now, bucket.Key{}, g.ID, g.Units/2)
		}
		spent -= g.Units / 2
	case now >= clock(t, c.granted)+int64(g.For):
		// The lease has ended. Logs still count the units spent in its last moment.
		if spent = 0; c.limit.Algorithm == bucket.SlidingLog || c.limit.Algorithm == bucket.SlidingWindow {
			spent = g.Units
		}
	}
	for table.Do(now, &bucket.Request{Limits: limits, Cost: 1}).Allowed {
		spent++
	}
	return spent
}
