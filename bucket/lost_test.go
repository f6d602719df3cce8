package bucket_test

import (
	"math"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// TestLostAdmitsNoMore: a table that has lost its counters admits nothing under DenyLost that they would not have
// admitted, whatever they had counted within their limits. Once all that may have been spent is over, it decides as a new one.
func TestLostAdmitsNoMore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		// Where steps begin with the first charge, that of a bucket that was full would begin them again.
		limits := genSet(t, func(l bucket.Limit) bool { return l.Refill != bucket.RefillInterval || l.Align != bucket.AlignFirstHit })
		truth, table := smallTable(t), smallTable(t)
		now := max(1, genStart.Draw(t, "start"))
		step := func() { now += genStep(t, now, limits.At(0), bucket.Decision{}) }
		check := func() *bucket.Request {
			return &bucket.Request{Limits: limits, Cost: rapid.Int64Range(1, 4).Draw(t, "cost"), DenyLost: true}
		}
		for range rapid.IntRange(0, 12).Draw(t, "before") {
			step()
			truth.Do(now, check())
		}
		since := now
		table.SetLost(0, since, math.MaxInt64)
		for range 20 {
			step()
			r := check()
			d, _, v := table.Try(now, r, nil)
			if v != bucket.Decided {
				t.Fatalf("at %d: verdict %d", now, v)
			}
			if d.Allowed && !truth.Do(now, r).Allowed {
				t.Fatalf("at %d, counters lost at %d: admitted %d units that the lost counter denies", now, since, r.Cost)
			}
			if d.Lost && (d.Allowed || d.RetryAfter > bucket.MaxLostRetry) {
				t.Fatalf("at %d: %+v", now, d)
			}
		}
		idle := smallTable(t)
		idle.SetLost(0, since, math.MaxInt64)
		if now = max(now, limits.SpentUntil(since)); now > exactly {
			return
		}
		r := &bucket.Request{Limits: limits, Cost: 1, DenyLost: true}
		if got, want := idle.Do(now, r), smallTable(t).Do(now, r); got != want {
			t.Fatalf("at %d, when nothing of before %d counts: %+v, a new table says %+v", now, since, got, want)
		}
	})
}

