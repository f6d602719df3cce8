package bucket

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"
	"time"
)

const maxZone = 64

// Bounds of a Limit's fields.
const (
	MinPeriod = time.Microsecond
	// MaxPeriod is a hundred Julian years.
	MaxPeriod     = 36525 * 24 * time.Hour
	MaxSoft       = 1000
	MaxSubWindows = 3600
	MaxLogEntries = 65536
	// MaxKeyEntries is the maximum number of log entries and sub-windows of the limits of one key. Former limits, which are
	// still remembered, get the rest of it.
	MaxKeyEntries = 65536

	DefaultSubWindows = 60
	DefaultLogEntries = 1024
)

// validate returns the error of l, without its index in a set, and its calendar, if any.
func (l *Limit) validate() (*calendar, *FieldError) {
	if l.Unlimited {
		return nil, nil
	}
	if l.Algorithm < TokenBucket || l.Algorithm > Concurrency {
		return nil, wrong("algorithm", "is missing or unknown; use one of the algorithms of this package")
	}
	if err := l.validateNumbers(); err != nil {
		return nil, err
	}
	if err := l.validateFit(); err != nil {
		return nil, err
	}
	if l.Algorithm == Concurrency {
		return nil, l.validateSlots()
	}
	if l.Align == AlignCalendar {
		return l.calendar()
	}
	if l.Period == 0 {
		return nil, wrong("period", "is missing; give the time that count is for, for example 60 seconds")
	}
	if l.Period < MinPeriod || l.Period > MaxPeriod {
		return nil, wrong("period", "%v is out of range; use %v to %v", l.Period, MinPeriod, MaxPeriod)
	}
	return nil, nil
}

// validateNumbers checks the fields whose range depends on no other field.
func (l *Limit) validateNumbers() *FieldError {
	for _, n := range []struct {
		field          string
		value, maximum int64
	}{
		{"count", l.Count, 0},
		{"burst", l.Burst, 0},
		{"cost", l.Cost, 0},
		{"min_interval", int64(l.MinInterval), int64(MaxPeriod)},
		{"block_for", int64(l.BlockFor), int64(MaxPeriod)},
		{"soft", int64(l.Soft), MaxSoft},
		{"log_entries", int64(l.LogEntries), MaxLogEntries},
	} {
		if n.value < 0 {
			return wrong(n.field, "%d is negative; use 0 or more", n.value)
		}
		if n.maximum > 0 && n.value > n.maximum {
			return wrong(n.field, "%d is too large; use at most %d", n.value, n.maximum)
		}
	}
	if l.SubWindows != 0 && (l.SubWindows < 2 || l.SubWindows > MaxSubWindows) {
		return wrong("sub_windows", "%d is out of range; use 2 to %d", l.SubWindows, MaxSubWindows)
	}
	return nil
}

// validateFit checks that the options fit the algorithm. An option without effect is an error, since it would suggest a limit
// that does not exist.
func (l *Limit) validateFit() *FieldError {
	windows := l.Algorithm >= FixedWindow
	stepped := l.Algorithm == TokenBucket && l.Refill == RefillInterval
	switch {
	case l.Burst != 0 && windows:
		return wrong("burst", "is for buckets only; leave it out")
	case l.Refill > RefillInterval:
		return wrong("refill", "is unknown; use continuous or interval")
	case l.Refill == RefillInterval && !stepped:
		return wrong("refill", "interval is for the token bucket only; leave it out")
	case l.Align > AlignFirstHit:
		return wrong("align", "is unknown; use epoch, calendar or first hit")
	case l.Align != AlignEpoch && l.Algorithm != FixedWindow && !stepped:
		return wrong("align", "is for the fixed window and the token bucket with refill by interval only; leave it out")
	case l.Unit > Year:
		return wrong("unit", "is unknown; use minute, hour, day, week, month or year")
	case l.Unit != 0 && l.Align != AlignCalendar:
		return wrong("unit", "needs align to be calendar; give a period, or align to the calendar")
	case l.Unit == 0 && l.Align == AlignCalendar:
		return wrong("unit", "is missing; windows aligned to the calendar need one")
	case l.Zone != "" && l.Align != AlignCalendar:
		return wrong("timezone", "needs align to be calendar; leave it out, or align to the calendar")
	case l.BlockFor != 0 && l.MinInterval != 0:
		return wrong("block_for", "excludes min_interval; leave one of them out")
	case l.SubWindows != 0 && l.Algorithm != SlidingWindow:
		return wrong("sub_windows", "is for the sliding window only; leave it out")
	case l.LogEntries != 0 && l.Algorithm != SlidingLog:
		return wrong("log_entries", "is for the sliding log only; leave it out")
	}
	return nil
}

