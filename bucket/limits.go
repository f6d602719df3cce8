package bucket

import (
	"fmt"
	"hash/maphash"
	"slices"
	"sync/atomic"
	"time"
)

// Algorithm selects how a limit counts.
type Algorithm uint8

const (
	// TokenBucket holds Burst tokens and refills Count of them per Period.
	TokenBucket Algorithm = iota + 1
	// LeakyBucket is the leaky bucket as a meter: a level that drains Count per Period and rejects what would raise it above
	// Burst.
	LeakyBucket
	// LeakyQueue is the leaky bucket as a queue: checks are admitted with a delay, spaced Period/Count apart; at most Burst
	// units may wait.
	LeakyQueue
	// FixedWindow admits Count in each window.
	FixedWindow
	// SlidingLog admits at most Count in (now−Period, now], exactly.
	SlidingLog
	// SlidingCounter weights the previous window by its overlap with (now−Period, now].
	SlidingCounter
	// SlidingWindow counts in SubWindows sub-windows. The oldest, partly overlapped one counts fully, so it never admits more
	// than SlidingLog.
	SlidingWindow
	// Concurrency admits Count units at a time, and has no Period: a Reservation takes units until it is settled or its deadline
	// passes, and then they are free again. A Check takes none, and is admitted while there are enough.
	Concurrency
)

// Align selects where windows and refill steps begin.
type Align uint8

const (
	// AlignEpoch aligns to multiples of Period since the Unix epoch.
	AlignEpoch Align = iota
	// AlignCalendar aligns to the calendar unit Unit in Zone.
	AlignCalendar
	// AlignFirstHit starts a window at the first check charged to it, and steps at the charge that finds the bucket full.
	AlignFirstHit
)

// Refill selects how a TokenBucket refills.
type Refill uint8

const (
	// RefillContinuous adds tokens continuously, Count per Period.
	RefillContinuous Refill = iota
	// RefillInterval adds Count tokens at once at the end of every Period.
	RefillInterval
)

// Unit is a calendar unit, for AlignCalendar.
type Unit uint8

// The units.
const (
	Minute Unit = iota + 1
	Hour
	Day
	Week // starts on Monday
	Month
	Year
)

// Limit is one limit of a rule. Optional fields have their zero value as default. Equal values are the same limit.
type Limit struct {
	Algorithm Algorithm `cbor:",omitzero"`
	// Count is the number of units admitted per Period; 0 blocks everything.
	Count int64
	// Period is MinPeriod to MaxPeriod (1 µs to 100 years). With AlignCalendar it is ignored and Unit applies. 0 for Concurrency.
	Period time.Duration
	// Unlimited admits everything and counts nothing; all other fields are ignored.
	Unlimited bool
	// Burst is the capacity of TokenBucket and LeakyBucket and the queue length of LeakyQueue, in units. 0 means Count. Window
	// algorithms take none.
	Burst int64
	// Cost is the number of units that one unit of a check's cost spends here. 0 means 1.
	Cost int64
	// Refill and Align apply to the algorithms named at their values.
	Refill Refill
	Align  Align
	Unit   Unit `cbor:",omitzero"`
	// Zone is the IANA time zone of AlignCalendar. Empty means UTC.
	Zone string
	// MinInterval is the minimum time since the last admitted check or charge, at most MaxPeriod, inclusive.
	MinInterval time.Duration
	// BlockFor is the time, at most MaxPeriod, for which the limit denies everything after it has denied a check because of units
	// spent. Checks that are denied meanwhile do not extend it, and a cost above the limit does not begin it. It excludes MinInterval.
	BlockFor time.Duration `cbor:",omitzero"`
	// Soft is the percentage above the limit, 0 to 1000, that is admitted and marked.
	Soft int32
	// CountDenied makes denied checks count too: in the log of SlidingLog, and as the last check of MinInterval.
	CountDenied bool
	// SubWindows is the number of sub-windows of SlidingWindow, 2 to 3600. 0 means 60.
	SubWindows int32
	// LogEntries caps the entries of SlidingLog, 1 to 65536. 0 means 1024. Above it neighbours are merged with the later time, which
	// never admits more; see LogError.
	LogEntries int32
}

// Limits is an immutable, validated set of limits that apply to one key together. Interned values compare by pointer first.
type Limits struct {
	list  []Limit
	plans []plan
	// places has the index of each limit in the arguments of NewLimits, nil if unchanged.
	places []uint8
	// entries is the maximum number of log entries and sub-windows of the limits.
	entries int
	// unlimited: no limit can deny. stateless: no limit can count.
	unlimited, stateless bool
	// slots: one of the limits is a Concurrency. Reservations take units of it, and are charged to the others at once.
	slots bool
	// shared caches the last result of Share: a node divides by the same number until the membership changes.
	shared atomic.Pointer[share]
	// window caches the result of endless.
	window atomic.Pointer[Limits]
	// meter caches the result of Meter.
	meter atomic.Pointer[Limits]
	// marks caches the result of once.
	marks atomic.Pointer[Limits]
	// domain is the domain of the counters of these limits, "" if unknown.
	domain string
	// home is the region whose cluster has the counters of these limits, "" if each region has its own.
	home string
	// sum caches the result of Sum, 0 before.
	sum atomic.Uint64
	// account is the account of the first table whose counters refer to the limits.
	account atomic.Pointer[account]
}

