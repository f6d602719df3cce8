package limiter

import (
	"slices"
	"sync"

	"github.com/sluicecluster/sluice/rules"
)

const (
	// MaxNames is the number of rules, and of descriptors, with counts of their own in Stats. Later
	// ones share one per domain, named OtherNames, and so do those with names of more than
	// maxNameBytes bytes.
	MaxNames     = 1000
	OtherNames   = "other"
	maxNameBytes = 512
)

// namedCounts are counts by name, from the first use of each on. They are safe for concurrent use.
type namedCounts struct {
	mu struct {
		sync.RWMutex
		byName map[ruleName]*counts
	}
}

// named returns the counts of a name. own, if not nil, become its counts if it has none and gets
// some of its own.
func (d *namedCounts) named(name ruleName, own *counts) *counts {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.mu.byName == nil {
		d.mu.byName = make(map[ruleName]*counts)
	}
	if d.mu.byName[name] == nil && (len(name.name) > maxNameBytes || len(d.mu.byName) >= MaxNames || name.name == OtherNames) {
		name.name, own = OtherNames, nil
	}
	n := d.mu.byName[name]
	if n == nil {
		if n = own; n == nil {
			n = new(counts)
		}
		d.mu.byName[name] = n
	}
	return n
}

// addRule adds t to the counts n of a rule, and to those that it is shown with.
func (d *namedCounts) addRule(r *rules.Rule, n *counts, t Results) {
	shown := n.shown.Load()
	if shown == nil {
		shown = d.named(ruleName{r.Domain, r.Name}, n)
		n.shown.Store(shown)
	}
	if n.add(t); shown != n {
		shown.add(t)
	}
}

// keep drops the counts of rules that are not among c, and of domains without any.
func (d *namedCounts) keep(c ruleCounts) {
	domains := make(map[string]bool)
	for name := range c.byName {
		domains[name.domain] = true
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, n := range d.mu.byName {
		if c.byName[name] != n && !(name.name == OtherNames && domains[name.domain]) {
			delete(d.mu.byName, name)
		}
	}
}

// stats returns the counts, sorted by domain and name.
func (d *namedCounts) stats() []RuleStats {
	d.mu.RLock()
	defer d.mu.RUnlock()
	list := make([]RuleStats, 0, len(d.mu.byName))
	for name, n := range d.mu.byName {
		list = append(list, RuleStats{name.domain, name.name, n.results()})
	}
	slices.SortFunc(list, func(a, b RuleStats) int { return ruleName{a.Domain, a.Name}.compare(ruleName{b.Domain, b.Name}) })
	return list
}

// descriptorCounts counts the checks of rules with detailed_metric or value_to_metric by their
// values. It lives as long as the rules do. It is safe for concurrent use.
type descriptorCounts struct {
	// of are these rules. It never changes.
	of map[*rules.Rule]bool
	namedCounts
}

// newDescriptorCounts returns the counts of set, which may be nil.
func newDescriptorCounts(set *rules.Set) *descriptorCounts {
	d := &descriptorCounts{of: make(map[*rules.Rule]bool)}
	if set != nil {
		for _, r := range set.Rules() {
			if r.PerValueMetric() {
				d.of[r] = true
			}
		}
	}
	return d
}

// add counts check i of b, whose result is of.
func (d *descriptorCounts) add(set *rules.Set, h Hasher, b *Batch, i, of int) {
	r, c := &b.Results[i], &b.Checks[i]
	if len(d.of) == 0 || !d.of[r.Rule] {
		return
	}
	b.key = r.Rule.AppendMetric(b.key[:0], c.Descriptor, func(dst []byte, at int, e rules.Entry) []byte {
		return h.AppendShown(dst, set, r.Rule, c.Domain, at, e)
	})
	d.mu.RLock()
	n := d.mu.byName[ruleName{c.Domain, string(b.key)}] // without a copy of the key
	d.mu.RUnlock()
	if n == nil {
		n = d.named(ruleName{c.Domain, string(b.key)}, nil)
	}
	n.of[of].Add(1)
}
