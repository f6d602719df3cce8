package model

import "slices"

// Windows aligned to the epoch. A window of a node's clock begins within Clocks.Error
// of where it begins by the clock of the log, so that a decision belongs certainly to a window if it was
// made at least that far from both its ends.

// overAligned holds the spans to N in each window, and to 2 N in each two that follow
// each other: those who may belong to either of the two count there.
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

// within returns the last window k that certainly had begun when s was decided, and
// whether s certainly was decided before the windows k to k + count − 1 had ended.
func (m *Model) within(s Span, count int64) (k int64, certain bool) {
	k = floorDiv(s.From-int64(m.clocks.Error), m.p)
	return k, s.To < m.border(k+count)-int64(m.clocks.Error)
}

// border returns where window k begins.
func (m *Model) border(k int64) int64 { return k * m.p }

// overWeighted holds the spans, which are sorted by To, to the sliding counter's formula: it
// admits while ⌊before·(P − e)/P⌋ + current < N. What is before is at least what was certainly admitted in the
// window before, the age e at most what the clocks allow; and the bound only rises with e.
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
			continue // overAligned has seen to it
		}
		for i, to := range windows[k] {
			age := min(m.p, to-m.border(k)+int64(m.clocks.Error))
			over = max(over, int64(i)+1+mulDiv(before, m.p-age, m.p)-m.n)
		}
	}
	return over
}
