package limiter

import (
	"cmp"
	"slices"
	"sync"

	"github.com/sluice-project/sluice/rules"
)

const (
	// MaxDescriptorStats is how many descriptors have counts of their own in Stats. Those that come after them are counted
	// together, for each domain.
	MaxDescriptorStats = 1000
	// OtherDescriptors is the name of what is counted together.
	OtherDescriptors = "other"
	// maxDescriptorName is how many bytes the name of a descriptor with counts of its own has.
	maxDescriptorName = 512
)

// descriptorCounts counts the checks of rules with detailed_metric or value_to_metric by the values that came. It lives as long
// as the rules do, so that a change of the rules makes room again. It is safe for concurrent use.
type descriptorCounts struct {
	// of are the rules that have more than one name. It never changes.
	of map[*rules.Rule]bool
	mu struct {
		sync.RWMutex
		byName map[ruleName]*counts
	}
}

// newDescriptorCounts returns the counts of set, nil if none of its rules wants any.
func newDescriptorCounts(set *rules.Set) *descriptorCounts {
	if set == nil {
		return nil
	}
	d := &descriptorCounts{of: make(map[*rules.Rule]bool)}
	for _, r := range set.Rules() {
		if r.PerValueMetric() {
			d.of[r] = true
		}
	}
	if len(d.of) == 0 {
		return nil
	}
	d.mu.byName = make(map[ruleName]*counts)
	return d
}

// add counts the result of check i of b.
func (d *descriptorCounts) add(set *rules.Set, h Hasher, b *Batch, i int) {
	r, c := &b.Results[i], &b.Checks[i]
	if d == nil || !d.of[r.Rule] {
		return
	}
	b.key = r.Rule.AppendMetric(b.key[:0], c.Descriptor, func(dst []byte, at int, e rules.Entry) []byte {
		return h.AppendShown(dst, set, r.Rule, c.Domain, at, e)
	})
	var one tally
	one.add(r)
	d.named(c.Domain, b.key).add(one)
}

// named returns the counts of a name.
func (d *descriptorCounts) named(domain string, name []byte) *counts {
	d.mu.RLock()
	n := d.mu.byName[ruleName{domain, string(name)}]
	d.mu.RUnlock()
	if n != nil {
		return n
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	key := ruleName{domain, string(name)}
	if d.mu.byName[key] == nil && (len(name) > maxDescriptorName || len(d.mu.byName) >= MaxDescriptorStats) {
		key.name = OtherDescriptors
	}
	n = d.mu.byName[key]
	if n == nil {
		n = new(counts)
		d.mu.byName[key] = n
	}
	return n
}

// snapshot returns the counts, sorted by domain and name.
func (d *descriptorCounts) snapshot() []RuleStats {
	if d == nil {
		return nil
	}
	d.mu.RLock()
	defer d.mu.RUnlock()
	return statsOf(d.mu.byName)
}

// statsOf returns counts by name, sorted by domain and name.
func statsOf(byName map[ruleName]*counts) []RuleStats {
	list := make([]RuleStats, 0, len(byName))
	for name, n := range byName {
		list = append(list, RuleStats{
			Domain: name.domain, Name: name.name,
			Allowed: n.allowed.Load(), Denied: n.denied.Load(), Shadowed: n.shadowed.Load(), Errors: n.errors.Load(),
		})
	}
	slices.SortFunc(list, func(a, b RuleStats) int {
		return cmp.Or(cmp.Compare(a.Domain, b.Domain), cmp.Compare(a.Name, b.Name))
	})
	return list
}