// TestLost has one row for what a loss means to each kind of request.
func TestLost(t *testing.T) {
	const hour = int64(time.Hour)
	window := mustLimits(t, per(bucket.FixedWindow, 10, time.Hour))
	bucketful := mustLimits(t, per(bucket.TokenBucket, 10, 10*time.Hour))
	open := day + hour/2 // in the middle of a window
	for _, c := range []struct {
		name   string
		limits *bucket.Limits
		after  int64 // of the loss
		until  int64
		r      bucket.Request
		want   bucket.Decision
	}{
		{"a window that was open", window, 1, math.MaxInt64, bucket.Request{Cost: 1, DenyLost: true},
			bucket.Decision{Lost: true, Limit: 10, ResetAfter: time.Hour/2 - 1, RetryAfter: bucket.MaxLostRetry}},
		{"a read of it", window, 1, math.MaxInt64, bucket.Request{Verb: bucket.Read, DenyLost: true},
			bucket.Decision{Lost: true, Limit: 10, ResetAfter: time.Hour/2 - 1, RetryAfter: bucket.MaxLostRetry}},
		{"its last second", window, hour/2 - int64(time.Second), math.MaxInt64, bucket.Request{Cost: 1, DenyLost: true},
			bucket.Decision{Lost: true, Limit: 10, ResetAfter: time.Second, RetryAfter: time.Second}},
		{"soon no longer counts", window, 1, int64(time.Second), bucket.Request{Cost: 1, DenyLost: true},
			bucket.Decision{Lost: true, Limit: 10, ResetAfter: time.Hour/2 - 1, RetryAfter: time.Second - 1}},
		{"no longer counts", window, int64(time.Second), int64(time.Second), bucket.Request{Cost: 1, DenyLost: true},
			bucket.Decision{Allowed: true, Limit: 10, Remaining: 9, ResetAfter: time.Hour/2 - time.Second}},
		{"the next window", window, hour / 2, math.MaxInt64, bucket.Request{Cost: 1, DenyLost: true},
			bucket.Decision{Allowed: true, Limit: 10, Remaining: 9, ResetAfter: time.Hour}},
		{"a rule that begins anew", window, 1, math.MaxInt64, bucket.Request{Cost: 1},
			bucket.Decision{Allowed: true, Limit: 10, Remaining: 9, ResetAfter: time.Hour/2 - 1}},
		{"a charge", window, 1, math.MaxInt64, bucket.Request{Cost: 1, Verb: bucket.Charge, DenyLost: true},
			bucket.Decision{Allowed: true, Limit: 10, Remaining: 9, ResetAfter: time.Hour/2 - 1}},
		{"more than the limit ever admits", window, 1, math.MaxInt64, bucket.Request{Cost: 11, DenyLost: true},
			bucket.Decision{Limit: 10, Remaining: 10, RetryAfter: bucket.Never}},
		{"what has not refilled", bucketful, hour / 2, math.MaxInt64, bucket.Request{Cost: 1, DenyLost: true},
			bucket.Decision{Lost: true, Limit: 10, ResetAfter: 9*time.Hour + time.Hour/2, RetryAfter: bucket.MaxLostRetry}},
		{"what has refilled", bucketful, 2 * hour, math.MaxInt64, bucket.Request{Cost: 1, DenyLost: true},
			bucket.Decision{Allowed: true, Limit: 10, Remaining: 1, ResetAfter: 9 * time.Hour}},
	} {
		table := smallTable(t)
		until := c.until
		if until != math.MaxInt64 {
			until += open
		}
		table.SetLost(0, open, until)
		c.r.Limits = c.limits
		if got := table.Do(open+c.after, &c.r); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
		if e := table.Stats().Entries; c.want.Lost && e != 0 {
			t.Errorf("%s: a denial left %d counters", c.name, e)
		}
		table.SetLost(0, 0, 0)
		again := bucket.Request{Limits: c.limits, Key: bucket.Key{Hi: 1}, Cost: 1, DenyLost: true}
		if d := table.Do(open+c.after, &again); !d.Allowed {
			t.Errorf("%s: still denied when the loss has ended: %+v", c.name, d)
		}
	}
}

// TestLostCounts: what is admitted in spite of a loss is charged, and journaled, with all that was unknown; a give-back undoes no more than it.
func TestLostCounts(t *testing.T) {
	const hour = int64(time.Hour)
	limits := mustLimits(t, per(bucket.TokenBucket, 10, 10*time.Hour))
	table := smallTable(t)
	table.Record(0, bucket.RecordAll, 0)
	table.SetLost(0, day, math.MaxInt64)
	r := &bucket.Request{Limits: limits, Cost: 1, DenyLost: true}
	now := day + 2*hour
	var rc bucket.Receipt
	table.Try(now, r, &rc)
	if d, _, _ := table.Try(now, r, nil); !d.Allowed {
		t.Errorf("of two tokens that have come back, the second: %+v", d)
	}
	if d, _, _ := table.Try(now, r, nil); d.Allowed || d.Lost {
		t.Errorf("the third of two tokens: %+v; the counter knows", d)
	}
	if keys, seq, _ := table.Drain(0, nil); len(keys) != 1 || seq != 2 {
		t.Errorf("%d keys have changed, %d times", len(keys), seq)
	}
	table.GiveBack(now, &rc)
	if d, _, _ := table.Try(now, r, nil); !d.Allowed || d.Remaining != 0 {
		t.Errorf("the token that was given back: %+v", d)
	}
	if s := table.Stats(); s.Entries != 1 || table.DropShard(0) != 1 || table.Stats().Bytes != 0 {
		t.Errorf("%+v, then %+v", s, table.Stats())
	}
}

