package bucket_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
)

// grantGuard is two leases under a limit of 10 that admit more by one moment if a rule is removed.
type grantGuard struct {
	name        string
	removed     guard.Guard
	limit       bucket.Limit
	granted, at string
	life        time.Duration
	returns     int   // how often the second one is returned, without anything spent
	more        int64 // units admitted without the rule
}

var grantGuards = []grantGuard{
	{"held of a bucket", guard.Held, per(bucket.TokenBucket, 10, 10*time.Second), "0:00", "0:01.999999999", 2 * time.Second, 0, 20},
	{"held of a window", guard.Held, per(bucket.FixedWindow, 10, time.Minute), "0:10", "0:11", 6 * time.Second, 0, 20},
	{"held of a sliding counter", guard.Held, per(bucket.SlidingCounter, 10, time.Minute), "0:10", "0:11", 6 * time.Second, 0, 20},
	{"lapse of a log", guard.Lapse, per(bucket.SlidingLog, 10, 4*time.Minute), "0:00", "4:00", 6 * time.Second, 0, 20},
	{"lapse of sub-windows", guard.Lapse, per(bucket.SlidingWindow, 10, 4*time.Minute), "0:00", "4:04", 6 * time.Second, 0, 20},
	{"lapse in a window", guard.Lapse, per(bucket.FixedWindow, 10, time.Minute), "0:10", "0:17", 6 * time.Second, 0, 20},
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

// admitted returns the units that count at the moment c.at, of those that the leaseholder and the owner admit.
func (c *grantGuard) admitted(t *testing.T) int64 {
	t.Helper()
	table := mustTable(t, bucket.Config{Shards: 1})
	limits := mustLimits(t, c.limit)
	now, spent := clock(t, c.at), int64(0)
	for range 2 {
		g := grant(t, table, clock(t, c.granted), limits, 5, c.life)
		if spent += g.Units; spent > 5 {
			for range c.returns {
				table.Return(now, bucket.Key{}, g.ID, g.Units)
				spent = 5
			}
		}
	}
	for table.Do(now, &bucket.Request{Limits: limits, Cost: 1}).Allowed {
		spent++
	}
	return spent
}
