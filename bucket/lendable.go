package bucket

import (
	"math"
	"time"
)

// logLoss is how much longer a log's period must be than a loan from it. An entry that is dated at
// the loan's end counts for a loan's length longer than it must, so a log that lends everything loses at
// most one part in logLoss of its throughput.
const logLoss = 40

// LongestLoan returns the longest lifetime of loans under these limits, or 0 if they do not lend:
//
//   - A bucket that refills all the time does not refill what is lent, so that with much of it lent for long it would
//     refill too little. It lends for less than the time in which half of its burst refills.
//   - A log lends for at most a fortieth of its period, see logLoss.
//   - Windows and steps lend until they end, if they are long enough for that at all.
//   - A LeakyQueue does not lend, since what it admits has to wait for a time that it says. Neither do limits with a
//     minimum interval or that count denials, whose checks depend on each other, and limits that
//     admit everything or nothing.
func (l *Limits) LongestLoan() time.Duration {
	if l.unlimited {
		return 0
	}
	longest := int64(MostLoan)
	for i := range l.plans {
		longest = min(longest, l.plans[i].longestLoan())
	}
	if longest < int64(LeastLoan) {
		return 0
	}
	return time.Duration(longest)
}

// Lendable reports whether Lend may ever grant a loan for d under these limits: d is at least LeastLoan and at most
// LongestLoan.
func (l *Limits) Lendable(d time.Duration) bool { return LeastLoan <= d && d <= l.LongestLoan() }

// longestLoan returns how long (ns) p lends for at most; 0 is not at all.
func (p *plan) longestLoan() int64 {
	if p.kind == kindUnlimited {
		return math.MaxInt64
	}
	if p.queue || p.minInterval > 0 || p.countDenied || p.cost > p.limit {
		return 0
	}
	switch p.kind {
	case kindFlow:
		// The longest d with d × count / period < limit / 2.
		return ceilDiv(mulDivCeil(p.limit, p.period, p.count), 2) - 1
	case kindLog, kindBins:
		return p.period / logLoss
	case kindStep, kindFixed, kindWeighted:
		if p.cal != nil {
			return math.MaxInt64
		}
		return p.period
	}
	return 0
}
