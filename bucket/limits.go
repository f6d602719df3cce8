package bucket

import (
	"fmt"
	"slices"
	"sync/atomic"
)

// Limits is an immutable, validated set of limits that one key is held to
// together. Interned values compare by pointer first.
type Limits struct {
	list  []Limit
	plans []plan
	// unlimited: no limit can deny. stateless: no limit can count.
	unlimited, stateless bool
	// shared is the last result of Share: a node divides by the same number until
	// the membership changes.
	shared atomic.Pointer[share]
	// window is the result of endless.
	window atomic.Pointer[Limits]
}

// share is the Limits of one of n nodes.
type share struct {
	n      int
	limits *Limits
}

// MaxLimits is the most limits that one key can have.
const MaxLimits = 16

// FieldError says which field of a Limit is wrong.
type FieldError struct {
	// Index is the limit's place in the set.
	Index int
	// Field is its name as rule files spell it, for example "period".
	Field  string
	Reason string
}

func (e *FieldError) Error() string { return e.Field + ": " + e.Reason }

// NewLimits validates list (1 to MaxLimits limits) and prepares it for use.
// The error is a *FieldError.
func NewLimits(list ...Limit) (*Limits, error) {
	if len(list) == 0 || len(list) > MaxLimits {
		return nil, &FieldError{Field: "limits", Reason: fmt.Sprintf("there are %d; give 1 to %d", len(list), MaxLimits)}
	}
	l := &Limits{list: slices.Clone(list), plans: make([]plan, len(list)), unlimited: true, stateless: true}
	for i := range l.list {
		cal, err := l.list[i].validate()
		if err != nil {
			err.Index = i
			return nil, err
		}
		p := l.list[i].compile(cal)
		l.plans[i] = p
		l.unlimited = l.unlimited && p.kind == kindUnlimited
		l.stateless = l.stateless && p.stateless()
	}
	return l, nil
}

// Len returns the number of limits.
func (l *Limits) Len() int { return len(l.list) }

// At returns limit i.
func (l *Limits) At(i int) Limit { return l.list[i] }

// Equal reports whether both hold equal limits in the same order.
func (l *Limits) Equal(m *Limits) bool { return l == m || slices.Equal(l.list, m.list) }

// Unlimited reports whether no limit of the set can deny or count.
func (l *Limits) Unlimited() bool { return l.unlimited }

// Share returns the limits divided by n, rounded down (n at least 1), for a node that
// answers alone. Counts and bursts that become 0 block. Unlimited limits and
// minimum intervals stay as they are.
func (l *Limits) Share(n int) *Limits {
	if n <= 1 {
		return l
	}
	if s := l.shared.Load(); s != nil && s.n == n {
		return s.limits
	}
	m := &Limits{list: slices.Clone(l.list), plans: make([]plan, len(l.list)), unlimited: l.unlimited, stateless: true}
	for i := range m.list {
		part := &m.list[i]
		part.Count /= int64(n)
		if part.Burst > 0 {
			part.Burst /= int64(n)
			// A burst of 0 would mean the default, which is more than nothing.
			if part.Burst == 0 {
				part.Count = 0
			}
		}
		m.plans[i] = part.compile(l.plans[i].cal)
		m.stateless = m.stateless && m.plans[i].stateless()
	}
	l.shared.Store(&share{n, m})
	return m
}
