package bucket

import "time"

// Algorithm says how a limit counts.
type Algorithm uint8

const (
	// TokenBucket holds Burst tokens and refills Count of them per Period.
	TokenBucket Algorithm = iota + 1
	// LeakyBucket is the leaky bucket as a meter: a level that drains Count per
	// Period and refuses what would rise above Burst.
	LeakyBucket
	// LeakyQueue is the leaky bucket as a queue: checks are admitted with the
	// delay after which they may run, spaced Period/Count apart; at most Burst
	// units may wait.
	LeakyQueue
	// FixedWindow admits Count in each window.
	FixedWindow
	// SlidingLog admits at most Count in (now−Period, now], exactly.
	SlidingLog
	// SlidingCounter weighs the previous window by its overlap with (now−Period, now].
	SlidingCounter
	// SlidingWindow counts in SubWindows sub-windows; the oldest, partly
	// overlapped one counts whole, so it never admits more than SlidingLog.
	SlidingWindow
)

// Align says where windows, and the steps of a bucket that refills in steps, begin.
type Align uint8

const (
	// AlignEpoch aligns to multiples of Period since the Unix epoch.
	AlignEpoch Align = iota
	// AlignCalendar aligns to the calendar unit Unit in Zone.
	AlignCalendar
	// AlignFirstHit starts a window at the first check charged to it, and steps
	// at the bucket's creation: at the charge that finds it full.
	AlignFirstHit
)

// Refill says how a TokenBucket gets its tokens back.
type Refill uint8

const (
	// RefillContinuous adds tokens all the time, Count per Period.
	RefillContinuous Refill = iota
	// RefillInterval adds Count tokens at once whenever a Period ends.
	RefillInterval
)

// Unit is a calendar unit, for AlignCalendar.
type Unit uint8

const (
	Minute Unit = iota + 1
	Hour
	Day
	Week // starts on Monday
	Month
	Year
)

// Limit is one limit of a rule. The zero value of an optional field is its
// default. Limits are comparable: equal values are the same limit.
type Limit struct {
	Algorithm Algorithm
	// Count is the units admitted per Period; 0 blocks everything.
	Count int64
	// Period is the limit's time, MinPeriod to MaxPeriod (1 µs to 100 years). Under
	// AlignCalendar it is ignored and Unit counts.
	Period time.Duration
	// Unlimited admits everything and counts nothing; all else is ignored.
	Unlimited bool
	// Burst is the capacity of TokenBucket and LeakyBucket and the queue length
	// of LeakyQueue, in units. 0 means Count. Window algorithms take no burst.
	Burst int64
	// Cost is how many units one unit of a check's cost spends here. 0 means 1.
	Cost int64
	// Refill and Align apply to the algorithms named with their values.
	Refill Refill
	Align  Align
	Unit   Unit
	// Zone is the IANA time zone of AlignCalendar. Empty means UTC.
	Zone string
	// MinInterval is the least time since the last admitted check or charge, at
	// most MaxPeriod. Exactly that long is enough.
	MinInterval time.Duration
	// Soft is the percentage above the limit, 0 to 1000, that is admitted and marked.
	Soft int32
	// CountDenied makes denied checks count too: in the log of SlidingLog, and
	// as the last check of MinInterval.
	CountDenied bool
	// SubWindows is the number of sub-windows of SlidingWindow, 2 to 3600.
	// 0 means 60.
	SubWindows int32
	// LogEntries caps the entries of SlidingLog, 1 to 65536. 0 means 1024.
	// Above it the two oldest entries become one with the later time, which
	// never admits more.
	LogEntries int32
}
