package gubernator

import (
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// units are what a duration means under DURATION_IS_GREGORIAN, by its number.
var units = [...]bucket.Unit{bucket.Minute, bucket.Hour, bucket.Day, bucket.Week, bucket.Month, bucket.Year}

// unitAround returns the beginning of the unit, in UTC, that t lies in, and that of the next.
func unitAround(u bucket.Unit, t time.Time) (begin, end time.Time) {
	t = t.UTC()
	year, month, day := t.Date()
	midnight := time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
	switch u {
	case bucket.Minute:
		begin = t.Truncate(time.Minute)
		return begin, begin.Add(time.Minute)
	case bucket.Hour:
		begin = t.Truncate(time.Hour)
		return begin, begin.Add(time.Hour)
	case bucket.Day:
		return midnight, midnight.AddDate(0, 0, 1)
	case bucket.Week: // begins on Monday
		begin = midnight.AddDate(0, 0, -(int(t.Weekday())+6)%7)
		return begin, begin.AddDate(0, 0, 7)
	case bucket.Month:
		begin = time.Date(year, month, 1, 0, 0, 0, 0, time.UTC)
		return begin, begin.AddDate(0, 1, 0)
	}
	begin = time.Date(year, time.January, 1, 0, 0, 0, 0, time.UTC)
	return begin, begin.AddDate(1, 0, 0)
}
