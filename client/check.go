package client

import (
	"errors"
	"fmt"
	"math"
	"time"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
	"golang.org/x/time/rate"
)

// Entry is one (key, value) of a descriptor. The key is UTF-8 of 1 byte to 1 KiB. A value above 1 KiB, or that is not UTF-8, is
// sent and counted as its first 512 bytes and its hash.
type Entry struct{ Key, Value string }

// KV returns an Entry.
func KV(key, value string) Entry { return Entry{key, value} }

// Check asks whether a descriptor may spend a cost now.
type Check struct {
	// Domain holds the rules. Not empty.
	Domain string
	// Descriptor is what the rules match, 1 to 64 entries.
	Descriptor []Entry
	// Cost is how many units to spend; 0 means 1. Negative costs are errors: see Refund.
	Cost int64
	// Limits come with the check, at most 16. With any, no rule is matched, and the check has counters of its own.
	Limits []Limit
}

// Limit is a limit that comes with a check. Fields are those of the same name in rule files; 0 is the default.
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
	// BlockFor is the time for which the limit denies everything after a denial. It excludes MinInterval.
	BlockFor    time.Duration
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
	Minute = Unit(sluicev1.CalendarUnit_CALENDAR_UNIT_MINUTE)
	Hour   = Unit(sluicev1.CalendarUnit_CALENDAR_UNIT_HOUR)
	Day    = Unit(sluicev1.CalendarUnit_CALENDAR_UNIT_DAY)
	Week   = Unit(sluicev1.CalendarUnit_CALENDAR_UNIT_WEEK)
	Month  = Unit(sluicev1.CalendarUnit_CALENDAR_UNIT_MONTH)
	Year   = Unit(sluicev1.CalendarUnit_CALENDAR_UNIT_YEAR)
)

func (l *Limit) proto() *sluicev1.Limit {
	return &sluicev1.Limit{
		Algorithm: sluicev1.Algorithm(l.Algorithm), Count: l.Count, PeriodNs: int64(l.Period), Unlimited: l.Unlimited,
		Burst: l.Burst, Weight: l.Cost, Refill: sluicev1.Refill(l.Refill), Align: sluicev1.Align(l.Align),
		Unit: sluicev1.CalendarUnit(l.Unit), Timezone: l.TimeZone, MinIntervalNs: int64(l.MinInterval), SoftPercent: l.Soft,
		CountDenied: l.CountDenied, SubWindows: l.SubWindows, LogEntries: l.LogEntries, BlockForNs: int64(l.BlockFor),
	}
}

// Bounds of a check, as the nodes have them.
const (
	maxText    = 1 << 10
	maxEntries = 64
	maxLimits  = 16
)

// validate returns the first error of c, or nil.
func (c *Check) validate() *Error {
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
		switch n := len(c.Descriptor[i].Key); {
		case n == 0:
			return invalid(fmt.Sprintf("descriptor[%d].key", i), "empty")
		case n > maxText:
			return invalid(fmt.Sprintf("descriptor[%d].key", i), fmt.Sprintf("%d bytes; want at most %d", n, maxText))
		}
	}
	return nil
}

// Never is the RetryAfter of a cost that can never be admitted.
const Never = time.Duration(math.MaxInt64)

// Decision is the answer to a Check. When denied it describes the limit that takes longest to
// admit the cost; when allowed, the one with the least remaining.
type Decision struct {
	Allowed bool
	// Soft: admitted only by the soft margin. Shadowed: the rule only watches, and would have denied.
	Soft, Shadowed bool
	// Elastic: the rule's limits denied, and its pool admitted. All else is about these limits.
	Elastic bool
	// Source is where the decision was made.
	Source Source
	// LimitIndex is the index of the deciding limit in the rule's limits, or in the Check's own.
	LimitIndex int
	// Limit is that limit's count, or its burst; Remaining is the part not spent. Both are the largest int64 for a check
	// without a limit, and 0 for an unknown counter.
	Limit, Remaining int64
	// Period is that of the limit; a calendar month counts as 30 days, a year as 365.
	Period time.Duration
	// ResetAfter is the time until nothing is spent any more, RetryAfter the time until this cost would be admitted: 0
	// when allowed, or Never.
	ResetAfter, RetryAfter time.Duration
	// Delay is how long to wait before acting, of an admitted check whose limit is a leaky queue. Wait does.
	Delay time.Duration
	// Rule is the name of the rule, or its path in the file; empty when none matched.
	Rule string
	// Owner is the name of the node that decided, if any.
	Owner string
	// Staleness is the age of the counter that the node decided on, if Source is SourceEventual.
	Staleness time.Duration
	// Response is the rule's HTTP response to a denied request; nil for the service's own. Do not change it.
	Response *Response

	deniedFor time.Duration
}

// Response is a rule's own answer over HTTP.
type Response struct {
	// Status is 400 to 599, or 0 for the default, 429.
	Status int
	Header []Header
	Body   string
}

// Header is one HTTP header.
type Header struct{ Name, Value string }

// Source is where a decision was made.
type Source uint8

