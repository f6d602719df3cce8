package bucket

import (
	"cmp"
	"math"
	"math/bits"
)

// kind is the way a limit's state changes over time; it selects the functions for the states.
type kind uint8

const (
	// kindUnlimited, kindBlocked and kindSlots keep no state.
	kindUnlimited kind = iota
	kindBlocked
	// kindSlots is Concurrency: what grants hold is all that counts.
	kindSlots
	// kindFlow drains continuously: TokenBucket with continuous refill, LeakyBucket, LeakyQueue.
	kindFlow
	// kindStep drains at boundaries: TokenBucket with refill by interval.
	kindStep
	kindFixed
	// kindLog keeps entries by time, kindBins by sub-window.
	kindLog
	kindBins
	kindWeighted
)

// shape is everything that defines the meaning of a limit's state. Limits of one shape can use each other's state.
type shape struct {
	kind      kind
	algorithm Algorithm
	align     Align
	unit      Unit
	bins      int32
	period    int64
	zone      string
	// count is set only for states that drain by it, capacity for those that deny longer the more is spent above it.
	count, capacity int64
	// blocks is the plan's: it says what state.last is.
	blocks bool
}

// likes reports whether s and t differ at most in how fast their states drain, in how full they can be, and in what their last
// means, so that a state of one can start as a copy of the other's; see inherit.
func (s shape) likes(t shape) bool {
	s.count, s.capacity, s.blocks = t.count, t.capacity, t.blocks
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
	// limit is the reported capacity, capacity the one including the soft margin.
	limit, capacity int64
	// count is drained per period (ns), with AlignCalendar per window of cal.
	count, period int64
	cal           *calendar
	// minInterval is the time since state.last that must have passed.
	minInterval int64
	// blocks: state.last is the denial that blocks the limit, not the last admitted check.
	blocks bool
	// Entries are dated at multiples of grain (ns): 1 for kindLog, the length of a sub-window for kindBins. An entry counts
	// while it is younger than span (ns).
	grain, span int64
	// maxEntries caps the entries of kindLog and kindBins.
	maxEntries int
	shape      shape
}

// compile prepares the valid limit l. cal is nil unless l is aligned to the calendar.
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
		minInterval: int64(max(l.MinInterval, l.BlockFor)),
		blocks:      l.BlockFor > 0,
		countDenied: l.CountDenied,
	}
	switch l.Algorithm {
	case TokenBucket, LeakyBucket, LeakyQueue:
		p.kind = kindFlow
		p.queue = l.Algorithm == LeakyQueue
		if l.Refill == RefillInterval {
			p.kind = kindStep
		}
		p.limit = cmp.Or(l.Burst, l.Count)
	case FixedWindow:
		p.kind = kindFixed
	case Concurrency:
		p.kind = kindSlots
	case SlidingLog:
		p.kind = kindLog
		p.grain, p.span = 1, p.period
		p.maxEntries = cmp.Or(int(l.LogEntries), DefaultLogEntries)
	case SlidingCounter:
		p.kind = kindWeighted
	case SlidingWindow:
		n := cmp.Or(int64(l.SubWindows), DefaultSubWindows)
		p.kind = kindBins
		p.grain = ceilDiv(p.period, n)
		p.span, p.maxEntries = p.grain*(n+1), int(n+1)
	}
	margin, _ := mulDiv(p.limit, int64(l.Soft), 100)
	p.capacity = addSat(p.limit, margin)
	p.shape = shape{kind: p.kind, algorithm: l.Algorithm, align: l.Align, period: p.period, blocks: p.blocks}
	if cal != nil {
		p.period = 0
		p.shape.period, p.shape.unit, p.shape.zone = 0, l.Unit, cal.loc.String()
	}
	switch p.kind {
	case kindBins:
		p.shape.bins = int32(p.maxEntries)
	case kindFlow, kindStep:
		p.shape.count, p.shape.capacity = p.count, p.capacity
	case kindWeighted:
		p.shape.capacity = p.capacity
	}
	return p
}

// stateless reports whether the limit never counts anything.
func (p *plan) stateless() bool { return p.kind <= kindSlots }

// never is the time of events that have not happened; no counter's clock shows it.
const never int64 = math.MinInt64

// addSat returns a + b, saturating.
func addSat(a, b int64) int64 {
	s := a + b
	if (a^s)&(b^s) < 0 { // both have the sign that the sum has lost
		return saturated(a)
	}
	return s
}

// subSat returns a − b, saturating.
func subSat(a, b int64) int64 {
	d := a - b
	if (a^b)&(a^d) < 0 {
		return saturated(a)
	}
	return d
}

// saturated returns the end of int64 with the given sign.
func saturated(sign int64) int64 {
	if sign < 0 {
		return math.MinInt64
	}
	return math.MaxInt64
}

// mulSat returns a × b for a, b ≥ 0, saturating.
func mulSat(a, b int64) int64 {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	if hi != 0 || lo > math.MaxInt64 {
		return math.MaxInt64
	}
	return int64(lo)
}

