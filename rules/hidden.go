package rules

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
)

const (
	// maxWarnings is how many warnings a Set keeps, maxCompared how many levels are compared for
	// those about hidden rules.
	maxWarnings = 100
	maxCompared = 1 << 18
)

// hiding looks for values that hide rules of their key alone.
type hiding struct {
	set  *Set
	left int // of maxCompared
}

// warnOfHidden warns of each value that hides a rule of its key alone and has none instead: there
// is no backtracking, so such checks match nothing. A value that is unlimited and has no levels
// below, or has no limits at all, is exempt on purpose, and one whose rules are all deeper than
// those of its key is for longer descriptors. All files must have been read.
func (s *Set) warnOfHidden() {
	h := hiding{s, maxCompared}
	for _, name := range s.Domains() {
		h.look(&s.domains[name].root, name)
	}
}

func (h *hiding) look(n *node, path string) {
	if n.otherwise != nil {
		return // it limits what is hidden
	}
	for _, to := range n.children() {
		at := path + "/" + written(to.entry)
		exempt := to.rule != nil && to.rule.Unlimited && len(to.exact)+len(to.byKey) == 0
		if sibling := n.byKey[to.entry.Key]; sibling != nil && sibling != to && !exempt {
			if entries, rule := h.hidden(to, sibling, to.entry.Key); rule != nil {
				h.set.warnings = append(h.set.warnings, Warning{File: to.file, Line: to.line, Path: shorten(at), Text: fmt.Sprintf(
					"hides %s (%s:%d) and has no rule instead, so such checks match nothing; repeat the rule here, or add otherwise",
					shorten(entries), rule.file, rule.line)})
			}
		}
		h.look(to, at)
	}
}

// hidden returns the first node below sibling that has a rule while checks that reach n instead
// have none, and the entries that lead there. n is nil where no check arrives; the node is nil if
// there is none.
func (h *hiding) hidden(n, sibling *node, entries string) (string, *node) {
	if h.left <= 0 || n != nil && n.otherwise != nil {
		return "", nil
	}
	if n != nil {
		least, _ := h.depths(n)
		if _, most := h.depths(sibling); least > most {
			return "", nil // for longer descriptors, or exempt
		}
	}
	if sibling.rule != nil && (n == nil || n.rule == nil) || sibling.otherwise != nil {
		return entries, sibling
	}
	for _, below := range sibling.children() {
		var to *node
		if n != nil {
			to = n.next(below.entry)
		}
		if found, rule := h.hidden(to, below, entries+"/"+written(below.entry)); rule != nil {
			return found, rule
		}
	}
	return "", nil
}

// depths returns how far below n its nearest rule and its farthest level are. Without a rule
// nearest is above any farthest.
func (h *hiding) depths(n *node) (nearest, farthest int) {
	h.left--
	if nearest = MaxDepth + 1; n.rule != nil || n.otherwise != nil {
		nearest = 0
	}
	for _, list := range [...]iter.Seq[*node]{maps.Values(n.exact), maps.Values(n.byKey)} {
		for below := range list {
			near, far := h.depths(below)
			nearest, farthest = min(nearest, near+1), max(farthest, far+1)
		}
	}
	return nearest, farthest
}

// children returns the levels below n in the order of the files.
func (n *node) children() []*node {
	list := make([]*node, 0, len(n.exact)+len(n.byKey))
	for _, to := range n.exact {
		list = append(list, to)
	}
	for _, to := range n.byKey {
		list = append(list, to)
	}
	slices.SortFunc(list, func(a, b *node) int { return cmp.Or(cmp.Compare(a.file, b.file), cmp.Compare(a.line, b.line)) })
	return list
}

// boundWarnings keeps the first warnings, and says how many more there are.
func (s *Set) boundWarnings() {
	if more := len(s.warnings) - maxWarnings; more > 0 {
		last := s.warnings[maxWarnings]
		s.warnings = append(s.warnings[:maxWarnings:maxWarnings], Warning{File: last.File, Line: last.Line, Text: fmt.Sprintf("and %d more warnings", more)})
	}
}