// validateSlots checks that a Concurrency, which has no time, has no option about one.
func (l *Limit) validateSlots() *FieldError {
	for _, n := range []struct {
		field string
		set   bool
	}{
		{"period", l.Period != 0}, {"min_interval", l.MinInterval != 0}, {"block_for", l.BlockFor != 0}, {"soft", l.Soft != 0},
		{"count_denied", l.CountDenied},
	} {
		if n.set {
			return wrong(n.field, "is not for concurrency, which counts what is in use now; leave it out")
		}
	}
	return nil
}

func (l *Limit) calendar() (*calendar, *FieldError) {
	zone := cmp.Or(l.Zone, "UTC")
	// "Local" would depend on the machine.
	if zone == "Local" {
		return nil, wrong("timezone", "Local depends on the machine; name an IANA time zone, for example Europe/Berlin")
	}
	loc, err := location(zone)
	if err != nil {
		return nil, wrong("timezone", "%.64q is not a known IANA time zone; use a name like Europe/Berlin", l.Zone)
	}
	return &calendar{unit: l.Unit, loc: loc}, nil
}

// zones caches time zones, because loading one takes long. It is bounded by the number of zones, since location accepts one
// spelling of each.
var zones sync.Map

// location returns the time zone of that name. It rejects file names, by which some systems would find a zone.
func location(name string) (*time.Location, error) {
	if loc, ok := zones.Load(name); ok {
		return loc.(*time.Location), nil
	}
	if len(name) > maxZone || path.Clean(name) != name {
		return nil, errors.New("it is no name of a time zone")
	}
	loc, err := time.LoadLocation(name)
	if err == nil {
		zones.Store(name, loc)
	}
	return loc, err
}

// wrong returns the error of a field of the limit at index 0.
func wrong(field, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Reason: fmt.Sprintf(format, args...)}
}

// The names of values in rule files, JSON, logs and metrics, indexed by value. Empty names are unused.
var (
	verbNames      = []string{Check: "check", Read: "read", Charge: "charge", Refund: "refund", Reset: "reset"}
	useNames       = []string{ForLease: "lease", ForReservation: "reservation", ForSlot: "slot"}
	algorithmNames = []string{
		TokenBucket: "token_bucket", LeakyBucket: "leaky_bucket", LeakyQueue: "leaky_queue", FixedWindow: "fixed_window",
		SlidingLog: "sliding_log", SlidingCounter: "sliding_counter", SlidingWindow: "sliding_window",
		Concurrency: "concurrency",
	}
	alignNames  = []string{AlignEpoch: "epoch", AlignCalendar: "calendar", AlignFirstHit: "first_hit"}
	refillNames = []string{RefillContinuous: "continuous", RefillInterval: "interval"}
	unitNames   = []string{Minute: "minute", Hour: "hour", Day: "day", Week: "week", Month: "month", Year: "year"}
)

// The methods of the types convert values to these names, and names to values.

func (v Verb) String() string                        { return nameOf(verbNames, v) }
func (u Use) String() string                         { return nameOf(useNames, u) }
func (v *Verb) UnmarshalText(text []byte) error      { return fromName(verbNames, text, v) }
func (a Algorithm) String() string                   { return nameOf(algorithmNames, a) }
func (a Algorithm) MarshalText() ([]byte, error)     { return []byte(a.String()), nil }
func (a *Algorithm) UnmarshalText(text []byte) error { return fromName(algorithmNames, text, a) }
func (a Align) String() string                       { return nameOf(alignNames, a) }
func (a Align) MarshalText() ([]byte, error)         { return []byte(a.String()), nil }
func (a *Align) UnmarshalText(text []byte) error     { return fromName(alignNames, text, a) }
func (r Refill) String() string                      { return nameOf(refillNames, r) }
func (r Refill) MarshalText() ([]byte, error)        { return []byte(r.String()), nil }
func (r *Refill) UnmarshalText(text []byte) error    { return fromName(refillNames, text, r) }
func (u Unit) String() string                        { return nameOf(unitNames, u) }
func (u Unit) MarshalText() ([]byte, error)          { return []byte(u.String()), nil }
func (u *Unit) UnmarshalText(text []byte) error      { return fromName(unitNames, text, u) }

func nameOf[T ~uint8](names []string, v T) string {
	if int(v) < len(names) && names[v] != "" {
		return names[v]
	}
	return fmt.Sprintf("unknown (%d)", v)
}

// fromName sets v to the value of that name. The error lists the valid names.
func fromName[T ~uint8](names []string, text []byte, v *T) error {
	var known []string
	for i, name := range names {
		if name == "" {
			continue
		}
		if name == string(text) {
			*v = T(i)
			return nil
		}
		known = append(known, name)
	}
	return fmt.Errorf("%q is none of %s", text, strings.Join(known, ", "))
}
