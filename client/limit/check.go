// Package limit has the questions and answers of a rate limiter, for programs and middleware that do not care who
// decides: a cluster through package sluice, or this process through package local. It imports no gRPC.
//
// A Key is a counter of a Limiter, and asks about it. A Check is one question, a Decision its answer, and a Batch the
// answer to several that are decided as one.
package limit

import (
	"fmt"
	"strconv"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/lease"
)

// Entry is one (key, value) of a descriptor. The key is UTF-8 of 1 byte to 1 KiB. A value above 1 KiB, or that is not
// UTF-8, is sent and counted as its first 512 bytes and its hash.
type Entry struct{ Key, Value string }

// Verb is what a Check does.
type Verb uint8

const (
	// VerbCheck spends the amount if every limit admits it.
	VerbCheck Verb = iota
	// VerbRead answers as VerbCheck would, and spends nothing.
	VerbRead
	// VerbCharge spends the amount whatever the limits say, after the fact, and may leave a debt.
	VerbCharge
	// VerbRefund gives the amount back, up to the full limit.
	VerbRefund
	// VerbReset deletes the counters of the descriptor.
	VerbReset
)

// String returns the verb's name: check, read, charge, refund or reset.
func (v Verb) String() string { return nameOf(v, "check", "read", "charge", "refund", "reset") }

// nameOf returns the name of number, or unknown(number).
func nameOf[N ~uint8 | ~int32](number N, names ...string) string {
	if number >= 0 && int(number) < len(names) {
		return names[number]
	}
	return "unknown(" + strconv.Itoa(int(number)) + ")"
}

// Check asks one question about a counter. Key.Spend makes one.
type Check struct {
	// Domain holds the rules. 1 byte to 1 KiB.
	Domain string
	// Descriptor is what the rules match, 1 to 64 entries.
	Descriptor []Entry
	// Limits come with the check, at most 16. With any, no rule is matched, and the check has counters of its own.
	Limits []Limit
	// Verb is what to do.
	Verb Verb
	// Amount is how many units to spend, give back or ask about, 0 or more. 0 changes nothing.
	Amount int64
	// OnFailure decides when no node answers in time; the zero FailurePolicy is that of the client.
	OnFailure FailurePolicy
	// IdempotencyKey names a charge or a refund, which is then made once however often it is sent, and so is repeated
	// after a lost answer. At most 128 bytes of printable ASCII; empty for none.
	IdempotencyKey string

	cell *lease.Cell
}

// Cell is for package sluice.
func (c *Check) Cell() *lease.Cell { return c.cell }

// Bounds of a check, as nodes have them.
const (
	maxText           = 1 << 10 // of domains and keys
	maxEntries        = 64
	maxLimits         = 16
	maxIdempotencyKey = 128
)

// Validate returns an *Error about the first field that every Limiter would reject, or nil.
func (c *Check) Validate() error {
	switch {
	case c.Domain == "":
		return Invalid("domain", "empty; want the domain of a rule file")
	case len(c.Domain) > maxText:
		return Invalid("domain", fmt.Sprintf("%d bytes; want at most %d", len(c.Domain), maxText))
	case len(c.Descriptor) == 0:
		return Invalid("descriptor", "empty; want at least one entry")
	case len(c.Descriptor) > maxEntries:
		return Invalid("descriptor", fmt.Sprintf("%d entries; want at most %d", len(c.Descriptor), maxEntries))
	case c.Verb > VerbReset:
		return Invalid("verb", c.Verb.String()+"; want check, read, charge, refund or reset")
	case c.Amount < 0:
		return Invalid("amount", "negative; to give units back, use Refund with a positive amount")
	case len(c.Limits) > maxLimits:
		return Invalid("limits", fmt.Sprintf("%d limits; want at most %d", len(c.Limits), maxLimits))
	case c.IdempotencyKey != "":
		if err := c.validateIdempotencyKey(); err != nil {
			return err
		}
	}
	for i := range c.Descriptor {
		switch n := len(c.Descriptor[i].Key); {
		case n == 0:
			return Invalid(fmt.Sprintf("descriptor[%d].key", i), "empty")
		case n > maxText:
			return Invalid(fmt.Sprintf("descriptor[%d].key", i), fmt.Sprintf("%d bytes; want at most %d", n, maxText))
		}
	}
	return nil
}

