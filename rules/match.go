package rules

import "strings"

// node is one level of a domain's tree.
type node struct {
	// exact holds the children with a value, patterns among them under their
	// literal text; byKey those without. wild holds the patterns of a key in
	// the files' order.
	exact map[Entry]*node
	wild  map[string][]wildcard
	byKey map[string]*node
	// rule is nil when the level only leads to others.
	rule *Rule

	entry Entry
	file  string
	line  int
}

// wildcard is a value in which * stands for any characters, none too: it begins
// with first, ends with last, and has the middle parts between them in order.
type wildcard struct {
	first, last string
	middle      []string
	least       int // the length that first and last take
	to          *node
}

func newWildcard(pattern string, to *node) wildcard {
	parts := strings.Split(pattern, "*")
	first, last := parts[0], parts[len(parts)-1]
	return wildcard{first: first, last: last, middle: parts[1 : len(parts)-1], least: len(first) + len(last), to: to}
}

func (w *wildcard) matches(s string) bool {
	if len(s) < w.least || !strings.HasPrefix(s, w.first) || !strings.HasSuffix(s, w.last) {
		return false
	}
	s = s[len(w.first) : len(s)-len(w.last)]
	for _, part := range w.middle {
		at := strings.Index(s, part)
		if at < 0 {
			return false
		}
		s = s[at+len(part):]
	}
	return true
}

// next returns the child that e leads to: the exact key and value, else the
// first pattern in the files' order, else the key alone.
func (n *node) next(e Entry) *node {
	if e.Value != "" {
		if to := n.exact[e]; to != nil {
			return to
		}
	}
	patterns := n.wild[e.Key]
	for i := range patterns {
		if patterns[i].matches(e.Value) {
			return patterns[i].to
		}
	}
	return n.byKey[e.Key]
}

// Match returns the rule that applies to descriptor, nil if none does, and
// whether the domain has rules at all. The descriptor must be as deep as the rule: a
// longer or shorter one is not matched by it. There is no way back from a level: a value
// that is named there hides the rules of its key alone. Match does not allocate.
func (s *Set) Match(domain string, descriptor []Entry) (rule *Rule, known bool) {
	n := s.domains[domain]
	if n == nil {
		return nil, false
	}
	for _, e := range descriptor {
		if n = n.next(e); n == nil {
			return nil, true
		}
	}
	return n.rule, true
}
