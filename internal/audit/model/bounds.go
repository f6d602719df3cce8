package model

import (
	"cmp"
	"slices"

	"github.com/sluicecluster/sluice/bucket"
)

// Over returns the over-admission in units, at least: 0 if the limit may have admitted them all. asked is the earliest time
// at which the key may have been charged; the counter was new then.
//
// Each algorithm admits of one key in a time of length d, with the count N, the period P and the burst B:
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
		// Sub-windows are numbered by the clock of the owner.
		return max(overAny(long, m.n, m.p-m.apart()), overFlow(long, addSat(m.n, m.flowing(m.apart())), m.n, m.p))
	case bucket.SlidingCounter:
		return max(m.overAligned(spans), m.overWeighted(spans), m.overTwo(long, m.apart()))
	}
	if m.limit.Align == bucket.AlignFirstHit {
		return max(m.overFromStart(long), m.overTwo(long, 0))
	}
	return max(m.overAligned(spans), m.overTwo(long, m.apart()))
}

// stretch returns the spans, sorted by To, as times since asked on the fastest clock that a node may have.
func (m *Model) stretch(asked int64, spans []Span) []Span {
	out := make([]Span, len(spans))
	for i, s := range spans {
		from, to := max(0, s.From-asked), max(0, s.To-asked)
		out[i] = Span{from + mulDiv(from, m.clocks.Drift, million), to + m.clocks.drift(to)}
	}
	return out
}

// overTwo returns the excess over windows of length P with any begin: two in less than P, and one more for each P. apart is
// how far clocks may differ.
func (m *Model) overTwo(long []Span, apart int64) int64 {
	two := addSat(m.n, m.n)
	over := overFlow(long, addSat(two, m.flowing(apart)), m.n, m.p)
	if m.p > apart {
		over = max(over, overAny(long, two, m.p-apart))
	}
	return over
}

// overFromStart returns the excess over windows that begin with the first hit of a new key.
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

// Under returns how many units at least were free at the worst denial, and its index: 0 if each denial may have been right.
// charges are all possible charges: admissions, and ambiguous requests, whose To is Open.
//
// A denial of a window or log needs N charges that count at that moment. They were sent before the denial was answered, and
// answered not earlier than the window's reach before the denial was sent: P, for the sliding counter 2 P, for the sliding
// window P and one sub-window. A denial of a bucket needs a level above B − 1; the level is highest when each charge comes
// as late as it can.
func (m *Model) Under(charges, denied []Span) (missing int64, which int) {
	if len(denied) == 0 {
		return 0, 0
	}
	froms, tos := make([]int64, len(charges)), make([]int64, len(charges))
	for i, c := range charges {
		froms[i], tos[i] = c.From, c.To
	}
	slices.Sort(froms)
	slices.Sort(tos)
	switch m.limit.Algorithm {
	case bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue:
		return m.underFlow(froms, tos, denied)
	}
	reach := m.reach()
	reach = addSat(reach, addSat(m.clocks.drift(reach), m.apart()))
	for i, d := range denied {
		count := upTo(froms, d.To) - upTo(tos, d.From-reach)
		if m.n-count > missing {
			missing, which = m.n-count, i
		}
	}
	return missing, which
}

// upTo returns how many of the sorted times are at most t.
func upTo(times []int64, t int64) int64 {
	at, _ := slices.BinarySearch(times, t+1)
	return int64(at)
}

// reach returns how long a charge can count, in ns.
func (m *Model) reach() int64 {
	switch m.limit.Algorithm {
	case bucket.SlidingCounter:
		return addSat(m.p, m.p)
	case bucket.SlidingWindow:
		n := int64(bucket.DefaultSubWindows)
		if m.limit.SubWindows > 0 {
			n = int64(m.limit.SubWindows)
		}
		return mulSat(n+1, (m.p+n-1)/n)
	}
	return m.p
}

// underFlow is Under of a bucket. The level just before a denial was sent is that of all charges that were answered by
// then; others that were sent before it was answered are added, undrained.
func (m *Model) underFlow(froms, tos []int64, denied []Span) (missing int64, which int) {
	order := make([]int, len(denied))
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(denied[a].From, denied[b].From) })
	var l level
	next := 0
	late := m.flowing(m.apart())
	for _, i := range order {
		d := denied[i]
		for ; next < len(tos) && tos[next] <= d.From; next++ {
			l.drain(m, tos[next])
			l.spent++
		}
		l.drain(m, d.From)
		used := addSat(l.spent+upTo(froms, d.To)-int64(next), late)
		if m.burst-used > missing {
			missing, which = m.burst-used, i
		}
	}
	return missing, which
}

// level is how full a bucket is at most at the time at: spent − part/p units, 0 ≤ part < p.
type level struct{ spent, part, at int64 }

// drain moves the level on to now, on the slowest clock that a node may have.
func (l *level) drain(m *Model, now int64) {
	if l.spent == 0 || now <= l.at {
		l.at = max(l.at, now)
		return
	}
	gone := now - l.at
	gone -= m.clocks.drift(gone)
	l.at = now
	units, part := divRest(gone, m.n, l.part, m.p)
	if units >= l.spent {
		l.spent, l.part = 0, 0
		return
	}
	l.spent, l.part = l.spent-units, part
}
