package bucket_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// TestBlockAfterChange: the time of an admitted check is no denial when block_for comes into force, nor the reverse.
func TestBlockAfterChange(t *testing.T) {
	limits := func(period, apart, block time.Duration) *bucket.Limits {
		return mustLimits(t, bucket.Limit{Algorithm: bucket.FixedWindow, Count: 3, Period: period, MinInterval: apart, BlockFor: block})
	}
	for _, period := range []time.Duration{time.Hour, 2 * time.Hour} { // the second is a limit of another shape
		apart, blocks := limits(time.Hour, time.Minute, 0), limits(period, 0, 10*time.Minute)
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
	apart, other := mustLimits(t, with(plain, func(l *bucket.Limit) { l.MinInterval = time.Hour })), mustLimits(t, plain)
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
