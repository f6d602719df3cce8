package regions

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
)

// maxRules is the most rules of a response. Of more, the rest are compared by the sum of all only.
const maxRules = 256

// Rules are what regions must agree on: the rules of global limits, and the weights. It is immutable.
type Rules struct {
	sum   uint64 // of all, not 0
	rules map[string]message.GlobalRule
}

// NewRules returns Rules of these rules, seen from a region with this list.
func NewRules(l *List, list []message.GlobalRule) *Rules {
	weights := ""
	for _, name := range slices.Sorted(maps.Keys(l.weights)) {
		if l.weights[name] != 1 {
			weights += fmt.Sprint(name, "=", l.weights[name], " ")
		}
	}
	r := &Rules{rules: map[string]message.GlobalRule{}}
	for _, g := range append(slices.Clone(list), message.GlobalRule{Name: "--region-weights", Sum: check.HashOf(weights)}) {
		r.rules[g.Name] = g
	}
	all := ""
	for _, name := range slices.Sorted(maps.Keys(r.rules)) {
		all += fmt.Sprintln(r.rules[name])
	}
	r.sum = check.HashOf(all)
	return r
}

// Request returns the request of a node with these rules, which may be nil.
func (r *Rules) Request() *message.RegionRequest {
	if r == nil {
		return new(message.RegionRequest)
	}
	return &message.RegionRequest{Rules: r.sum}
}

// Answer adds to a what the sender of q needs to compare its rules with r, which may be nil.
func (r *Rules) Answer(q *message.RegionRequest, a *message.RegionResponse) {
	if r == nil {
		return
	}
	if a.Rules = r.sum; q.Rules != 0 && q.Rules != r.sum {
		for _, name := range slices.Sorted(maps.Keys(r.rules))[:min(maxRules, len(r.rules))] {
			a.Globals = append(a.Globals, r.rules[name])
		}
	}
}

// differs says in which rule a, the answer of a node of the region there, differs from r; "" if in none, or if either has told nothing.
func (r *Rules) differs(here, there string, a *message.RegionResponse) string {
	if r == nil || a.Rules == 0 || a.Rules == r.sum {
		return ""
	}
	theirs, last := map[string]message.GlobalRule{}, ""
	for _, g := range a.Globals {
		theirs[g.Name] = g
		last = max(last, g.Name)
	}
	names := slices.Concat(slices.Collect(maps.Keys(r.rules)), slices.Collect(maps.Keys(theirs)))
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		ours, has := r.rules[name]
		other, known := theirs[name]
		switch {
		case ours == other, len(theirs) >= maxRules && name > last:
		case strings.HasPrefix(name, "--"):
			return fmt.Sprintf("%s differ: give both regions the same", name)
		case !known:
			return fmt.Sprintf("rule %q is not global in region %s: give both regions the same rules", name, there)
		case !has:
			return fmt.Sprintf("rule %q is not global in region %s: give both regions the same rules", name, here)
		case ours.Home != other.Home:
			return fmt.Sprintf("rule %q has home %s in region %s, and %s in region %s; checks that reach another home are answered by on_failure: give both regions the same rules", name, ours.Home, here, other.Home, there)
		default:
			return fmt.Sprintf("rule %q has other limits in region %s: give both regions the same rules", name, there)
		}
	}
	return "rules of global limits differ: give both regions the same"
}