// TestLostGrantsNothing: no units are granted of what may have been spent, and of what has completely come back they are.
func TestLostGrantsNothing(t *testing.T) {
	limits := mustLimits(t, per(bucket.FixedWindow, 10, time.Hour))
	table := smallTable(t)
	table.SetLost(0, day, math.MaxInt64)
	l := leaseRequest(limits, 5, time.Second)
	if g, _, _ := table.Grant(day, l); g.Units == 0 {
		t.Errorf("under a rule that begins anew: %+v", g)
	}
	table.DropShard(0)
	l.DenyLost = true
	if g, _, _ := table.Grant(day, l); g.Units != 0 || !g.Decision.Lost || g.RetryAfter != bucket.MaxLostRetry {
		t.Errorf("of a window that was open: %+v", g)
	}
	if g, _, _ := table.Grant(day+int64(time.Hour), l); g.Units != 5 {
		t.Errorf("of the next window: %+v", g)
	}
}

// TestLostSlots: slots that were lost may be held until the longest deadline that the rule allows,
// so none is given anew before, and no check says that there are some.
func TestLostSlots(t *testing.T) {
	slots, both := bucket.Limit{Algorithm: bucket.Concurrency, Count: 10}, per(bucket.FixedWindow, 100, 2*time.Hour)
	for name, c := range map[string]struct {
		limits *bucket.Limits
		known  bool // the table knows how long they may be held
		ends   time.Duration
	}{
		"slots":               {mustLimits(t, slots), true, time.Hour},
		"with a window":       {mustLimits(t, slots, per(bucket.FixedWindow, 100, time.Minute)), true, time.Hour},
		"with a longer one":   {mustLimits(t, slots, both), true, 2 * time.Hour},
		"of an unknown rule":  {mustLimits(t, slots), false, bucket.DefaultSettleWindow},
		"not slots":           {mustLimits(t, per(bucket.FixedWindow, 100, time.Minute)), true, time.Minute},
		"of unlimited checks": {mustLimits(t, bucket.Limit{Unlimited: true}), true, 0},
	} {
		table := largeTable(t)
		if c.known {
			table.SetHeld(map[uint64]time.Duration{c.limits.Sum(): time.Hour})
		}
		table.SetLost(0, day, math.MaxInt64)
		id := uint64(0)
		ask := func(after time.Duration, verb bucket.Verb, deny bool) bucket.Decision {
			r := &bucket.Request{Limits: c.limits, Cost: 1, Verb: verb, DenyLost: deny}
			if verb == bucket.Reserve {
				id++
				r.Reservation = &bucket.Reservation{ID: id, Least: 1, MaxOpen: 99, For: time.Second}
			}
			return table.Do(day+int64(after), r)
		}
		for _, after := range []time.Duration{1, c.ends - 1} {
			for _, verb := range []bucket.Verb{bucket.Reserve, bucket.Check, bucket.Read} {
				if d := ask(after, verb, true); c.ends > 0 && (d.Allowed || !d.Lost || d.Remaining != 0 || d.RetryAfter <= 0 || d.RetryAfter > min(c.ends-after, bucket.MaxLostRetry) || d.ResetAfter < c.ends-after) {
					t.Errorf("%s, verb %v %v after the loss: %+v", name, verb, after, d)
				}
			}
		}
		if end := table.LostUntil(c.limits, day); end != day+int64(c.ends) {
			t.Errorf("%s: the loss counts for %v, want %v", name, time.Duration(end-day), c.ends)
		}
		for _, verb := range []bucket.Verb{bucket.Reserve, bucket.Check, bucket.Read} {
			if d := ask(c.ends, verb, true); !d.Allowed {
				t.Errorf("%s, verb %v once nothing can be held: %+v", name, verb, d)
			}
			if d := ask(1, verb, false); !d.Allowed {
				t.Errorf("%s, verb %v of a rule that begins anew: %+v", name, verb, d)
			}
		}
	}
}
