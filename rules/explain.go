package rules

import "fmt"

// Explanation tells how Match came to its answer.
type Explanation struct {
	// Known: the domain has rules.
	Known bool
	// Levels has one element for each entry that was looked up; those after the
	// first that nothing matched are not.
	Levels []Level
	// Rule is the answer, nil if there is none.
	Rule *Rule
	// Reason is one sentence about the answer.
	Reason string
}

// Level is one entry of the descriptor and what it was compared with, in order.
type Level struct {
	Entry Entry
	Tries []Try
}

// Try is one comparison.
type Try struct {
	// Written is what the file has, for example "path=/api/*" or "path".
	Written string
	How     How
	Matched bool
	// File and Line say where it is written; Line is 0 if nothing is there.
	File string
	Line int
}

// How says what kind of comparison a Try is.
type How string

// The comparisons of a level, in their order.
const (
	ByValue   How = "key and value"
	ByPattern How = "pattern"
	ByKey     How = "key alone"
)

// Explain answers as Match does and says why.
func (s *Set) Explain(domain string, descriptor []Entry) Explanation {
	n := s.domains[domain]
	if n == nil {
		return Explanation{Reason: fmt.Sprintf("no rule file describes the domain %q", domain)}
	}
	x := Explanation{Known: true}
	for i, e := range descriptor {
		level, to := n.explain(e)
		x.Levels = append(x.Levels, level)
		if to == nil {
			x.Reason = fmt.Sprintf("nothing matches %s at level %d", written(e), i+1)
			return x
		}
		n = to
	}
	x.Rule = n.rule
	switch {
	case len(descriptor) == 0:
		x.Reason = "the descriptor is empty"
	case n.rule != nil:
		x.Reason = fmt.Sprintf("the rule at %s:%d applies", n.file, n.line)
	default:
		x.Reason = fmt.Sprintf("%s at %s:%d has no limit of its own, only levels below it can have one", written(n.entry), n.file, n.line)
	}
	return x
}

// explain is next, and tells what was compared.
func (n *node) explain(e Entry) (Level, *node) {
	l := Level{Entry: e}
	try := func(how How, written string, to *node, matched bool) *node {
		t := Try{Written: written, How: how, Matched: matched}
		if to != nil {
			t.File, t.Line = to.file, to.line
		}
		l.Tries = append(l.Tries, t)
		if matched {
			return to
		}
		return nil
	}
	if e.Value != "" {
		to := n.exact[e]
		if to = try(ByValue, written(e), to, to != nil); to != nil {
			return l, to
		}
	}
	patterns := n.wild[e.Key]
	for i := range patterns {
		to := patterns[i].to
		if to = try(ByPattern, written(to.entry), to, patterns[i].matches(e.Value)); to != nil {
			return l, to
		}
	}
	to := n.byKey[e.Key]
	to = try(ByKey, e.Key, to, to != nil)
	return l, to
}

func written(e Entry) string {
	if e.Value == "" {
		return e.Key
	}
	return e.Key + "=" + e.Value
}
