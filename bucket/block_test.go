package bucket_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestBlockFor: a denial for lack of units blocks, others meanwhile do not extend it, and only a reset ends it early.
func TestBlockFor(t *testing.T) {
	limit := per(bucket.FixedWindow, 3, time.Minute)
	limit.BlockFor = 10 * time.Minute
	tell(t, `
		0:00 ×3 allowed
		0:00 read denied left=0 retry=1m0s
		0:01 denied left=0 retry=10m0s
		0:02 denied left=0 retry=9m59s
		5:00 denied left=3 retry=5m1s
		5:00 read denied left=3 retry=5m1s
		5:00 charge 1 charged
		5:00 refund 1 charged
		10:00 denied retry=1s reset=1s
		10:01 ×3 allowed
		10:01 denied left=0 retry=10m0s
		10:02 reset charged
		10:02 ×3 allowed
	`, limit)
	// A cost above the limit begins nothing, and only the limit that denies is blocked.
	tell(t, `
		0:00 4 denied retry=never
		0:00 ×2 allowed
		0:00 2 denied by=0 retry=10m0s
		9:59 denied by=0 retry=1s
		10:00 allowed
	`, limit, per(bucket.TokenBucket, 100, time.Minute))
}

// TestBlockAfterChange: the time of an admitted check is no denial when block_for comes into force, nor the reverse.
func TestBlockAfterChange(t *testing.T) {
	with := func(period, apart, block time.Duration) *bucket.Limits {
		l := per(bucket.FixedWindow, 3, period)
		l.MinInterval, l.BlockFor = apart, block
		return mustLimits(t, l)
	}
	for _, period := range []time.Duration{time.Hour, 2 * time.Hour} { // the second is a limit of another shape
		apart, blocks := with(time.Hour, time.Minute, 0), with(period, 0, 10*time.Minute)
		table, key, now := smallTable(t), bucket.Key{Hi: 1, Lo: 1}, day
		do := func(l *bucket.Limits, cost int64) bucket.Decision {
			return table.Do(now, &bucket.Request{Key: key, Limits: l, Cost: cost})
		}
		if d := do(apart, 1); !d.Allowed {
			t.Fatalf("%+v", d)
		}
		if d := do(blocks, 1); !d.Allowed || d.Remaining != 1 {
			t.Errorf("%v: after an admitted check: %+v", period, d)
		}
		now += int64(30 * time.Second)
		if d := do(blocks, 2); d.Allowed {
			t.Errorf("%v: above the limit: %+v", period, d)
		}
		if d := do(blocks, 1); d.Allowed || d.RetryAfter != 10*time.Minute {
			t.Errorf("%v: blocked: %+v", period, d)
		}
		now += int64(30 * time.Second)
		if d := do(apart, 1); !d.Allowed {
			t.Errorf("%v: after the denial that blocked: %+v", period, d)
		}
	}
}

// TestFormerInterval: a min_interval that other limits have replaced is remembered until the counter is free under these, and counts
// again if it comes back into force before.
func TestFormerInterval(t *testing.T) {
	plain := per(bucket.FixedWindow, 3, time.Minute)
	with := plain
	with.MinInterval = time.Hour
	apart, other := mustLimits(t, with), mustLimits(t, plain)
	for _, swept := range []bool{false, true} {
		table, key, now := smallTable(t), bucket.Key{Hi: 1, Lo: 1}, day
		do := func(l *bucket.Limits) bucket.Decision {
			return table.Do(now, &bucket.Request{Key: key, Limits: l, Cost: 1})
		}
		if first, second := do(apart), do(other); !first.Allowed || !second.Allowed {
			t.Fatalf("%+v, %+v", first, second)
		}
		now += int64(2 * time.Minute) // both units have expired
		if swept {
			table.Sweep(now, 0)
		}
		if d := do(apart); d.Allowed != swept || !swept && d.RetryAfter != 58*time.Minute {
			t.Errorf("swept %v: %+v", swept, d)
		}
	}
}
