package model

import (
	"fmt"
	"math"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// Clocks says how far the times of a log may be from those of the nodes.
type Clocks struct {
	// Error is how far each node's clock may be from the clock of the log. It
	// matters to windows aligned to the epoch. It is also the time that a counter
	// may stand still on its way to another node, which can deny a little more.
	Error time.Duration
	// Drift is how many parts in a million the clocks may differ in speed.
	Drift int64
}

// Span is when a decision was made: not before From, not after To. Unix time in ns.
type Span struct{ From, To int64 }

// Open is the To of a charge that may still be made at any time.
const Open = math.MaxInt64

// Model is one limit, seen from outside. It is immutable.
type Model struct {
	limit  bucket.Limit
	clocks Clocks
	// n units a period of p ns; burst is the capacity of a bucket.
	n, burst, p int64
}

// New returns the model of limit, whose checks all cost 1. It refuses what bucket
// refuses and the options that it has no model of.
func New(limit bucket.Limit, c Clocks) (*Model, error) {
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

// validate refuses what the verdicts do not take into account.
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

// flowing returns what flows in d, rounded up.
func (m *Model) flowing(d int64) int64 {
	if d == 0 {
		return 0
	}
	return addSat(mulDiv(d, m.n, m.p), 1)
}
