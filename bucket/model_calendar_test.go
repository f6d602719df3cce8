package bucket_test

import (
	"fmt"
	"sync"
	"testing"
	"time"
	_ "time/tzdata"

	"github.com/sluicecluster/sluice/bucket"
	"pgregory.net/rapid"
)

// zones change their clocks in every awkward way there is: by an hour, by half
// an hour, at midnight, by a whole day, or never at a whole hour from UTC.
var zones = []struct{ name, from string }{
	{"UTC", "2024-02-20"},
	{"UTC", "2100-02-20"},
	{"UTC", "1969-12-20"},
	{"America/Havana", "2024-10-25"},
	{"America/New_York", "2024-03-01"},
	{"America/New_York", "2024-10-25"},
	{"Europe/Berlin", "2025-03-20"},
	{"Europe/Berlin", "2025-10-20"},
	{"Australia/Lord_Howe", "2024-04-01"},
	{"Australia/Lord_Howe", "2024-09-30"},
	{"America/Sao_Paulo", "2018-02-10"},
	{"America/Sao_Paulo", "2018-10-28"},
	{"Asia/Kathmandu", "1985-12-25"},
	{"Asia/Kathmandu", "2025-12-25"},
	{"Pacific/Apia", "2011-12-20"},
	{"Africa/Cairo", "2024-04-20"},
	{"Africa/Cairo", "2024-10-25"},
}

// calendarName names the calendar unit that t lies in, as a wall calendar would.
func calendarName(u bucket.Unit, t time.Time) string {
	switch u {
	case bucket.Minute:
		return t.Format("2006-01-02 15:04")
	case bucket.Hour:
		return t.Format("2006-01-02 15")
	case bucket.Day:
		return t.Format("2006-01-02")
	case bucket.Week:
		year, week := t.ISOWeek()
		return fmt.Sprint(year, week)
	case bucket.Month:
		return t.Format("2006-01")
	}
	return t.Format("2006")
}

// calendarEnd is the first moment after t whose calendar unit has another name.
// It walks there in quarters of an hour and then halves the last one, because
// every clock change of these zones lies on a quarter of an hour.
func calendarEnd(l bucket.Limit, t int64) int64 {
	zone := mustZone(l.Zone)
	name := calendarName(l.Unit, time.Unix(0, t).In(zone))
	inside := func(t int64) bool { return calendarName(l.Unit, time.Unix(0, t).In(zone)) == name }
	step := int64(15 * time.Minute)
	if l.Unit == bucket.Minute {
		step = int64(time.Minute)
	}
	lo, hi := t, (floorDiv(t, step)+1)*step
	for inside(hi) {
		lo, hi = hi, hi+step
	}
	for lo+1 < hi {
		if mid := lo + (hi-lo)/2; inside(mid) {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// loaded keeps the zones that mustZone has read.
var loaded sync.Map

func mustZone(name string) *time.Location {
	if zone, ok := loaded.Load(name); ok {
		return zone.(*time.Location)
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		panic(err)
	}
	loaded.Store(name, zone)
	return zone
}

// calendarLimit admits one check in each unit of the zone's calendar.
func calendarLimit(zone string, u bucket.Unit) bucket.Limit {
	return bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Align: bucket.AlignCalendar, Unit: u, Zone: zone}
}

// windowEnd asks a fresh counter when the window of now ends.
func windowEnd(t failer, table *bucket.Table, limits *bucket.Limits, now int64) int64 {
	t.Helper()
	r := &bucket.Request{Key: bucket.Key{Hi: 1, Lo: 2}, Limits: limits, Verb: bucket.Reset}
	table.Do(now, r)
	r.Verb, r.Cost = bucket.Check, 1
	d := table.Do(now, r)
	if !d.Allowed || d.ResetAfter <= 0 {
		t.Fatalf("a fresh counter at %v answers %+v", time.Unix(0, now).UTC(), d)
	}
	return now + int64(d.ResetAfter)
}

// TestCalendarWindows walks from window to window over the clock changes: each
// ends where the next unit of the wall calendar begins, so they leave no gap and
// never overlap. The repeated hour of autumn may be one window or two.
func TestCalendarWindows(t *testing.T) {
	steps := map[bucket.Unit]int{bucket.Minute: 400, bucket.Hour: 400, bucket.Day: 40, bucket.Week: 14, bucket.Month: 14, bucket.Year: 3}
	for _, z := range zones {
		for u, steps := range steps {
			t.Run(fmt.Sprintf("%s/%s/%d", z.name, z.from, u), func(t *testing.T) { walkCalendar(t, z.name, z.from, u, steps) })
		}
	}
}

func walkCalendar(t *testing.T, name, from string, u bucket.Unit, steps int) {
	zone := mustZone(name)
	begin, err := time.ParseInLocation("2006-01-02 15:04:05.999", from+" 13:14:15.16", zone)
	if err != nil {
		t.Fatal(err)
	}
	limit := calendarLimit(name, u)
	limits, table := mustLimits(t, limit), smallTable(t)
	now := begin.UnixNano()
	if u == bucket.Minute {
		now = nearestChange(begin).UnixNano() - int64(100*time.Minute) - 1
	}
	for range steps {
		end := windowEnd(t, table, limits, now)
		if got := windowEnd(t, table, limits, end-1); got != end {
			t.Fatalf("the last moment before %v belongs to a window that ends at %v", local(zone, end), local(zone, got))
		}
		want := calendarEnd(limit, now)
		short := u <= bucket.Hour && end < want && changesAt(zone, end)
		if end != want && !short {
			t.Fatalf("the %v window of %v ends at %v, the calendar says %v", u, local(zone, now), local(zone, end), local(zone, want))
		}
		if monday := local(zone, end); u == bucket.Week && monday.Weekday() != time.Monday {
			t.Fatalf("a week begins at %v, a %v", monday, monday.Weekday())
		}
		now = end
	}
}

// local is the moment ns as the zone's clocks show it.
func local(zone *time.Location, ns int64) time.Time { return time.Unix(0, ns).In(zone) }

func changesAt(zone *time.Location, ns int64) bool {
	_, before := local(zone, ns-1).Zone()
	_, after := local(zone, ns).Zone()
	return before != after
}

// nearestChange is the first clock change after t, or t if none comes within a month.
func nearestChange(t time.Time) time.Time {
	for c := t.Truncate(15 * time.Minute); c.Before(t.AddDate(0, 1, 0)); c = c.Add(15 * time.Minute) {
		if changesAt(t.Location(), c.UnixNano()) {
			return c
		}
	}
	return t
}

// TestCalendarSteps refills a bucket whole at local midnight.
func TestCalendarSteps(t *testing.T) {
	limit := bucket.Limit{
		Algorithm: bucket.TokenBucket, Count: 3, Burst: 5, Refill: bucket.RefillInterval,
		Align: bucket.AlignCalendar, Unit: bucket.Day, Zone: "America/New_York",
	}
	rapid.Check(t, func(t *rapid.T) {
		table, limits := smallTable(t), mustLimits(t, limit)
		a := newAccount(limits)
		now := time.Date(2024, 10, 30, 9, 0, 0, 0, time.UTC).UnixNano()
		for range 10 {
			now += rapid.SampledFrom([]int64{0, 1, int64(time.Hour), int64(7 * time.Hour), int64(24 * time.Hour)}).Draw(t, "delta")
			r := &bucket.Request{Limits: limits, Cost: rapid.Int64Range(0, 6).Draw(t, "cost")}
			d := table.Do(now, r)
			a.compare(t, a.do(now, r), d)
		}
	})
}
