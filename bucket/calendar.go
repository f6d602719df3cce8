package bucket

import (
	"math"
	"time"
)

// calendar divides time into calendar units of a time zone. Its windows cover time without gap or overlap, whatever the zone's
// clock does:
//
//   - A day or longer unit begins at the first instant at which the zone's date has reached it: the first instant after a
//     midnight that does not exist, and only once if the clock is put back across midnight. So days of 23 and 25 hours are
//     one window each.
//   - An hour or minute begins whenever the zone's clock shows a full one or jumps past one. So a repeated hour is a window
//     of its own, and a shift by half an hour makes an hour of 30 or 90 minutes.
//
// Offsets from UTC are whole seconds, so all boundaries are, and calculations are in Unix seconds.
type calendar struct {
	unit Unit
	loc  *time.Location
}

// farAway is a number of units (of at least a minute) that exceeds the range of int64 nanoseconds from any time.
const farAway = int64(math.MaxInt64 / int64(time.Minute) * 3)

// end returns the first boundary after now.
func (c *calendar) end(now int64) int64 { return c.nth(now, 1) }

// nth returns the n-th boundary (n ≥ 1) after now.
func (c *calendar) nth(now, n int64) int64 {
	if n > farAway {
		return math.MaxInt64
	}
	sec := floorDiv(now, int64(time.Second))
	if c.unit <= Hour {
		return nanoseconds(c.nthClock(sec, n))
	}
	return nanoseconds(c.start(c.number(sec) + n))
}

// count returns the number of boundaries in (from, to].
func (c *calendar) count(from, to int64) int64 {
	a, b := floorDiv(from, int64(time.Second)), floorDiv(to, int64(time.Second))
	if c.unit <= Hour {
		return c.countClock(a, b)
	}
	return c.number(b) - c.number(a)
}

// nanoseconds converts Unix seconds to nanoseconds, saturating at the ends of int64.
func nanoseconds(sec int64) int64 {
	const most = math.MaxInt64 / int64(time.Second)
	switch {
	case sec > most:
		return math.MaxInt64
	case sec < -most:
		return math.MinInt64
	}
	return sec * int64(time.Second)
}

// offset returns the zone's offset from UTC at sec, and a time to > sec until which it is valid at least.
func (c *calendar) offset(sec int64) (to, offset int64) {
	t := time.Unix(sec, 0).In(c.loc)
	_, end := t.ZoneBounds()
	_, off := t.Zone()
	to = math.MaxInt64
	if !end.IsZero() {
		to = end.Unix()
	}
	if to <= sec {
		// On the last day of a leap year, ZoneBounds may end the range a day too early.
		to += 24 * 60 * 60
	}
	return to, int64(off)
}

// Days and longer units have a number; their start is searched.

// number returns the number of the unit that contains sec.
func (c *calendar) number(sec int64) int64 {
	_, offset := c.offset(sec)
	n := c.dateNumber(sec + offset)
	// The clock may have been put back into a date that had ended.
	for c.start(n+1) <= sec {
		n++
	}
	return n
}

// dateNumber returns the number of the unit that contains a local time, given in seconds as if it were UTC.
func (c *calendar) dateNumber(local int64) int64 {
	const day = 24 * 60 * 60
	switch c.unit {
	case Day:
		return floorDiv(local, day)
	case Week: // 1970-01-01 was a Thursday, three days after Monday
		return floorDiv(floorDiv(local, day)+3, 7)
	}
	year, month, _ := time.Unix(local, 0).UTC().Date()
	if c.unit == Month {
		return int64(year)*12 + int64(month) - 1
	}
	return int64(year)
}

// date returns the nominal local start of unit n: the inverse of dateNumber.
func (c *calendar) date(n int64) int64 {
	const day = 24 * 60 * 60
	switch c.unit {
	case Day:
		return n * day
	case Week:
		return (n*7 - 3) * day
	case Month:
		return time.Date(int(floorDiv(n, 12)), time.Month(floorMod(n, 12)+1), 1, 0, 0, 0, 0, time.UTC).Unix()
	}
	return time.Date(int(n), time.January, 1, 0, 0, 0, 0, time.UTC).Unix()
}

