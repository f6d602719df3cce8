package limiter

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/sluice-project/sluice/internal/timing"
	"github.com/sluice-project/sluice/rules"
)

// Stats are counts since the Limiter was made, of checks of every verb.
type Stats struct {
	// Calls are calls of Check and Reset, rejected ones too.
	Calls uint64
	// Every check is counted once: as Allowed (Shadowed ones not among them),
	// Denied, Shadowed, or in Errors by code.
	Allowed, Denied, Shadowed uint64
	Errors                    map[Code]uint64
	// Rules are the same counts for each rule in force, sorted by domain and name.
	// They outlive reloads that keep the name.
	Rules []RuleStats
	// Unmatched are the checks that no rule matches, by domain: the domains of the rules in force, and
	// UnknownDomains for all others together. A check with its own limits is not among them.
	Unmatched map[string]uint64
	// Descriptors are the same counts for the descriptors of rules with detailed_metric or value_to_metric, by their names in
	// metrics: at most MaxDescriptorStats, and OtherDescriptors of each domain. They begin anew when the rules change.
	Descriptors []RuleStats
	// Pools are the pools of the rules in force, sorted by domain and name.
	Pools []PoolStats
	// Latency is that of calls of Check that were decided, APIs the same for each API.
	Latency timing.Snapshot
	APIs    []APILatency
}

// RuleStats are the counts of one rule or descriptor.
type RuleStats struct {
	Domain, Name                      string
	Allowed, Denied, Shadowed, Errors uint64
}

// sums counts checks by result.
type sums struct{ allowed, denied, shadowed, errors uint64 }

func (t *sums) add(r *Result) {
	switch {
	case r.Err != nil:
		t.errors++
	case r.Shadowed:
		t.shadowed++
	case r.Allowed:
		t.allowed++
	default:
		t.denied++
	}
}

// counts is a sums that many add to.
type counts struct{ allowed, denied, shadowed, errors atomic.Uint64 }

func (c *counts) add(t sums) {
	addIf(&c.allowed, t.allowed)
	addIf(&c.denied, t.denied)
	addIf(&c.shadowed, t.shadowed)
	addIf(&c.errors, t.errors)
}

// addIf spares the cache line when there is nothing to add.
func addIf(c *atomic.Uint64, n uint64) {
	if n > 0 {
		c.Add(n)
	}
}

// ruleName is what a rule's counts survive a reload under.
type ruleName struct{ domain, name string }

// ruleCounts are the counts of the rules of one rules.Set. Rules of one domain
// and name share theirs. The maps never change.
type ruleCounts struct {
	byRule map[*rules.Rule]*counts
	byName map[ruleName]*counts
}

// newRuleCounts returns counts for set, which may be nil, that go on from those
// of the set it replaces.
func newRuleCounts(set *rules.Set, before ruleCounts) ruleCounts {
	c := ruleCounts{byRule: make(map[*rules.Rule]*counts), byName: make(map[ruleName]*counts)}
	if set == nil {
		return c
	}
	for _, r := range set.Rules() {
		name := ruleName{r.Domain, r.Name}
		n := c.byName[name]
		if n == nil {
			if n = before.byName[name]; n == nil {
				n = new(counts)
			}
			c.byName[name] = n
		}
		c.byRule[r] = n
	}
	return c
}

func (c ruleCounts) snapshot() []RuleStats { return statsOf(c.byName) }

// Stats returns the counts since the Limiter was made.
func (s *Limiter) Stats() Stats {
	byAPI, all := s.apiLatencies()
	st := Stats{
		Calls:    s.calls.Load(),
		Allowed:  s.results.allowed.Load(),
		Denied:   s.results.denied.Load(),
		Shadowed: s.results.shadowed.Load(),
		Errors:   make(map[Code]uint64, len(checkCodes)),
		Rules:    s.rules.Load().counts.snapshot(),
		Pools:    s.rules.Load().poolStats(s.config.Clock()),
		Latency:  all,
		APIs:     byAPI,

		Descriptors: s.rules.Load().descriptors.snapshot(),
		Unmatched:   s.rules.Load().unmatchedStats(),
	}
	for _, c := range checkCodes {
		st.Errors[c] = s.failures[c].Load()
	}
	return st
}

