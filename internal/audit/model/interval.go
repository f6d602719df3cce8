package model

import (
	"cmp"
	"math"
	"slices"
)

// overFlow returns the excess of the spans, sorted by To, over a flow: for all times a ≤ b, the spans within [a, b] are at
// most burst + n·(b − a)/p.
//
// For a fixed a, p · spans within [a, b] + n·a ≤ burst·p + n·b. In the order of b, a tree keeps the maximum of the left side
// over all a, so that all pairs take n log n steps.
func overFlow(spans []Span, burst, n, p int64) int64 {
	spans, p = coarsen(spans, n, p)
	if p == 0 || int64(len(spans)) <= burst {
		return 0
	}
	byFrom := make([]int32, len(spans))
	for i := range byFrom {
		byFrom[i] = int32(i)
	}
	slices.SortFunc(byFrom, func(a, b int32) int { return cmp.Compare(spans[a].From, spans[b].From) })
	place := make([]int32, len(spans))
	for at, i := range byFrom {
		place[i] = int32(at)
	}

	tree := newSuffixes(len(spans))
	over := int64(0)
	for i, s := range spans {
		tree.put(int(place[i]), p, n*s.From)
		// In units of 1/p, rounded up, since whole units were admitted.
		excess := tree.best() - n*s.To
		if whole := excess / p; excess > 0 && whole >= burst {
			if excess%p != 0 {
				whole++
			}
			over = max(over, whole-burst)
		}
	}
	return over
}

// coarsen returns the spans and the period in ticks so long that no product overflows: starts and the period rounded down,
// ends up, so the flow is never less. A period of 0 ticks means that the flow is too fast for a verdict.
func coarsen(spans []Span, n, p int64) ([]Span, int64) {
	if len(spans) == 0 {
		return spans, p
	}
	const room = 1 << 61
	last := spans[len(spans)-1].To
	shift := 0
	for mulSat(int64(len(spans)), p>>shift) > room || mulSat(n, last>>shift+1) > room {
		if shift++; p>>shift == 0 {
			return nil, 0
		}
	}
	if shift == 0 {
		return spans, p
	}
	out := make([]Span, len(spans))
	for i, s := range spans {
		out[i] = Span{s.From >> shift, (s.To + 1<<shift - 1) >> shift}
	}
	return out, p >> shift
}

// suffixes is a tree over indexes 0 to n − 1, each with a weight and an offset once it is put. best is the maximum, over
// all indexes that were put, of the index's offset and the weights from it on.
type suffixes struct {
	leaves int
	nodes  []suffix
}

type suffix struct{ sum, best int64 }

// none is less than any value that is put, and does not overflow in sums.
const none = math.MinInt64 / 2

func newSuffixes(n int) *suffixes {
	leaves := 1
	for leaves < n {
		leaves *= 2
	}
	t := &suffixes{leaves, make([]suffix, 2*leaves)}
	for i := range t.nodes {
		t.nodes[i].best = none
	}
	return t
}

func (t *suffixes) put(place int, weight, offset int64) {
	i := t.leaves + place
	t.nodes[i] = suffix{weight, weight + offset}
	for i /= 2; i > 0; i /= 2 {
		left, right := t.nodes[2*i], t.nodes[2*i+1]
		t.nodes[i] = suffix{left.sum + right.sum, max(left.best+right.sum, right.best)}
	}
}

func (t *suffixes) best() int64 { return t.nodes[1].best }

// overAny returns the excess of the spans, sorted by To, over count in any time shorter than period.
func overAny(spans []Span, count, period int64) int64 {
	if int64(len(spans)) <= count {
		return 0
	}
	starts := make([]int64, len(spans))
	for i, s := range spans {
		starts[i] = s.From
	}
	slices.Sort(starts)
	seen := make(counts, len(starts)+1)
	over := int64(0)
	for i, s := range spans {
		at, _ := slices.BinarySearch(starts, s.From)
		seen.add(at)
		// Spans that have ended by now and began less than a period ago.
		early, _ := slices.BinarySearch(starts, s.To-period+1)
		over = max(over, int64(i)+1-seen.below(early)-count)
	}
	return over
}

// counts is a Fenwick tree of n indexes, of length n + 1: how many were added below an index.
type counts []int64

func (c counts) add(place int) {
	for i := place + 1; i < len(c); i += i & -i {
		c[i]++
	}
}

func (c counts) below(place int) (sum int64) {
	for i := place; i > 0; i -= i & -i {
		sum += c[i]
	}
	return sum
}
