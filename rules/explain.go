package rules

import "fmt"

// Explanation says how Match chose the rule.
type Explanation struct {
	// Known: the domain has rules.
	Known bool
	// Levels has one element for each entry that was looked up; those after the first that nothing matched are not.
	Levels []Level
	// Rule is nil if none applies.
	Rule *Rule
	// Reason is one sentence about the result.
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
	// File and Line locate it; Line is 0 if the file has none.
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

// Explain returns the same rule as Match and says why.
func (s *Set) Explain(domain string, descriptor []Entry) Explanation {
	d := s.domains[domain]
	if d == nil {
		return Explanation{Reason: fmt.Sprintf("no rule file describes the domain %q", domain)}
	}
	n, x := &d.root, Explanation{Known: true}
	for i, e := range descriptor {
		level, to := n.explain(e)
		x.Levels = append(x.Levels, level)
		if to == nil {
			x.Reason = fmt.Sprintf("nothing matches %s at level %d", written(e), i+1)
			break
		}
		n = to
	}
	x.Rule, _ = s.Match(domain, descriptor)
	switch {
	case x.Reason != "":
	case len(descriptor) == 0:
		x.Reason = "the descriptor is empty"
	case n.rule != nil:
		x.Reason = fmt.Sprintf("the rule at %s:%d applies", n.file, n.line)
	default:
		x.Reason = fmt.Sprintf("%s at %s:%d has no limit of its own, only levels below it can have one", written(n.entry), n.file, n.line)
	}
	switch {
	case x.Rule != nil && x.Rule.Otherwise:
		x.Reason += fmt.Sprintf(", so otherwise at %s:%d applies", x.Rule.File, x.Rule.Line)
	case x.Rule == nil && d.unmatched == UnmatchedDeny:
		x.Reason += "; unmatched is deny"
	}
	return x
}

// explain is next, and returns what it compared too.
func (n *node) explain(e Entry) (Level, *node) {
	l := Level{Entry: e}
	try := func(how How, written string, to *node, matched bool) bool {
		t := Try{Written: written, How: how, Matched: matched}
		if to != nil {
			t.File, t.Line = to.file, to.line
		}
		l.Tries = append(l.Tries, t)
		return matched
	}
	if e.Value != "" {
		if to := n.exact[e]; try(ByValue, written(e), to, to != nil) {
			return l, to
		}
	}
	for _, w := range n.wild[e.Key] {
		if try(ByPattern, written(w.to.entry), w.to, w.matches(e.Value)) {
			return l, w.to
		}
	}
	to := n.byKey[e.Key]
	try(ByKey, e.Key, to, to != nil)
	return l, to
}

// written is e as test files and paths spell it.
func written(e Entry) string {
	if e.Value == "" {
		return e.Key
	}
	return e.Key + "=" + e.Value
}
