package client

import (
	"fmt"
	"time"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// Entry is one (key, value) of a descriptor. The key is UTF-8 of 1 byte to 1 KiB. The value may be anything: one above 1 KiB, or that is
// not UTF-8, is sent and counted as its first 512 bytes and its hash.
type Entry struct{ Key, Value string }

// KV returns an Entry.
func KV(key, value string) Entry { return Entry{key, value} }

// Check is one question: may this descriptor spend this cost now?
type Check struct {
	// Domain holds the rules. Not empty.
	Domain string
	// Descriptor is what the rules match, 1 to 64 entries.
	Descriptor []Entry
	// Cost is how many units to spend; 0 means 1. Negative costs are errors: see Refund.
	Cost int64
	// Limits come with the check, at most 16. When there are any, no rule is matched, and the check is
	// counted apart from what rules count for the same descriptor.
	Limits []Limit
}

// Limit is one that comes with a check. Fields mean what the keys of the same name mean in rule
// files; 0 is the default.
type Limit struct {
	Algorithm  Algorithm
	Count      int64
	Period     time.Duration
	Burst      int64
	Cost       int64
	Refill     Refill
	Align      Align
	Unit       Unit   // of AlignCalendar
	TimeZone   string // of AlignCalendar, an IANA name
	Soft       int32  // percent
	SubWindows int32
	LogEntries int32
	// MinInterval is the least time between two admitted checks.
	MinInterval time.Duration
	CountDenied bool
	Unlimited   bool
}

// Algorithm is how a Limit measures.
type Algorithm int32

// The algorithms. The zero Algorithm is FixedWindow.
const (
	TokenBucket    = Algorithm(sluicev1.Algorithm_ALGORITHM_TOKEN_BUCKET)
	LeakyBucket    = Algorithm(sluicev1.Algorithm_ALGORITHM_LEAKY_BUCKET)
	LeakyQueue     = Algorithm(sluicev1.Algorithm_ALGORITHM_LEAKY_QUEUE)
	FixedWindow    = Algorithm(sluicev1.Algorithm_ALGORITHM_FIXED_WINDOW)
	SlidingLog     = Algorithm(sluicev1.Algorithm_ALGORITHM_SLIDING_LOG)
	SlidingCounter = Algorithm(sluicev1.Algorithm_ALGORITHM_SLIDING_COUNTER)
	SlidingWindow  = Algorithm(sluicev1.Algorithm_ALGORITHM_SLIDING_WINDOW)
)

// Refill is how a TokenBucket fills.
type Refill int32

const (
	RefillContinuous = Refill(sluicev1.Refill_REFILL_CONTINUOUS)
	RefillInterval   = Refill(sluicev1.Refill_REFILL_INTERVAL)
)

// Align is where a FixedWindow begins.
type Align int32

const (
	AlignEpoch    = Align(sluicev1.Align_ALIGN_EPOCH)
	AlignCalendar = Align(sluicev1.Align_ALIGN_CALENDAR)
	AlignFirstHit = Align(sluicev1.Align_ALIGN_FIRST_HIT)
)

// Unit is a calendar's period.
type Unit int32

const (
	Minute = Unit(sluicev1.Unit_UNIT_MINUTE)
	Hour   = Unit(sluicev1.Unit_UNIT_HOUR)
	Day    = Unit(sluicev1.Unit_UNIT_DAY)
	Week   = Unit(sluicev1.Unit_UNIT_WEEK)
	Month  = Unit(sluicev1.Unit_UNIT_MONTH)
	Year   = Unit(sluicev1.Unit_UNIT_YEAR)
)

func (l *Limit) proto() *sluicev1.Limit {
	return &sluicev1.Limit{
		Algorithm: sluicev1.Algorithm(l.Algorithm), Count: l.Count, PeriodNs: int64(l.Period), Unlimited: l.Unlimited,
		Burst: l.Burst, Cost: l.Cost, Refill: sluicev1.Refill(l.Refill), Align: sluicev1.Align(l.Align),
		Unit: sluicev1.Unit(l.Unit), Timezone: l.TimeZone, MinIntervalNs: int64(l.MinInterval), Soft: l.Soft,
		CountDenied: l.CountDenied, SubWindows: l.SubWindows, LogEntries: l.LogEntries,
	}
}

// Bounds of a check, as the nodes have them.
const (
	maxText    = 1 << 10
	maxEntries = 64
	maxLimits  = 16
)

// fault returns what is wrong with c, or nil.
func (c *Check) fault() *Error {
	switch {
	case c.Domain == "":
		return invalid("domain", "empty")
	case len(c.Domain) > maxText:
		return invalid("domain", fmt.Sprintf("%d bytes; want at most %d", len(c.Domain), maxText))
	case len(c.Descriptor) == 0:
		return invalid("descriptor", "empty; want at least one entry")
	case len(c.Descriptor) > maxEntries:
		return invalid("descriptor", fmt.Sprintf("%d entries; want at most %d", len(c.Descriptor), maxEntries))
	case c.Cost < 0:
		return invalid("cost", "negative; to give back, use Refund with a positive cost")
	case len(c.Limits) > maxLimits:
		return invalid("limits", fmt.Sprintf("%d limits; want at most %d", len(c.Limits), maxLimits))
	}
	for i := range c.Descriptor {
		e := &c.Descriptor[i]
		switch {
		case e.Key == "":
			return invalid(fmt.Sprintf("descriptor[%d].key", i), "empty")
		case len(e.Key) > maxText:
			return invalid(fmt.Sprintf("descriptor[%d].key", i), fmt.Sprintf("%d bytes; want at most %d", len(e.Key), maxText))
		}
	}
	return nil
}
