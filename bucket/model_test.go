package bucket_test

import (
	"math"
	"math/big"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// The models below are deliberately dumb: they keep every charge that a counter
// ever got and replay all of them, in exact arithmetic, whenever something is
// asked. They share no idea with the counters that they check.

// charge is one thing that happened to a counter; a refund has negative units.
type charge struct {
	at    int64
	units *big.Int
	// others: other limits have admitted it, so it fills a bucket at most.
	others bool
}

// model is the exact account of one limit.
type model struct {
	limit   bucket.Limit
	charges []charge
	// last is the time of the last check that counts for MinInterval, or of the last denial that blocks, if any.
	last *int64
}

func (m *model) bucketLike() bool {
	switch m.limit.Algorithm {
	case bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue:
		return true
	}
	return false
}

// capacity is what Decision.Limit reports.
func (m *model) capacity() int64 {
	if m.bucketLike() && m.limit.Burst != 0 {
		return m.limit.Burst
	}
	return m.limit.Count
}

// ceiling is the capacity with the soft margin on top.
func (m *model) ceiling() *big.Int {
	c := big.NewInt(m.capacity())
	soft := new(big.Int).Mul(c, big.NewInt(int64(m.limit.Soft)))
	return c.Add(c, soft.Div(soft, big.NewInt(100)))
}

// units is what a check of this cost spends here.
func (m *model) units(cost int64) *big.Int {
	return new(big.Int).Mul(big.NewInt(cost), big.NewInt(max(m.limit.Cost, 1)))
}

// used is what counts against the capacity at time at. It never rises by itself.
func (m *model) used(at int64) *big.Rat {
	period := int64(m.limit.Period)
	switch m.limit.Algorithm {
	case bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue:
		return m.level(at)
	case bucket.FixedWindow:
		return m.window(at)
	case bucket.SlidingLog:
		sum := new(big.Int)
		for _, c := range m.charges {
			if span(c.at, at).Cmp(big.NewInt(period)) < 0 {
				sum.Add(sum, c.units)
			}
		}
		return new(big.Rat).SetInt(sum)
	case bucket.SlidingCounter:
		bins := m.bins(period)
		b := floorDiv(at, period)
		left := big.NewInt(period - (at - b*period))
		weighed := left.Mul(left, bin(bins, b-1))
		weighed.Div(weighed, big.NewInt(period))
		return new(big.Rat).SetInt(weighed.Add(weighed, bin(bins, b)))
	case bucket.SlidingWindow:
		n := int64(m.limit.SubWindows)
		if n == 0 {
			n = 60
		}
		width := (period-1)/n + 1
		b := floorDiv(at, width)
		sum := new(big.Int)
		for k, v := range m.bins(width) {
			if b-n <= k && k <= b {
				sum.Add(sum, v)
			}
		}
		return new(big.Rat).SetInt(sum)
	}
	panic("no such algorithm")
}

// level replays a bucket: it drains between charges and never below empty.
func (m *model) level(at int64) *big.Rat {
	level := new(big.Rat)
	if len(m.charges) == 0 {
		return level
	}
	from, born := m.charges[0].at, m.charges[0].at
	for _, c := range m.charges {
		m.drain(level, from, c.at, born)
		if level.Sign() == 0 && c.units.Sign() > 0 {
			born = c.at // a bucket that is wholly free is no bucket
		}
		before := new(big.Rat).Set(level)
		level.Add(level, new(big.Rat).SetInt(c.units))
		if full := new(big.Rat).SetInt(m.ceiling()); c.others && level.Cmp(full) > 0 {
			if level = full; before.Cmp(full) > 0 {
				level = before
			}
		}
		if level.Sign() < 0 {
			level.SetInt64(0)
		}
		from = c.at
	}
	m.drain(level, from, at, born)
	return level
}

func (m *model) drain(level *big.Rat, from, to, born int64) {
	period := big.NewInt(int64(m.limit.Period))
	drained := new(big.Rat)
	switch {
	case m.limit.Refill == bucket.RefillContinuous:
		drained.SetFrac(span(from, to), period)
	case m.limit.Align == bucket.AlignCalendar:
		if level.Sign() == 0 {
			return
		}
		steps := int64(0)
		for end := calendarEnd(m.limit, from); end <= to; end = calendarEnd(m.limit, end) {
			steps++
		}
		drained.SetInt64(steps)
	case m.limit.Align == bucket.AlignFirstHit:
		a := new(big.Int).Div(span(born, from), period)
		b := new(big.Int).Div(span(born, to), period)
		drained.SetInt(b.Sub(b, a))
	default:
		drained.SetInt64(floorDiv(to, int64(m.limit.Period)) - floorDiv(from, int64(m.limit.Period)))
	}
	drained.Mul(drained, new(big.Rat).SetInt64(m.limit.Count))
	level.Sub(level, drained)
	if level.Sign() < 0 {
		level.SetInt64(0)
	}
}

// window replays a fixed window of any alignment.
func (m *model) window(at int64) *big.Rat {
	sum := new(big.Int)
	var start int64
	open := false
	same := func(t int64) bool {
		switch m.limit.Align {
		case bucket.AlignCalendar:
			return calendarEnd(m.limit, start) == calendarEnd(m.limit, t)
		case bucket.AlignFirstHit:
			return span(start, t).Cmp(big.NewInt(int64(m.limit.Period))) < 0
		}
		return floorDiv(start, int64(m.limit.Period)) == floorDiv(t, int64(m.limit.Period))
	}
	for _, c := range m.charges {
		if !open || !same(c.at) {
			open = c.units.Sign() > 0
			start = c.at
			sum.SetInt64(0)
		}
		sum.Add(sum, c.units)
		if sum.Sign() < 0 {
			sum.SetInt64(0)
		}
	}
	if !open || !same(at) {
		sum.SetInt64(0)
	}
	return new(big.Rat).SetInt(sum)
}

// bins sums the charges by epoch-aligned bins of this width; a refund lowers the
// bin of its own time, at most to zero.
func (m *model) bins(width int64) map[int64]*big.Int {
	bins := map[int64]*big.Int{}
	for _, c := range m.charges {
		b := floorDiv(c.at, width)
		before := bin(bins, b)
		bins[b] = new(big.Int).Add(before, c.units)
		if full := m.ceiling(); c.others && m.limit.Algorithm == bucket.SlidingCounter && bins[b].Cmp(full) > 0 {
			if bins[b] = full; before.Cmp(full) > 0 {
				bins[b] = before
			}
		}
		if bins[b].Sign() < 0 {
			bins[b].SetInt64(0)
		}
	}
	return bins
}

func bin(bins map[int64]*big.Int, b int64) *big.Int {
	if v, ok := bins[b]; ok {
		return v
	}
	return new(big.Int)
}

// counted reports whether the limit's count alone admits units at time at.
func (m *model) counted(at int64, units *big.Int) bool {
	if m.limit.Unlimited {
		return true
	}
	if m.limit.Count == 0 {
		return false
	}
	sum := new(big.Rat).SetInt(units)
	sum.Add(sum, m.used(at))
	return sum.Cmp(new(big.Rat).SetInt(m.ceiling())) <= 0
}

// rested reports whether MinInterval, or BlockFor, has passed at time at.
func (m *model) rested(at int64) bool {
	return m.limit.Unlimited || m.last == nil ||
		span(*m.last, at).Cmp(big.NewInt(int64(m.limit.MinInterval+m.limit.BlockFor))) >= 0
}

// hopeless reports whether no wait can ever make room for units.
func (m *model) hopeless(units *big.Int) bool {
	return !m.limit.Unlimited && (m.limit.Count == 0 || units.Cmp(m.ceiling()) > 0)
}

func (m *model) admits(at int64, units *big.Int) bool {
	return m.counted(at, units) && m.rested(at)
}

// soft reports whether units at time at need the soft margin.
func (m *model) soft(at int64, units *big.Int) bool {
	if m.limit.Unlimited {
		return false
	}
	sum := new(big.Rat).SetInt(units)
	sum.Add(sum, m.used(at))
	return sum.Cmp(new(big.Rat).SetInt64(m.capacity())) > 0
}

// remaining is what is left of the capacity, in whole units.
func (m *model) remaining(at int64) int64 {
	if m.limit.Unlimited {
		return math.MaxInt64
	}
	if m.limit.Count == 0 {
		return 0
	}
	left := new(big.Rat).SetInt64(m.capacity())
	left.Sub(left, m.used(at))
	if left.Sign() <= 0 {
		return 0
	}
	return new(big.Int).Div(left.Num(), left.Denom()).Int64()
}

// left is how many whole units the soft margin would still admit; below zero under a debt.
func (m *model) left(at int64) *big.Int {
	left := new(big.Rat).SetInt(m.ceiling())
	left.Sub(left, m.used(at))
	return new(big.Int).Div(left.Num(), left.Denom())
}

// free reports whether nothing is spent at time at.
func (m *model) free(at int64) bool { return m.limit.Unlimited || m.used(at).Sign() == 0 }

// delay is how long a LeakyQueue makes an admitted check wait.
func (m *model) delay(at int64) time.Duration {
	if m.limit.Algorithm != bucket.LeakyQueue || m.limit.Unlimited || m.limit.Count == 0 {
		return 0
	}
	wait := m.used(at)
	wait.Mul(wait, new(big.Rat).SetFrac64(int64(m.limit.Period), m.limit.Count))
	up := new(big.Int).Add(wait.Num(), wait.Denom())
	up.Sub(up, big.NewInt(1))
	up.Div(up, wait.Denom())
	if !up.IsInt64() {
		return math.MaxInt64
	}
	return time.Duration(up.Int64())
}

// add records a charge of units at time at.
func (m *model) add(at int64, units *big.Int) {
	if !m.limit.Unlimited {
		m.charges = append(m.charges, charge{at: at, units: units})
	}
}

// addOthers records a charge of units that other limits have admitted.
func (m *model) addOthers(at int64, units *big.Int) {
	m.add(at, units)
	if n := len(m.charges); n > 0 {
		m.charges[n-1].others = true
	}
}

// span is to−from without overflow.
func span(from, to int64) *big.Int {
	return new(big.Int).Sub(big.NewInt(to), big.NewInt(from))
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b != 0 && (a < 0) != (b < 0) {
		q--
	}
	return q
}