// share is the Limits of one of n nodes.
type share struct {
	n      int
	limits *Limits
}

// MaxLimits is the maximum number of limits of one key.
const MaxLimits = 16

// FieldError reports an invalid field of a Limit.
type FieldError struct {
	// Index is the limit's index in the set.
	Index int
	// Field is its name in rule files, for example "period".
	Field  string
	Reason string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// NewLimits validates list (1 to MaxLimits limits) and prepares it for use. Unlimited limits beside others have no effect and
// are omitted. The error is a *FieldError.
func NewLimits(list ...Limit) (*Limits, error) {
	if len(list) == 0 || len(list) > MaxLimits {
		return nil, &FieldError{Field: "limits", Reason: fmt.Sprintf("there are %d; give 1 to %d", len(list), MaxLimits)}
	}
	limited := slices.ContainsFunc(list, func(l Limit) bool { return !l.Unlimited })
	l := &Limits{list: make([]Limit, 0, len(list)), plans: make([]plan, 0, len(list)), stateless: true, unlimited: !limited}
	for i := range list {
		cal, err := list[i].validate()
		if err != nil {
			err.Index = i
			return nil, err
		}
		if list[i].Unlimited && (limited || i > 0) {
			continue
		}
		p := list[i].compile(cal)
		l.list, l.plans, l.places = append(l.list, list[i]), append(l.plans, p), append(l.places, uint8(i))
		l.stateless, l.slots = l.stateless && p.stateless(), l.slots || p.kind == kindSlots
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

// Within returns a *FieldError if the limits keep more than entries log entries and sub-windows in total, else nil.
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

// Place returns the index of limit i in the arguments of NewLimits.
func (l *Limits) Place(i int) int {
	if l.places == nil {
		return i
	}
	return int(l.places[i])
}

// NewLimitsIn is NewLimits for counters of the domain.
func NewLimitsIn(domain string, list ...Limit) (*Limits, error) {
	return NewLimitsAt(domain, "", list...)
}

// NewLimitsAt is NewLimits for counters of the domain that the cluster of region home has, "" for each region's own. The tables of
// this package ignore the home.
func NewLimitsAt(domain, home string, list ...Limit) (*Limits, error) {
	l, err := NewLimits(list...)
	if err == nil {
		l.domain, l.home = domain, home
	}
	return l, err
}

// HomeAuto in place of a region: the home of each counter is where most of its demand is.
const HomeAuto = "auto"

// Domain returns the domain of the counters of these limits, "" if unknown.
func (l *Limits) Domain() string { return l.domain }

// Home returns the region whose cluster has the counters of these limits, "" if each region has its own.
func (l *Limits) Home() string { return l.home }

// List returns the limits.
func (l *Limits) List() []Limit { return slices.Clone(l.list) }

// Len returns the number of limits.
func (l *Limits) Len() int { return len(l.list) }

// At returns limit i.
func (l *Limits) At(i int) Limit { return l.list[i] }

// Equal reports whether l and m have equal limits in the same order.
func (l *Limits) Equal(m *Limits) bool { return l == m || slices.Equal(l.list, m.list) }

var sumSeed = maphash.MakeSeed()

// Sum returns a hash, the same for Equal sets within this process. It is seeded, so collisions cannot be constructed.
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

// Is reports whether l is the set of list for the domain and the home. Omitted unlimited limits do not matter.
func (l *Limits) Is(domain, home string, list []Limit) bool {
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
	return l.domain == domain && l.home == home && n == len(l.list)
}

// Unlimited reports whether no limit of the set can deny or count.
func (l *Limits) Unlimited() bool { return l.unlimited }

// Slots reports whether one of the limits is a Concurrency.
func (l *Limits) Slots() bool { return l.slots }

// Share returns the limits divided by n, rounded down (n at least 1), for a node that decides alone. Counts and bursts that
// become 0 block. Unlimited limits and minimum intervals are unchanged.
func (l *Limits) Share(n int) *Limits {
	if n <= 1 {
		return l
	}
	if s := l.shared.Load(); s != nil && s.n == n {
		return s.limits
	}
	m := &Limits{list: slices.Clone(l.list), plans: make([]plan, len(l.list)), entries: l.entries, unlimited: l.unlimited, stateless: true, slots: l.slots, domain: l.domain, home: l.home}
	for i := range m.list {
		part := &m.list[i]
		part.Count /= int64(n)
		if part.Burst > 0 {
			part.Burst /= int64(n)
			// A burst of 0 would mean the default.
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
