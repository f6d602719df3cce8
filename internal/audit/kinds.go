package audit

import (
	"cmp"
	"slices"
)

// ErrorKind counts errors of one kind.
type ErrorKind struct {
	Kind string `json:"kind"`
	// Attempts that failed so, and Final errors: checks that ended so, without an answer.
	Attempts int64 `json:"attempts"`
	Final    int64 `json:"final"`
	// Example is the first one's address and message.
	Example string `json:"example"`
}

// errorKinds are few.
type errorKinds []ErrorKind

// of returns the one of that kind, with an example at least.
func (e *errorKinds) of(kind, example string) *ErrorKind {
	i := slices.IndexFunc(*e, func(k ErrorKind) bool { return k.Kind == kind })
	if i < 0 {
		i = len(*e)
		*e = append(*e, ErrorKind{Kind: kind})
	}
	k := &(*e)[i]
	k.Example = cmp.Or(k.Example, example)
	return k
}

// merge adds another caller's, and keeps the most frequent first.
func (e *errorKinds) merge(other errorKinds) {
	for _, o := range other {
		k := e.of(o.Kind, o.Example)
		k.Attempts += o.Attempts
		k.Final += o.Final
	}
	slices.SortFunc(*e, func(a, b ErrorKind) int {
		return cmp.Or(cmp.Compare(b.Attempts, a.Attempts), cmp.Compare(a.Kind, b.Kind))
	})
}
