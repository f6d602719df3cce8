package bucket

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"time"
)

// Algorithm says how a limit counts.
type Algorithm uint8

const (
	// TokenBucket holds Burst tokens and refills Count of them per Period.
	TokenBucket Algorithm = iota + 1
	// LeakyBucket is the leaky bucket as a meter: a level that drains Count per
	// Period and rejects what would rise above Burst.
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
	Algorithm Algorithm `cbor:",omitzero"`
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
	Unit   Unit `cbor:",omitzero"`
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

// Limits is an immutable, validated set of limits that one key is held to
// together. Interned values compare by pointer first.
type Limits struct {
	list  []Limit
	plans []plan
	// places has for each limit its place in what NewLimits was given, nil if that is its place here.
	places []uint8
	// entries is how many entries of logs and sub-windows the limits keep at most.
	entries int
	// unlimited: no limit can deny. stateless: no limit can count.
	unlimited, stateless bool
	// shared is the last result of Share: a node divides by the same number until
	// the membership changes.
	shared atomic.Pointer[share]
	// window is the result of endless.
	window atomic.Pointer[Limits]
	// domain is the one that counters of these limits belong to, "" where that is not known.
	domain string
	// sum is the result of Sum, 0 before.
	sum atomic.Uint64
	// account is that of the first table whose counters refer to the limits.
	account atomic.Pointer[account]
}

// share is the Limits of one of n nodes.
type share struct {
	n      int
	limits *Limits
}

// MaxLimits is the most limits that one key can have.
const MaxLimits = 16

// FieldError says which field of a Limit is wrong.
type FieldError struct {
	// Index is the limit's place in the set.
	Index int
	// Field is its name as rule files spell it, for example "period".
	Field  string
	Reason string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// NewLimits validates list (1 to MaxLimits limits) and prepares it for use. Unlimited limits beside others do nothing, and
// are left out. The error is a *FieldError.
func NewLimits(list ...Limit) (*Limits, error) {
	if len(list) == 0 || len(list) > MaxLimits {
		return nil, &FieldError{Field: "limits", Reason: fmt.Sprintf("there are %d; give 1 to %d", len(list), MaxLimits)}
	}
	limited := 0
	for i := range list {
		if !list[i].Unlimited {
			limited++
		}
	}
	l := &Limits{list: make([]Limit, 0, max(limited, 1)), plans: make([]plan, 0, max(limited, 1)), stateless: true, unlimited: limited == 0}
	for i := range list {
		cal, err := list[i].validate()
		if err != nil {
			err.Index = i
			return nil, err
		}
		if list[i].Unlimited && (limited > 0 || i > 0) {
			continue
		}
		p := list[i].compile(cal)
		l.list, l.plans, l.places = append(l.list, list[i]), append(l.plans, p), append(l.places, uint8(i))
		l.stateless = l.stateless && p.stateless()
		l.entries += p.maxEntries
	}
	if len(l.places) == len(list) {
		l.places = nil
	}
	if err := l.Within(MaxKeyEntries); err != nil {
		return nil, err
	}
	return l, nil
}

// Within reports as a *FieldError that the limits keep more than entries entries of logs and sub-windows in all, or nil.
func (l *Limits) Within(entries int) error {
	if l.entries <= entries {
		return nil
	}
	total := 0
	for i := range l.plans {
		if total += l.plans[i].maxEntries; total <= entries {
			continue
		}
		field := "log_entries"
		if l.plans[i].kind == kindBins {
			field = "sub_windows"
		}
		return &FieldError{
			Index: l.Place(i), Field: field,
			Reason: fmt.Sprintf("with it the limits of one key keep %d entries of logs and sub-windows; give at most %d in all", total, entries),
		}
	}
	return nil
}

// Place returns the place of limit i in what NewLimits was given.
func (l *Limits) Place(i int) int {
	if l.places == nil {
		return i
	}
	return int(l.places[i])
}

// NewLimitsIn is NewLimits for counters of the domain, which tables account for together.
func NewLimitsIn(domain string, list ...Limit) (*Limits, error) {
	l, err := NewLimits(list...)
	if err == nil {
		l.domain = domain
	}
	return l, err
}

// Domain returns the domain that counters of these limits belong to, "" where that is not known.
func (l *Limits) Domain() string { return l.domain }

// List returns the limits.
func (l *Limits) List() []Limit { return slices.Clone(l.list) }

// Len returns the number of limits.
func (l *Limits) Len() int { return len(l.list) }

// At returns limit i.
func (l *Limits) At(i int) Limit { return l.list[i] }

// Equal reports whether both hold equal limits in the same order.
func (l *Limits) Equal(m *Limits) bool { return l == m || slices.Equal(l.list, m.list) }

var sumSeed = maphash.MakeSeed()

// Sum returns a hash that sets have in common that are Equal, as this process knows them. Nobody can find two sets with one.
func (l *Limits) Sum() uint64 {
	if s := l.sum.Load(); s != 0 {
		return s
	}
	var h maphash.Hash
	h.SetSeed(sumSeed)
	for i := range l.list {
		maphash.WriteComparable(&h, l.list[i])
	}
	s := max(1, h.Sum64())
	l.sum.Store(s)
	return s
}

// Is reports whether l is the set of list for the domain. Unlimited limits that were left out do not matter.
func (l *Limits) Is(domain string, list []Limit) bool {
	n := 0
	for i := range list {
		switch {
		case n < len(l.list) && l.Place(n) == i:
			if l.list[n] != list[i] {
				return false
			}
			n++
		case !list[i].Unlimited:
			return false
		}
	}
	return l.domain == domain && n == len(l.list)
}

// Unlimited reports whether no limit of the set can deny or count.
func (l *Limits) Unlimited() bool { return l.unlimited }

// Share returns the limits divided by n, rounded down (n at least 1), for a node that
// answers alone. Counts and bursts that become 0 block. Unlimited limits and
// minimum intervals stay as they are.
func (l *Limits) Share(n int) *Limits {
	if n <= 1 {
		return l
	}
	if s := l.shared.Load(); s != nil && s.n == n {
		return s.limits
	}
	m := &Limits{list: slices.Clone(l.list), plans: make([]plan, len(l.list)), entries: l.entries, unlimited: l.unlimited, stateless: true, domain: l.domain}
	for i := range m.list {
		part := &m.list[i]
		part.Count /= int64(n)
		if part.Burst > 0 {
			part.Burst /= int64(n)
			// A burst of 0 would mean the default, which is more than nothing.
			if part.Burst == 0 {
				part.Count = 0
			}
		}
		m.plans[i] = part.compile(l.plans[i].cal)
		m.stateless = m.stateless && m.plans[i].stateless()
	}
	l.shared.Store(&share{n, m})
	return m
}