const (
	// SourceOwned: the node that was asked owns the key and decided.
	SourceOwned Source = iota + 1
	// SourceForwarded: another node holds the key, and the one that was asked has asked it.
	SourceForwarded
	// SourceShare, SourceClosed and SourceOpen: no owner answered the node; the rule's on_failure or
	// on_partition did.
	SourceShare
	SourceClosed
	SourceOpen
	// SourceUnmatched: nothing limits the check.
	SourceUnmatched
	// SourceLease: another node holds the key, and has granted units of it to the one that was asked.
	SourceLease
	// SourceEventual: the node that was asked decided by itself, on its share of what was left when it last heard of
	// the owner.
	SourceEventual
	// SourceLostState: the key's counter was lost in a takeover without state, and its rule denies what may have been spent.
	SourceLostState
	// SourceDenyCache: this client remembers a denial that still stands.
	SourceDenyCache
	// SourceFailOpen, SourceFailClosed and SourceFailLocal: no node answered this client in time; its
	// FailurePolicy did.
	SourceFailOpen
	SourceFailClosed
	SourceFailLocal

	sources = int(iota) + 1
)

func (s Source) String() string {
	names := [sources]string{
		"unknown", "owned", "forwarded", "share", "closed", "open", "unmatched", "lease", "eventual", "lost_state",
		"deny_cache", "fail_open", "fail_closed", "fail_local",
	}
	if int(s) < len(names) {
		return names[s]
	}
	return names[0]
}

// FailurePolicy answers checks and reads that no node has answered in time.
type FailurePolicy struct {
	kind  Source
	share float64
}

var (
	// FailOpen admits.
	FailOpen = FailurePolicy{kind: SourceFailOpen}
	// FailClosed denies.
	FailClosed = FailurePolicy{kind: SourceFailClosed}
)

// FailLocal admits a share of a counter's limit, above 0 and at most 1, by a token bucket in this client: with n
// clients of equal load, 1/n admits about what the limit does. The limit is that of the counter's last decision; checks
// of unknown counters are admitted.
func FailLocal(share float64) FailurePolicy { return FailurePolicy{SourceFailLocal, share} }

func (p FailurePolicy) local() bool { return p.kind == SourceFailLocal }

// closedRetry is the RetryAfter of a denial by FailClosed: about when a node may answer again.
const closedRetry = time.Second

// standIn applies the failure policy to a check of cost.
func (c *Client) standIn(key counterKey, cost int64, read bool) Decision {
	d := Decision{Source: c.opts.policy.kind}
	switch d.Source {
	case SourceFailOpen:
		d.Allowed = true
	case SourceFailClosed:
		d.RetryAfter = closedRetry
	default:
		c.standInLocally(key, cost, read, &d)
	}
	return d
}

func (c *Client) standInLocally(key counterKey, cost int64, read bool, d *Decision) {
	h, ok := c.owners.Peek(key)
	if !ok || h.period <= 0 {
		d.Allowed = true
		return
	}
	if h.limit <= 0 {
		d.RetryAfter, d.Period = Never, h.period
		return
	}
	units := max(1, math.Floor(float64(h.limit)*c.opts.policy.share))
	per := rate.Limit(float64(h.limit) * c.opts.policy.share / h.period.Seconds())
	burst := int(min(units, 1<<30))
	l, ok := c.locals.Get(key)
	if !ok {
		l = rate.NewLimiter(per, burst)
		if old, found, _ := c.locals.PeekOrAdd(key, l); found {
			l = old
		}
	} else if l.Limit() != per || l.Burst() != burst {
		l.SetLimit(per)
		l.SetBurst(burst)
	}
	d.Limit, d.Period = int64(burst), h.period
	now := time.Now()
	if cost > int64(burst) {
		d.RetryAfter = Never
	} else if r := l.ReserveN(now, int(cost)); r.DelayFrom(now) > 0 || read {
		d.RetryAfter = r.DelayFrom(now)
		d.Allowed = d.RetryAfter == 0
		r.CancelAt(now)
	} else {
		d.Allowed = true
	}
	d.Remaining = max(0, int64(l.TokensAt(now)))
}

// Errors of a Client.
var (
	// ErrClosed: the Client was closed.
	ErrClosed = errors.New("sluice: the client is closed")
	// ErrNever: Wait was asked for a cost that can never be admitted.
	ErrNever = errors.New("sluice: the cost is more than the limit can ever admit")
	// ErrWouldExceedDeadline: Wait would have to wait for longer than its context lives.
	ErrWouldExceedDeadline = errors.New("sluice: the limit would admit this only after the context's deadline")
	// ErrUnavailable: no node has confirmed a Charge, a Refund or a Reset, which have no FailurePolicy. It may have been done.
	ErrUnavailable = errors.New("sluice: no node answered")
	// ErrCredentials: the nodes reject the client's token, or require one. Dial returns it, with a node's message; when
	// nodes reject the token later, the FailurePolicy answers.
	ErrCredentials = errors.New("sluice: the nodes do not take the credentials")
)

// Error is a validation error of a check. It was not charged.
type Error struct {
	// Field is the invalid field, for example "descriptor[0].key".
	Field   string
	Message string
}

func (e *Error) Error() string {
	if e.Field == "" {
		return "sluice: " + e.Message
	}
	return fmt.Sprintf("sluice: %s: %s", e.Field, e.Message)
}

func invalid(field, message string) *Error { return &Error{field, message} }

// Outcomes of a call on a stream, used inside the package.
var (
	// errUnsent: the check was certainly not decided.
	errUnsent = errors.New("not sent")
	// errAmbiguous, errGaveUp (the context ended): the check was sent without an answer; it may have been charged.
	errAmbiguous = errors.New("sent, but not answered")
	errGaveUp    = errors.New("sent, and not waited for any more")
	// errBusy: a full queue; nothing was charged.
	errBusy = errors.New("overloaded")
	// errNoOwner: the node found no owner, and the rule has no fallback.
	errNoOwner = errors.New("no node that may decide answered the node that was asked")
)
