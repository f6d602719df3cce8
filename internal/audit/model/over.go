package model

import (
	"cmp"
	"slices"

	"github.com/sluice-project/sluice/bucket"
)

// Over returns by how many units at least the admissions exceed the limit: 0 if the
// limit may have admitted them all. asked is the earliest time at which the key may have been
// charged; before it the counter was fresh.
//
// What each algorithm admits of one key in a time of length d, with the count N, the
// period P and the burst B:
//
//	token bucket, leaky bucket, leaky queue   B + N·d/P
//	fixed window, first hit    N·(⌊d/P⌋ + 1) from the beginning: windows begin P apart at least;
//	                           elsewhere N·(⌊d/P⌋ + 2)
//	fixed window, epoch        N in what certainly lies in one window, 2 N in two that follow each
//	                           other, N·(⌊d/P⌋ + 2) anywhere
//	sliding log                N in less than P
//	sliding window             the same: it never admits more than the log
//	sliding counter            as the fixed window; and when a window has admitted n, and c more follow
//	                           in the next one up to its age e, ⌊n·(P − e)/P⌋ + c ≤ N
func (m *Model) Over(asked int64, admitted []Span) int64 {
	if len(admitted) == 0 {
		return 0
	}
	spans := slices.Clone(admitted)
	slices.SortFunc(spans, func(a, b Span) int { return cmp.Compare(a.To, b.To) })
	long := m.stretch(asked, spans)
	switch m.limit.Algorithm {
	case bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue:
		return overFlow(long, m.burst, m.n, m.p)
	case bucket.SlidingLog:
		return max(overAny(long, m.n, m.p), overFlow(long, m.n, m.n, m.p))
	case bucket.SlidingWindow:
		// Sub-windows are numbered by the clock of whoever holds the key.
		return max(overAny(long, m.n, m.p-m.apart()), overFlow(long, addSat(m.n, m.flowing(m.apart())), m.n, m.p))
	case bucket.SlidingCounter:
		return max(m.overAligned(spans), m.overWeighted(spans), m.overTwo(long, m.apart()))
	}
	if m.limit.Align == bucket.AlignFirstHit {
		return max(m.overFromStart(long), m.overTwo(long, 0))
	}
	return max(m.overAligned(spans), m.overTwo(long, m.apart()))
}

// stretch returns the spans, which are sorted by To, as times since asked on the fastest
// clock that a node may have: no time between two of them is shorter on any node.
func (m *Model) stretch(asked int64, spans []Span) []Span {
	out := make([]Span, len(spans))
	for i, s := range spans {
		from, to := max(0, s.From-asked), max(0, s.To-asked)
		out[i] = Span{from + mulDiv(from, m.clocks.Drift, million), to + m.clocks.drift(to)}
	}
	return out
}

// overTwo holds the spans to what windows admit that begin P apart, wherever that may be:
// two in less than P, and one more for each P. Their numbers may be those of clocks that are apart.
func (m *Model) overTwo(long []Span, apart int64) int64 {
	two := addSat(m.n, m.n)
	over := overFlow(long, addSat(two, m.flowing(apart)), m.n, m.p)
	if m.p > apart {
		over = max(over, overAny(long, two, m.p-apart))
	}
	return over
}

// overFromStart holds the spans to what windows of the first hit admit of a fresh key.
func (m *Model) overFromStart(long []Span) int64 {
	over := int64(0)
	for i, s := range long {
		windows := s.To/m.p + 1
		if windows > int64(len(long)) {
			break
		}
		over = max(over, int64(i)+1-mulSat(windows, m.n))
	}
	return over
}