func (c *Check) validateIdempotencyKey() error {
	if c.Verb != VerbCharge && c.Verb != VerbRefund {
		return Invalid("idempotency_key", "only a charge or a refund has one")
	}
	if len(c.IdempotencyKey) > maxIdempotencyKey {
		return Invalid("idempotency_key", fmt.Sprintf("%d bytes; want at most %d", len(c.IdempotencyKey), maxIdempotencyKey))
	}
	for _, b := range []byte(c.IdempotencyKey) {
		if b <= ' ' || b > '~' {
			return Invalid("idempotency_key", "has a byte that is not printable ASCII")
		}
	}
	return nil
}

// Limit is a limit that comes with a check. Fields are those of the same name in rule files; 0 is the default.
type Limit struct {
	// Algorithm is how the limit counts.
	Algorithm Algorithm
	// Count is how many units are admitted in each Period, or in use at a time with Concurrency; 0 blocks.
	Count int64
	// Period is 1 µs to 100 years. Required unless there is a Unit; 0 for Concurrency.
	Period time.Duration
	// Burst is the capacity of a bucket or the length of a queue in units; 0 for Count.
	Burst int64
	// Weight is how many units one unit of a check's amount spends here; 0 for 1.
	Weight int64
	// Refill is when a TokenBucket fills.
	Refill Refill
	// Align is where windows begin.
	Align Align
	// Unit is the period of AlignCalendar, and TimeZone its IANA name; empty for UTC.
	Unit     Unit
	TimeZone string
	// SoftPercent is how far above the limit checks are admitted, with VerdictSoft: 0 to 1,000.
	SoftPercent int32
	// SubWindows are those of a SlidingWindow, 2 to 3,600; 0 for 60.
	SubWindows int32
	// LogEntries bound a SlidingLog, 1 to 65,536; 0 for 1,024.
	LogEntries int32
	// MinInterval is the least time between two admitted checks.
	MinInterval time.Duration
	// BlockFor is the time for which the limit denies everything after a denial. It excludes MinInterval.
	BlockFor time.Duration
	// CountDenied counts denied checks too.
	CountDenied bool
	// Unlimited admits everything and counts nothing.
	Unlimited bool
}

// PerSecond is a fixed window of count units a second.
func PerSecond(count int64) Limit { return Limit{Count: count, Period: time.Second} }

// PerMinute is a fixed window of count units a minute.
func PerMinute(count int64) Limit { return Limit{Count: count, Period: time.Minute} }

// PerHour is a fixed window of count units an hour.
func PerHour(count int64) Limit { return Limit{Count: count, Period: time.Hour} }

// Algorithm is how a Limit counts. The zero Algorithm is FixedWindow.
type Algorithm int32

// The algorithms; docs/use/algorithms.md describes each.
const (
	TokenBucket Algorithm = iota + 1
	LeakyBucket
	LeakyQueue
	FixedWindow
	SlidingLog
	SlidingCounter
	SlidingWindow
	// Concurrency has Count units in use at a time, and no Period. Reservations take them; checks take none.
	Concurrency
)

// String returns the name in rule files.
func (a Algorithm) String() string {
	return nameOf(a, "fixed_window", "token_bucket", "leaky_bucket", "leaky_queue", "fixed_window", "sliding_log", "sliding_counter", "sliding_window", "concurrency")
}

// Refill is when a TokenBucket fills.
type Refill int32

const (
	// RefillContinuous fills at all times.
	RefillContinuous Refill = iota
	// RefillInterval fills at once, at the end of each period.
	RefillInterval
)

// String returns the name in rule files.
func (r Refill) String() string { return nameOf(r, "continuous", "interval") }

// Align is where windows begin.
type Align int32

const (
	// AlignEpoch begins windows at multiples of the period since 1970 in UTC.
	AlignEpoch Align = iota
	// AlignCalendar begins them with a Unit of the calendar, in a time zone.
	AlignCalendar
	// AlignFirstHit begins them with the first check.
	AlignFirstHit
)

// String returns the name in rule files.
func (a Align) String() string { return nameOf(a, "epoch", "calendar", "first_hit") }

// Unit is a period of the calendar.
type Unit int32

// The units; weeks begin on Monday.
const (
	UnitMinute Unit = iota + 1
	UnitHour
	UnitDay
	UnitWeek
	UnitMonth
	UnitYear
)

// String returns the name in rule files.
func (u Unit) String() string {
	return nameOf(u, "unspecified", "minute", "hour", "day", "week", "month", "year")
}
