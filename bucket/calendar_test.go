package bucket

import (
	"math"
	"testing"
	"time"
	_ "time/tzdata" // the zones here must be known wherever the test runs
)

// awkward are stretches of zone history in which the clock does what it can.
var awkward = []struct {
	zone, from string
	days       int
}{
	{"UTC", "2024-02-26", 10},
	{"Europe/Berlin", "2024-03-29", 6},
	{"Europe/Berlin", "2024-10-25", 6},
	{"America/New_York", "2024-11-01", 6},
	{"America/Havana", "2024-11-01", 6},      // put back to midnight
	{"America/Sao_Paulo", "2018-11-02", 5},   // no midnight
	{"America/Sao_Paulo", "2018-02-16", 5},   // put back across midnight
	{"America/St_Johns", "2010-11-05", 5},    // put back across midnight at 00:01
	{"Australia/Lord_Howe", "2024-04-05", 5}, // half an hour
	{"Australia/Lord_Howe", "2024-10-04", 5},
	{"Asia/Kathmandu", "1985-12-30", 5},      // five quarters of an hour past six, by a quarter
	{"Pacific/Apia", "2011-12-28", 5},        // a day that was left out
	{"America/Juneau", "1867-10-16", 5},      // a day that came twice
	{"Europe/Amsterdam", "1937-06-29", 4},    // offsets of odd seconds
	{"Africa/Casablanca", "2024-03-08", 5},   // ahead all year but for Ramadan
	{"America/Los_Angeles", "2024-12-28", 6}, // the last day of a leap year
	{"America/Los_Angeles", "2040-12-28", 6}, // and after the table of changes
}

// inZone returns a time of the zone, as time.DateTime without seconds.
func inZone(t *testing.T, zone, at string) time.Time {
	t.Helper()
	loc, err := time.LoadLocation(zone)
	if err != nil {
		t.Fatal(err)
	}
	start, err := time.ParseInLocation("2006-01-02 15:04", at, loc)
	if err != nil {
		t.Fatal(err)
	}
	return start
}

// TestCalendarTiles walks boundary by boundary: windows follow each other without a gap, every
// instant's window ends at the next boundary, and counting agrees with walking.
func TestCalendarTiles(t *testing.T) {
	for _, x := range awkward {
		start := inZone(t, x.zone, x.from+" 00:00")
		for unit := Minute; unit <= Year; unit++ {
			c := &calendar{unit: unit, loc: start.Location()}
			from := start.UnixNano()
			to := start.AddDate(0, 0, x.days).UnixNano()
			at, n := from, int64(0)
			for at < to {
				end := c.end(at)
				if end <= at {
					t.Fatalf("%s %s unit %d: the window of %d ends at %d", x.zone, x.from, unit, at, end)
				}
				for _, inside := range []int64{at + 1, at + (end-at)/2, end - 1} {
					if got := c.end(inside); got != end {
						t.Fatalf("%s %s unit %d: %d ends at %d, %d in the same window at %d", x.zone, x.from, unit, at, end, inside, got)
					}
				}
				// A day that was left out is two boundaries at one instant.
				steps := c.count(at, end)
				if steps < 1 || c.count(at, end-1) != 0 || steps > 1 && x.zone != "Pacific/Apia" {
					t.Fatalf("%s %s unit %d: %d boundaries in (%d, %d]", x.zone, x.from, unit, steps, at, end)
				}
				n += steps
				if c.nth(from, n) != end || c.count(from, end) != n {
					t.Fatalf("%s %s unit %d: boundary %d is %d, walked to %d", x.zone, x.from, unit, n, c.nth(from, n), end)
				}
				at = end
			}
		}
	}
}

// TestCalendarLengths gives the lengths of windows where no wall calendar has one answer, or not at a quarter of an hour.
func TestCalendarLengths(t *testing.T) {
	h := time.Hour
	for _, x := range []struct {
		zone, at string
		unit     Unit
		want     []time.Duration
	}{
		{"Europe/Berlin", "2024-10-27 01:00", Hour, []time.Duration{h, h, h, h}},
		{"America/St_Johns", "2010-11-06 00:00", Day, []time.Duration{24 * h, 25 * h, 24 * h}},
		{"Australia/Lord_Howe", "2024-04-07 00:00", Hour, []time.Duration{h, h + h/2, h}},
		{"Australia/Lord_Howe", "2024-10-06 01:00", Hour, []time.Duration{h, h / 2, h}},
		{"Asia/Kathmandu", "2024-05-05 07:00", Hour, []time.Duration{h, h}},
	} {
		start := inZone(t, x.zone, x.at)
		c, at := &calendar{unit: x.unit, loc: start.Location()}, start.UnixNano()
		for i, want := range x.want {
			end := c.end(at)
			if got := time.Duration(end - at); got != want {
				t.Errorf("%s %s, window %d of unit %d: %v long, want %v", x.zone, x.at, i, x.unit, got, want)
			}
			at = end
		}
	}
}

// TestCalendarEnds: near the ends of int64 boundaries are held there, and time always passes.
func TestCalendarEnds(t *testing.T) {
	for _, zone := range []string{"UTC", "Asia/Tokyo", "America/Los_Angeles"} {
		for unit := Minute; unit <= Year; unit++ {
			c := &calendar{unit: unit, loc: inZone(t, zone, "2024-01-01 00:00").Location()}
			for _, now := range []int64{never + 1, never + int64(time.Hour), -1, 0, math.MaxInt64 - int64(time.Second), math.MaxInt64 - 1} {
				for _, n := range []int64{1, 2, 1000, math.MaxInt64} {
					if got := c.nth(now, n); got <= now {
						t.Errorf("%s unit %d: boundary %d after %d is %d", zone, unit, n, now, got)
					}
				}
			}
			if got := c.nth(0, math.MaxInt64); got != math.MaxInt64 {
				t.Errorf("%s unit %d: the last boundary is %d", zone, unit, got)
			}
			if got := c.count(never+1, math.MaxInt64-1); got < 580 {
				t.Errorf("%s unit %d: only %d boundaries in all time", zone, unit, got)
			}
		}
	}
}

// A debt of hundreds of millions of hours takes no longer to answer than a small one,
// though the zone's clock changes twice in each of the years until then.
func TestCalendarFarAway(t *testing.T) {
	c := &calendar{unit: Hour, loc: inZone(t, "Europe/Berlin", "2024-01-01 00:00").Location()}
	if got := c.nthClock(0, 400_000_000); got != math.MaxInt64 {
		t.Errorf("the 400,000,000th hour was looked for, and found to begin %d s after the epoch", got)
	}
}

// A time zone is read once, however many limits name it.
func TestZonesAreReadOnce(t *testing.T) {
	in := func(zone string) float64 {
		return testing.AllocsPerRun(100, func() {
			mustLimits(t, Limit{Algorithm: FixedWindow, Count: 1, Align: AlignCalendar, Unit: Day, Zone: zone})
		})
	}
	if far, utc := in("America/St_Johns"), in("UTC"); far > utc {
		t.Errorf("limits with a zone take %v allocations, in UTC %v", far, utc)
	}
	limit := Limit{Zone: "Nowhere/Else"} // a name that is no zone is not kept
	if _, err := limit.calendar(); err == nil {
		t.Fatal("a zone that is none")
	}
	if _, kept := zones.Load(limit.Zone); kept {
		t.Error("a zone that is none is kept")
	}
}
