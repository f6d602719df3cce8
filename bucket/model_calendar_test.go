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

var calendarUnits = []struct {
	unit bucket.Unit
	name string
}{
	{bucket.Minute, "minute"}, {bucket.Hour, "hour"}, {bucket.Day, "day"},
	{bucket.Week, "week"}, {bucket.Month, "month"}, {bucket.Year, "year"},
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
	for _, z := range zones {
		for _, u := range calendarUnits {
			t.Run(z.name+"/"+z.from+"/"+u.name, func(t *testing.T) {
				walkCalendar(t, z.name, z.from, u.unit)
			})
		}
	}
}

func walkCalendar(t *testing.T, name, from string, u bucket.Unit) {
	zone := mustZone(name)
	begin, err := time.ParseInLocation("2006-01-02 15:04:05.999", from+" 13:14:15.16", zone)
	if err != nil {
		t.Fatal(err)
	}
	limit := calendarLimit(name, u)
	limits, table := mustLimits(t, limit), smallTable(t)
	steps := 400
	switch u {
	case bucket.Day:
		steps = 40
	case bucket.Week, bucket.Month:
		steps = 14
	case bucket.Year:
		steps = 3
	}
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

// TestCalendarWindowsHold charges a window once and asks again all through it.
func TestCalendarWindowsHold(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		z := rapid.SampledFrom(zones).Draw(t, "zone")
		u := rapid.SampledFrom(calendarUnits).Draw(t, "unit")
		day, err := time.Parse("2006-01-02", z.from)
		if err != nil {
			t.Fatalf("%v", err)
		}
		limit := calendarLimit(z.name, u.unit)
		limits, table := mustLimits(t, limit), smallTable(t)
		now := day.UnixNano() + rapid.Int64Range(0, int64(20*24*time.Hour)).Draw(t, "offset")
		end := windowEnd(t, table, limits, now)
		r := &bucket.Request{Key: bucket.Key{Hi: 1, Lo: 2}, Limits: limits, Cost: 1, Verb: bucket.Read}
		for range 5 {
			inside := rapid.Int64Range(now, end-1).Draw(t, "inside")
			if d := table.Do(inside, r); d.Allowed || inside+int64(d.RetryAfter) != end {
				t.Fatalf("%v window charged at %v ends at %v; at %v: %+v", u.name, now, end, inside, d)
			}
		}
		if d := table.Do(end, r); !d.Allowed {
			t.Fatalf("the next window at %v: %+v", end, d)
		}
	})
}

// TestCalendarZonesDiffer: midnight is another moment in each zone.
func TestCalendarZonesDiffer(t *testing.T) {
	now := time.Date(2025, 7, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		zone string
		want string
	}{
		{"", "2025-07-02T00:00:00Z"},
		{"UTC", "2025-07-02T00:00:00Z"},
		{"America/New_York", "2025-07-02T04:00:00Z"},
		{"Europe/Berlin", "2025-07-01T22:00:00Z"},
		{"Australia/Lord_Howe", "2025-07-01T13:30:00Z"},
		{"Asia/Kathmandu", "2025-07-01T18:15:00Z"},
		{"Pacific/Apia", "2025-07-02T11:00:00Z"},
		{"Africa/Cairo", "2025-07-01T21:00:00Z"},
	} {
		end := windowEnd(t, smallTable(t), mustLimits(t, calendarLimit(c.zone, bucket.Day)), now.UnixNano())
		if got := time.Unix(0, end).UTC().Format(time.RFC3339); got != c.want {
			t.Errorf("%q: the day ends at %s, want %s", c.zone, got, c.want)
		}
	}
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
