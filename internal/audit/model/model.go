// Package model judges the log of one key: whether a limit could have admitted the admitted checks, and whether it had to
// admit the denied ones.
//
// A log has the times between which each decision was made; only the node knows the exact time. The verdicts are sound:
// units over or under are reported only if no placement of the decisions explains the log, and every rounding favours
// the cluster. So a correct cluster never fails, and a wrong one fails where the times leave no doubt.
//
// It is pure: no I/O, no clock, no goroutine.
package model

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
)

// Clocks bounds the difference between the times of a log and those of the nodes.
type Clocks struct {
	// Error is how far each node's clock may be from the clock of the log. It matters to windows aligned to the epoch. It is
	// also the time that a counter may stand still in a handoff, which can deny a little more.
	Error time.Duration
	// Drift is how many parts in a million the clocks may differ in speed.
	Drift int64
}

// Span bounds the time of a decision, in Unix ns.
type Span struct{ From, To int64 }

// Open is the To of a charge that may be made at any later time.
const Open = math.MaxInt64

// Model is one limit, seen from outside. It is immutable.
type Model struct {
	limit  bucket.Limit
	clocks Clocks
	// n units a period of p ns; burst is the capacity of a bucket.
	n, burst, p int64
}

// New returns the model of limit, whose checks all cost 1. The error is that of an invalid limit, or of an option without a
// model.
func New(limit bucket.Limit, c Clocks) (*Model, error) {
	if limit.Algorithm == bucket.Concurrency {
		return nil, fmt.Errorf("algorithm: concurrency has no model; use one with a period")
	}
	if _, err := bucket.NewLimits(limit); err != nil {
		return nil, err
	}
	if c.Error < 0 || c.Drift < 0 || c.Drift >= million {
		return nil, fmt.Errorf("clocks: error %v, drift %d ppm; want 0 or more, and less than %d ppm", c.Error, c.Drift, million)
	}
	m := &Model{limit: limit, clocks: c, n: limit.Count, burst: limit.Burst, p: int64(limit.Period)}
	if m.burst == 0 {
		m.burst = limit.Count
	}
	return m, m.validate()
}

// validate returns an error for options without a model.
func (m *Model) validate() error {
	l := &m.limit
	switch {
	case l.Unlimited:
		return fmt.Errorf("unlimited: there is nothing to audit; give a count")
	case l.Count == 0:
		return fmt.Errorf("count: 0 blocks everything; give 1 or more")
	case l.Align == bucket.AlignCalendar:
		return fmt.Errorf("align: calendar has no model; use epoch or first_hit")
	case l.Refill != bucket.RefillContinuous:
		return fmt.Errorf("refill: interval has no model; leave it out")
	case l.Cost > 1, l.MinInterval > 0, l.Soft > 0, l.CountDenied:
		return fmt.Errorf("cost, min_interval, soft, count_denied: have no model; leave them out")
	case l.Algorithm == bucket.SlidingLog && l.Count > max(bucket.DefaultLogEntries, int64(l.LogEntries)):
		return fmt.Errorf("count: a sliding log of %d entries is stricter than a count of %d; raise log_entries or lower the count",
			max(bucket.DefaultLogEntries, l.LogEntries), l.Count)
	case l.Algorithm == bucket.SlidingWindow && m.p <= 2*int64(m.clocks.Error):
		return fmt.Errorf("period: %v says nothing while clocks may be %v apart; give a longer period or a smaller clock error",
			l.Period, m.clocks.Error)
	}
	return nil
}

// million is the parts that Clocks.Drift counts in.
const million = 1_000_000

// drift returns by how much d ≥ 0 may be off, rounded up.
func (c Clocks) drift(d int64) int64 {
	off, rest := divRest(d, c.Drift, 0, million)
	return off + min(rest, 1)
}

// apart is how far two nodes' clocks may be from each other.
func (m *Model) apart() int64 { return 2 * int64(m.clocks.Error) }

// flowing returns the units that flow in d, rounded up.
func (m *Model) flowing(d int64) int64 {
	if d == 0 {
		return 0
	}
	return addSat(mulDiv(d, m.n, m.p), 1)
}

// mulDiv returns ⌊a × b / c⌋ for a, b ≥ 0 and c > 0, at most the largest int64.
func mulDiv(a, b, c int64) int64 {
	q, _ := divRest(a, b, 0, c)
	return q
}

// divRest returns ⌊(a × b + add) / c⌋ and the rest; or the largest int64 and 0 if that is less.
func divRest(a, b, add, c int64) (quotient, rest int64) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	lo, carry := bits.Add64(lo, uint64(add), 0)
	hi += carry
	if hi >= uint64(c) {
		return math.MaxInt64, 0
	}
	q, r := bits.Div64(hi, lo, uint64(c))
	if q > math.MaxInt64 {
		return math.MaxInt64, 0
	}
	return int64(q), int64(r)
}

// addSat returns a + b for b ≥ 0, at most the largest int64.
func addSat(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// floorDiv returns ⌊a / b⌋ for b > 0.
func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// mulSat returns a × b for a, b ≥ 0, at most the largest int64.
func mulSat(a, b int64) int64 { return mulDiv(a, b, 1) }

// overAligned returns the excess over N in each window aligned to the epoch, and over 2 N in each two consecutive ones. A
// window of a node's clock begins within Clocks.Error of its begin by the clock of the log. So a decision certainly belongs
// to a window if it was made at least that far from both its ends.
func (m *Model) overAligned(spans []Span) int64 {
	one, two := make(map[int64]int64), make(map[int64]int64)
	for _, s := range spans {
		if k, ok := m.within(s, 1); ok {
			one[k]++
		}
		k, ok := m.within(s, 2)
		if ok {
			two[k]++
		}
		// The two windows that begin one earlier.
		if s.To < m.border(k+1)-int64(m.clocks.Error) {
			two[k-1]++
		}
	}
	over := int64(0)
	for _, c := range one {
		over = max(over, c-m.n)
	}
	for _, c := range two {
		over = max(over, c-addSat(m.n, m.n))
	}
	return over
}

// within returns the last window k that certainly had begun when s was decided, and whether s was certainly decided before
// the windows k to k + count − 1 had ended.
func (m *Model) within(s Span, count int64) (k int64, certain bool) {
	k = floorDiv(s.From-int64(m.clocks.Error), m.p)
	return k, s.To < m.border(k+count)-int64(m.clocks.Error)
}

// border returns where window k begins.
func (m *Model) border(k int64) int64 { return k * m.p }

// overWeighted returns the excess of the spans, sorted by To, over the sliding counter's formula: it admits while
// ⌊before·(P − e)/P⌋ + current < N. before is at least the certain admissions of the window before, the age e at most what
// the clocks allow; and the bound only rises with e.
func (m *Model) overWeighted(spans []Span) int64 {
	windows := make(map[int64][]int64) // ends of the spans certainly in a window
	var order []int64
	for _, s := range spans {
		k, ok := m.within(s, 1)
		if !ok {
			continue
		}
		if windows[k] == nil {
			order = append(order, k)
		}
		windows[k] = append(windows[k], s.To)
	}
	slices.Sort(order)
	over := int64(0)
	for _, k := range order {
		before := int64(len(windows[k-1]))
		if before == 0 {
			continue // see overAligned
		}
		for i, to := range windows[k] {
			age := min(m.p, to-m.border(k)+int64(m.clocks.Error))
			over = max(over, int64(i)+1+mulDiv(before, m.p-age, m.p)-m.n)
		}
	}
	return over
}
