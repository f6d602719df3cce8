package bucket

import "math"

// kind is how a limit's state moves. It decides which functions the states are given to.
type kind uint8

const (
	// kindUnlimited and kindBlocked keep no state.
	kindUnlimited kind = iota
	kindBlocked
	// kindFlow drains all the time: TokenBucket with continuous refill, LeakyBucket, LeakyQueue.
	kindFlow
	// kindStep drains at boundaries: TokenBucket refilled by interval.
	kindStep
	kindFixed
	// kindLog keeps entries by time, kindBins by sub-window.
	kindLog
	kindBins
	kindWeighted
)

// shape is everything about a limit that gives its state its meaning. Two limits
// of one shape can use each other's state.
type shape struct {
	kind      kind
	algorithm Algorithm
	align     Align
	unit      Unit
	bins      int32
	period    int64
	zone      string
	// count matters to states that drain by it, and only to them.
	count int64
}

// likes reports whether s and t differ at most in how fast their states drain, so that a
// state of one can begin as a copy of the other's.
func (s shape) likes(t shape) bool {
	s.count, t.count = 0, 0
	return s == t
}

// plan is a Limit prepared for deciding.
type plan struct {
	kind        kind
	align       Align
	queue       bool
	countDenied bool
	// cost multiplies a check's cost.
	cost int64
	// limit is the capacity that is reported, capacity the one with the soft margin.
	limit, capacity int64
	// count is drained per period (ns); under AlignCalendar per window of cal.
	count, period int64
	cal           *calendar
	minInterval   int64
	// Entries are dated at multiples of grain (ns): 1 for kindLog, the length of a
	// sub-window for kindBins. An entry counts while it is less than span (ns) old.
	grain, span int64
	// maxEntries caps the entries of kindLog and kindBins.
	maxEntries int
	shape      shape
}

// compile prepares the valid limit l. cal is not nil iff l is aligned to the calendar.
func (l *Limit) compile(cal *calendar) plan {
	if l.Unlimited {
		return plan{kind: kindUnlimited}
	}
	if l.Count == 0 {
		return plan{kind: kindBlocked, cost: 1, shape: shape{kind: kindBlocked}}
	}
	p := plan{
		align:       l.Align,
		cost:        max(1, l.Cost),
		limit:       l.Count,
		count:       l.Count,
		period:      int64(l.Period),
		cal:         cal,
		minInterval: int64(l.MinInterval),
		countDenied: l.CountDenied,
	}
	switch l.Algorithm {
	case TokenBucket, LeakyBucket, LeakyQueue:
		p.kind = kindFlow
		p.queue = l.Algorithm == LeakyQueue
		if l.Refill == RefillInterval {
			p.kind = kindStep
		}
		if l.Burst > 0 {
			p.limit = l.Burst
		}
	case FixedWindow:
		p.kind = kindFixed
	case SlidingLog:
		p.kind = kindLog
		p.grain, p.span = 1, p.period
		p.maxEntries = DefaultLogEntries
		if l.LogEntries > 0 {
			p.maxEntries = int(l.LogEntries)
		}
	case SlidingCounter:
		p.kind = kindWeighted
	case SlidingWindow:
		n := int64(DefaultSubWindows)
		if l.SubWindows > 0 {
			n = int64(l.SubWindows)
		}
		p.kind = kindBins
		p.grain = ceilDiv(p.period, n)
		p.span, p.maxEntries = p.grain*(n+1), int(n+1)
	}
	margin, _ := mulDiv(p.limit, int64(l.Soft), 100)
	p.capacity = addSat(p.limit, margin)
	p.shape = shape{kind: p.kind, algorithm: l.Algorithm, align: l.Align, period: p.period}
	if cal != nil {
		p.period = 0
		p.shape.period, p.shape.unit, p.shape.zone = 0, l.Unit, cal.loc.String()
	}
	switch p.kind {
	case kindBins:
		p.shape.bins = int32(p.maxEntries)
	case kindFlow, kindStep:
		p.shape.count = p.count
	}
	return p
}

// stateless reports whether the limit never counts anything.
func (p *plan) stateless() bool { return p.kind <= kindBlocked }

// never is the time of what has not happened; no counter's clock shows it.
const never int64 = math.MinInt64
