package sim

import (
	"math"

	"github.com/sluice-project/sluice/bucket"
)

// exact is the naive account of one limit: it counts units when they are spent.
type exact interface {
	// admit spends a unit at a time, none before the last one, and reports whether the limit alone would have admitted it.
	admit(at int64) bool
}

// newExact returns the account of l, whose windows and steps are aligned to the epoch.
func newExact(l bucket.Limit) exact {
	burst := l.Count
	if l.Burst > 0 {
		burst = l.Burst
	}
	period := int64(l.Period)
	switch {
	case l.Refill == bucket.RefillInterval:
		return &exactSteps{count: l.Count, burst: burst, period: period}
	case l.Algorithm == bucket.TokenBucket, l.Algorithm == bucket.LeakyBucket:
		return &exactFlow{count: l.Count, most: burst * period, period: period, at: math.MinInt64}
	case l.Algorithm == bucket.SlidingLog:
		return &exactLog{count: l.Count, grain: 1, span: period}
	case l.Algorithm == bucket.SlidingWindow:
		n := int64(l.SubWindows)
		return &exactLog{count: l.Count, grain: (period-1)/n + 1, span: n + 1}
	case l.Algorithm == bucket.SlidingCounter:
		return &exactWindows{count: l.Count, period: period, weighted: true}
	}
	return &exactWindows{count: l.Count, period: period}
}

// exactFlow is a level, in units × period, that drains count a nanosecond.
type exactFlow struct{ count, most, period, level, at int64 }

func (e *exactFlow) admit(at int64) bool {
	if e.level > 0 {
		e.level = max(0, e.level-(at-e.at)*e.count)
	}
	e.level, e.at = e.level+e.period, at
	return e.level <= e.most
}

// exactSteps is a level that drains count at every multiple of the period.
type exactSteps struct{ count, burst, period, level, step int64 }

func (e *exactSteps) admit(at int64) bool {
	step := at / e.period
	if e.level > 0 {
		e.level = max(0, e.level-(step-e.step)*e.count)
	}
	e.level, e.step = e.level+1, step
	return e.level <= e.burst
}

// exactLog has the grain of every unit that still counts.
type exactLog struct {
	count, grain, span int64
	grains             []int64
}

func (e *exactLog) admit(at int64) bool {
	g := at / e.grain
	for len(e.grains) > 0 && g-e.grains[0] >= e.span {
		e.grains = e.grains[1:]
	}
	e.grains = append(e.grains, g)
	return int64(len(e.grains)) <= e.count
}

// exactWindows counts in windows, and weighs the one before if it is to.
type exactWindows struct {
	count, period int64
	weighted      bool
	window        int64
	spent, before int64
}

func (e *exactWindows) admit(at int64) bool {
	window := at / e.period
	switch window - e.window {
	case 0:
	case 1:
		e.spent, e.before = 0, e.spent
	default:
		e.spent, e.before = 0, 0
	}
	e.window = window
	e.spent++
	used := e.spent
	if e.weighted {
		used += e.before * (e.period - at%e.period) / e.period
	}
	return used <= e.count
}
