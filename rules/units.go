package rules

import (
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// unit is a value of the key unit. Aligned to the epoch a month is 30 days and a
// year 365; the calendar has real ones, and nothing below a minute.
type unit struct {
	name     string
	period   time.Duration
	calendar bucket.Unit
}

const day = 24 * time.Hour

var units = []unit{
	{"second", time.Second, 0},
	{"minute", time.Minute, bucket.Minute},
	{"hour", time.Hour, bucket.Hour},
	{"day", day, bucket.Day},
	{"week", 7 * day, bucket.Week},
	{"month", 30 * day, bucket.Month},
	{"year", 365 * day, bucket.Year},
}
