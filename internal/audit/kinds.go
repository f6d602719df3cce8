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

func (e *errorKinds) of(kind string) *ErrorKind {
	for i := range *e {
		if (*e)[i].Kind == kind {
			return &(*e)[i]
		}
	}
	*e = append(*e, ErrorKind{Kind: kind})
	return &(*e)[len(*e)-1]
}

func (e *errorKinds) add(kind, example string) {
	k := e.of(kind)
	if k.Attempts++; k.Example == "" {
		k.Example = example
	}
}

func (e *errorKinds) final(kind, example string) {
	k := e.of(kind)
	if k.Final++; k.Example == "" {
		k.Example = example
	}
}

// merge adds another caller's, and keeps the most frequent first.
func (e *errorKinds) merge(other errorKinds) {
	for _, o := range other {
		k := e.of(o.Kind)
		k.Attempts += o.Attempts
		k.Final += o.Final
		k.Example = cmp.Or(k.Example, o.Example)
	}
	slices.SortFunc(*e, func(a, b ErrorKind) int {
		return cmp.Or(cmp.Compare(b.Attempts, a.Attempts), cmp.Compare(a.Kind, b.Kind))
	})
}