// saturate returns n, at most math.MaxInt64.
func saturate(n uint64) int64 { return int64(min(n, math.MaxInt64)) }

// elapsed returns to − from in nanoseconds for from ≤ to; the full range of int64 fits into the result.
func elapsed(from, to int64) uint64 { return uint64(to) - uint64(from) }

// floorDiv returns ⌊a / b⌋ for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// floorMod returns a − ⌊a / b⌋ × b, in [0, b), for b > 0.
func floorMod(a, b int64) int64 {
	return a - floorDiv(a, b)*b
}

// ceilDiv returns ⌈a / b⌉ for a ≥ 0, b > 0.
func ceilDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 {
		q++
	}
	return q
}

// mulDiv returns ⌊a × b / c⌋ and the remainder for a, b ≥ 0, c > 0. A quotient above math.MaxInt64 is saturated, with remainder
// 0.
func mulDiv(a, b, c int64) (quo, rem int64) {
	return wide(uint64(a), uint64(b)).div(c)
}

// mulDivCeil returns ⌈a × b / c⌉ for a, b ≥ 0, c > 0, saturating.
func mulDivCeil(a, b, c int64) int64 {
	return wide(uint64(a), uint64(b)).divCeil(c)
}

// uint128 is the product of two 64-bit numbers.
type uint128 struct{ hi, lo uint64 }

func wide(a, b uint64) uint128 {
	hi, lo := bits.Mul64(a, b)
	return uint128{hi, lo}
}

// add returns x + n. The callers' x are small enough for the sum to fit.
func (x uint128) add(n uint64) uint128 {
	lo, carry := bits.Add64(x.lo, n, 0)
	return uint128{x.hi + carry, lo}
}

// sub returns x − y, or 0 if y is larger.
func (x uint128) sub(y uint128) uint128 {
	lo, carry := bits.Sub64(x.lo, y.lo, 0)
	hi, carry := bits.Sub64(x.hi, y.hi, carry)
	if carry != 0 {
		return uint128{}
	}
	return uint128{hi, lo}
}

// div returns ⌊x / d⌋ and the remainder, for d > 0. A quotient above math.MaxInt64 is saturated, with remainder 0.
func (x uint128) div(d int64) (quo, rem int64) {
	if x.hi >= uint64(d) {
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(x.hi, x.lo, uint64(d))
	if q > math.MaxInt64 {
		return math.MaxInt64, 0
	}
	return int64(q), int64(r)
}

// divCeil returns ⌈x / d⌉ for d > 0, saturating.
func (x uint128) divCeil(d int64) int64 {
	q, r := x.div(d)
	if r != 0 && q != math.MaxInt64 {
		q++
	}
	return q
}

// MaxTimes is the maximum number of times of TryTimes.
const MaxTimes = 1024

// Series answers a request that was repeated at one instant.
type Series struct {
	// Granted is how many of them were admitted: the first ones, as all are equal.
	Granted int64
	// Last answers the last admitted one, Denial the first denied one and all after it. Either is zero if there is none.
	Last, Denial Decision
}

// Repeatable reports whether equal checks under these limits can be decided as one repeated check: a denial changes nothing, so
// it holds for all after it, and the admitted ones differ only in what remains. That excludes limits that count denials,
// queues, and soft margins.
func (l *Limits) Repeatable() bool {
	for i := range l.plans {
		if p := &l.plans[i]; p.countDenied || p.queue || p.limit < p.capacity {
			return false
		}
	}
	return true
}

// TryTimes is Try of r, times times (1 to MaxTimes) at one instant, up to the first denial. r is a Check with a cost above 0
// and without Drain, under limits that are Repeatable. charged reports whether anything was spent, and seq is the number of the
// shard's last change.
func (t *Table) TryTimes(now int64, r *Request, times int64) (s Series, charged bool, seq uint64, v Verdict) {
	now = inRange(now)
	sh := t.lockKey(r.Key)
	v = sh.verdictLocked(now, r.Unreplicated || r.Limits.unlimited)
	if v == Decided {
		charged = sh.timesLocked(now, r, min(times, MaxTimes), &s)
	}
	seq = sh.mu.seq
	sh.unlock(now, charged)
	return s, charged, seq, v
}

// timesLocked decides r until it is denied, at most times times.
func (sh *shard) timesLocked(now int64, r *Request, times int64, s *Series) (spent bool) {
	if r.Limits.unlimited {
		s.Granted, s.Last = times, unlimitedDecision()
		return false
	}
	for s.Granted < times {
		var d Decision
		o := sh.decideLocked(sh.atLocked(now), r, Check, r.Cost, nil, &d)
		sh.followLocked(now, r.Key, o, r.Unreplicated)
		spent = spent || o.has(charged)
		if !d.Allowed {
			if s.Denial = d; d.Lost {
				sh.table.deniedLost.Add(uint64(times - s.Granted))
			}
			return spent
		}
		s.Granted, s.Last = s.Granted+1, d
	}
	return spent
}
