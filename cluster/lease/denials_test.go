package lease

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

const ms = int64(time.Millisecond)

func hourly(t *testing.T, n int64) *bucket.Limits {
	l, err := bucket.NewLimits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: n, Period: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// TestDenials: what may be answered from a denial of cost 3 that was asked for at 100 ms, heard at 110 ms and is
// good for 50 ms.
func TestDenials(t *testing.T) {
	limits, key := hourly(t, 10), bucket.Key{Hi: 1, Lo: 2}
	asked := bucket.Request{Key: key, Limits: limits, Cost: 3}
	said := bucket.Decision{Limit: 10, Remaining: 2, RetryAfter: 70 * time.Millisecond, ResetAfter: 90 * time.Millisecond}
	for name, c := range map[string]struct {
		at     int64
		change func(*bucket.Request, *Denials)
		want   bool
	}{
		"at once":                    {110, nil, true},
		"the last moment":            {149, nil, true},
		"too late":                   {150, nil, false},
		"a higher cost":              {120, func(r *bucket.Request, _ *Denials) { r.Cost = 4 }, true},
		"a lower cost":               {120, func(r *bucket.Request, _ *Denials) { r.Cost = 2 }, false},
		"equal limits, parsed again": {120, func(r *bucket.Request, _ *Denials) { r.Limits = hourly(t, 10) }, false},
		"a reserve":                  {120, func(r *bucket.Request, _ *Denials) { r.Reserve = 1 }, false},
		"another key":                {120, func(r *bucket.Request, _ *Denials) { r.Key.Hi++ }, false},
		"forgotten":                  {120, func(_ *bucket.Request, d *Denials) { d.Forget(115*ms, key) }, false},
		"another one forgotten":      {120, func(_ *bucket.Request, d *Denials) { d.Forget(115*ms, bucket.Key{Hi: 9, Lo: 2}) }, true},
		"displaced": {120, func(_ *bucket.Request, d *Denials) {
			other := asked
			other.Key.Hi++
			d.Remember(100*ms, 110*ms, &other, &said, "b", time.Second)
		}, false},
	} {
		var d Denials
		r := asked
		if _, _, _, ok := d.Answer(110*ms, &r); ok {
			t.Fatal("an answer out of nothing")
		}
		d.Remember(100*ms, 110*ms, &asked, &said, "b", 50*time.Millisecond)
		if c.change != nil {
			c.change(&r, &d)
		}
		got, owner, age, ok := d.Answer(c.at*ms, &r)
		if ok != c.want {
			t.Errorf("%s: answered=%v", name, ok)
		}
		want, left := said, time.Duration((c.at-110)*ms)
		want.RetryAfter, want.ResetAfter = said.RetryAfter-left, said.ResetAfter-left
		if ok && (got != want || owner != "b" || age != time.Duration((c.at-100)*ms)) {
			t.Errorf("%s: %+v by %q, %v old; want %+v", name, got, owner, age, want)
		}
	}
}

// TestDenialsLate: an answer that comes when its time is over, or that was asked for before its key was forgotten, is not
// remembered. One that was asked for afterwards is.
func TestDenialsLate(t *testing.T) {
	r := bucket.Request{Key: bucket.Key{Lo: 1}, Limits: hourly(t, 1), Cost: 1}
	for _, c := range []struct {
		forgotten, sent, heard int64
		good                   time.Duration
		want                   bool
	}{
		{0, 10, 20, 10 * time.Millisecond, false}, {0, 10, 20, 11 * time.Millisecond, true}, {0, 10, 20, 0, false},
		{10, 10, 20, time.Second, false}, {15, 10, 20, time.Second, false}, {9, 10, 20, time.Second, true},
	} {
		var d Denials
		d.Remember(0, 1, &r, &bucket.Decision{}, "b", 2)
		if c.forgotten > 0 {
			d.Forget(c.forgotten*ms, r.Key)
		}
		d.Remember(c.sent*ms, c.heard*ms, &r, &bucket.Decision{RetryAfter: bucket.Never}, "b", c.good)
		got, _, _, ok := d.Answer(c.heard*ms, &r)
		if ok != c.want || ok && got.RetryAfter != bucket.Never {
			t.Errorf("%+v: %+v, answered=%v", c, got, ok)
		}
	}
}

func TestDenialsAllocs(t *testing.T) {
	var d Denials
	r := bucket.Request{Key: bucket.Key{Lo: 1}, Limits: hourly(t, 1), Cost: 1}
	d.Remember(0, 1, &r, &bucket.Decision{}, "b", time.Hour)
	if n := testing.AllocsPerRun(100, func() {
		d.Remember(0, 1, &r, &bucket.Decision{}, "b", time.Hour)
		if _, _, _, ok := d.Answer(2, &r); !ok {
			t.Error("not answered")
		}
		d.Forget(-1, bucket.Key{Lo: 2})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