// start returns the first instant at which the zone's clock has reached the date of unit n.
func (c *calendar) start(n int64) int64 {
	if n > 1_000_000 { // a day in the year 4707, beyond int64's nanoseconds
		return math.MaxInt64
	}
	// No zone was ever this far ahead of UTC.
	const ahead = 26 * 60 * 60
	date := c.date(n)
	for sec := date - ahead; ; {
		to, offset := c.offset(sec)
		if at := max(sec, date-offset); at < to {
			return at
		}
		sec = to
	}
}

// Hours and minutes have regular boundaries while the offset is constant.

// length returns the length of the unit in seconds, for Minute and Hour.
func (c *calendar) length() int64 {
	if c.unit == Hour {
		return 60 * 60
	}
	return 60
}

func (c *calendar) nthClock(sec, n int64) int64 {
	length := c.length()
	for {
		if sec > math.MaxInt64/int64(time.Second) {
			return math.MaxInt64 // beyond int64 nanoseconds, however many clock changes away
		}
		to, offset := c.offset(sec)
		full := floorDiv(sec+offset, length)
		at := (full+n)*length - offset
		if at < to {
			return at
		}
		n -= floorDiv(to-1+offset, length) - full
		if c.shifts(to, offset) {
			if n--; n == 0 {
				return to
			}
		}
		sec = to
	}
}

func (c *calendar) countClock(from, to int64) (n int64) {
	length := c.length()
	for {
		end, offset := c.offset(from)
		last := min(to, end-1)
		n += floorDiv(last+offset, length) - floorDiv(from+offset, length)
		if to < end {
			return n
		}
		if c.shifts(end, offset) {
			n++
		}
		from = end
	}
}

// shifts reports whether a unit begins at sec, where the zone's offset changes from offset.
func (c *calendar) shifts(sec, offset int64) bool {
	_, next := c.offset(sec)
	old, local := sec+offset, sec+next
	full := local - floorMod(local, c.length())
	return full == local || full >= old
}

// The token bucket with refill in steps: count tokens at once at every boundary. Boundaries are multiples of the period since
// the Unix epoch, calendar units, or, aligned to the first hit, multiples of the period since the charge that found the bucket
// full. A full bucket equals no bucket, so that charge creates it.

// settleStep applies the refills up to now.
func (s *state) settleStep(p *plan, now int64) {
	if s.aux == never || now < s.aux {
		return
	}
	n := addSat(1, p.steps(s.aux, now))
	switch gain := mulSat(n, p.count); {
	case gain < s.spent:
		s.spent -= gain
		s.aux = p.nth(s.aux, n)
	case n == 1:
		s.spent, s.aux = 0, p.opened(s.aux, now)
	default:
		s.spent, s.aux = 0, never
	}
}

// untilStep requires that more than target units count.
func (s *state) untilStep(p *plan, now, target int64) int64 {
	return subSat(p.nth(s.aux, ceilDiv(s.spent-target, p.count)-1), now)
}

// undoStep is undoFlow for a bucket with refill in steps.
func (s *state) undoStep(p *plan, m mark, now, cost int64) {
	if s.spent == 0 {
		return
	}
	// m.aux was the first boundary after the charge.
	n := int64(0)
	if m.aux <= now {
		n = addSat(1, p.steps(m.aux, now))
	}
	lost := max(0, subSat(mulSat(n, p.count), m.spent))
	if lost < cost {
		s.refund(p, cost-lost)
	}
}

var usualPeriods = [...]time.Duration{
	Minute: time.Minute, Hour: time.Hour, Day: 24 * time.Hour,
	Week: 7 * 24 * time.Hour, Month: 30 * 24 * time.Hour, Year: 365 * 24 * time.Hour,
}

// UsualPeriod returns the period of l; for a calendar unit its usual length, 30 days for a month and 365 for a year.
func (l Limit) UsualPeriod() time.Duration {
	if l.Align == AlignCalendar && l.Unit > 0 && int(l.Unit) < len(usualPeriods) {
		return usualPeriods[l.Unit]
	}
	return l.Period
}
