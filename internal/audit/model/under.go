package model

import (
	"cmp"
	"slices"

	"github.com/sluice-project/sluice/bucket"
)

// Under returns how many units at least were free when a check was denied, at the
// worst of the denials, and which one that is: 0 if each may have been right. charges are all that may
// have been charged: admissions, and requests that nobody knows the fate of, whose To is Open.
//
// A denial of a window or log needs N charges that count at that moment. Those can only be such that
// were sent before the denial was answered and were not answered more than the window's reach
// before the denial was sent: P, of the sliding counter 2 P, of the sliding window P and one sub-window.
// A denial of a bucket needs a level above B − 1; the level is highest when each charge comes as late as it can.
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

// reach returns for how long (ns) a charge can count.
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

// underFlow is Under of a bucket. The level just before a denial was sent is that of all
// charges that were answered by then; others that were sent before it was answered come on top, undrained.
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