// count adds a decided batch to the statistics.
func (s *Limiter) count(book *ruleBook, b *Batch) {
	var all, one sums
	var rule *rules.Rule
	for i := range b.Results {
		r := &b.Results[i]
		all.add(r)
		if r.Err != nil {
			s.failures[r.Err.Code].Add(1)
		}
		if r.unmatched {
			book.countUnmatched(b.Checks[i].Domain)
		}
		if r.Rule != rule {
			if rule != nil {
				book.counts.byRule[rule].add(one)
			}
			rule, one = r.Rule, sums{}
		}
		one.add(r)
		book.descriptors.add(book.set, s.config.Hasher, b, i)
		if r.asked {
			book.pools[r.Rule.Elastic.Pool].count(r)
		}
	}
	if rule != nil {
		book.counts.byRule[rule].add(one)
	}
	s.results.add(all)
}

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
// as the rules do, so that a change of the rules invalidates again. It is safe for concurrent use.
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
	var one sums
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

// UnknownDomains is what Stats.Unmatched calls the domains without rules.
const UnknownDomains = "(unknown)"

// newUnmatched returns counts for the domains of set, which may be nil, that go on from those before.
func newUnmatched(set *rules.Set, before map[string]*atomic.Uint64) map[string]*atomic.Uint64 {
	domains := []string{UnknownDomains}
	if set != nil {
		domains = append(domains, set.Domains()...)
	}
	counts := make(map[string]*atomic.Uint64, len(domains))
	for _, d := range domains {
		if counts[d] = before[d]; counts[d] == nil {
			counts[d] = new(atomic.Uint64)
		}
	}
	return counts
}

func (b *ruleBook) countUnmatched(domain string) {
	n := b.unmatched[domain]
	if n == nil {
		n = b.unmatched[UnknownDomains]
	}
	n.Add(1)
}

func (b *ruleBook) unmatchedStats() map[string]uint64 {
	out := make(map[string]uint64, len(b.unmatched))
	for domain, n := range b.unmatched {
		out[domain] = n.Load()
	}
	return out
}

// API is the way that a call came in by.
type API uint8

// The APIs. OtherAPI is any that does not say which it is.
const (
	OtherAPI API = iota
	// GRPCAPI is sluice.v1, StreamAPI its CheckStream, where every request is a call.
	GRPCAPI
	StreamAPI
	HTTPAPI
	EnvoyAPI
	GubernatorAPI
	ForwardAuthAPI

	// APIs is how many there are.
	APIs = int(ForwardAuthAPI) + 1
)

var apiNames = [APIs]string{"other", "grpc", "stream", "http", "envoy", "gubernator", "forward-auth"}

// String returns the API's name in metrics and traces.
func (d API) String() string {
	if int(d) >= APIs {
		d = OtherAPI
	}
	return apiNames[d]
}

// APILatency is how long calls of Check through one API took to decide.
type APILatency struct {
	API API
	timing.Snapshot
}

// apiOf returns what counts the calls of the API that b came in by.
func (s *Limiter) apiOf(b *Batch) *timing.Histogram {
	if int(b.API) >= APIs {
		return &s.latency[OtherAPI]
	}
	return &s.latency[b.API]
}

// apiLatencies returns the histograms of all APIs, and their sum.
func (s *Limiter) apiLatencies() (list []APILatency, all timing.Snapshot) {
	for i := range s.latency {
		one := APILatency{API(i), s.latency[i].Snapshot()}
		list = append(list, one)
		all.Add(one.Snapshot)
	}
	return list, all
}
