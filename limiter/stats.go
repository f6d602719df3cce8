package limiter

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/internal/timing"
	"github.com/sluice-project/sluice/rules"
)

// Stats are counts since the Limiter was made, of checks of every verb.
type Stats struct {
	// Calls are calls of Check, rejected ones too.
	Calls uint64
	// Every check is counted once: as Allowed (without Shadowed ones), Denied, Shadowed, or in Errors by code.
	Allowed, Denied, Shadowed uint64
	Errors                    map[Code]uint64
	// Rules are these counts for each rule in force, sorted by domain and name. They outlive reloads that keep the name.
	Rules []RuleStats
	// Unmatched are the checks that no rule matches, by domain of the rules in force, and UnknownDomains for all other
	// domains. Checks with their own limits do not count, nor those of domains that allow such checks.
	Unmatched map[string]uint64
	// Descriptors are these counts for the descriptors of rules with detailed_metric or value_to_metric, by their names in
	// metrics: at most MaxDescriptorStats, and OtherDescriptors of each domain. They restart when the rules change.
	Descriptors []RuleStats
	// Pools are those of the rules in force, sorted by domain and name.
	Pools []PoolStats
	// Reservations are counts of reservations through this node.
	Reservations ReservationStats
	// Latency is that of decided calls of Check, APIs the same for each API.
	Latency timing.Snapshot
	APIs    []APILatency
}

// ReservationStats counts reservations by what was asked of this node. Unknown are settlements of reservations that no owner knows any
// more. Reserved and Charged are units of each check.
type ReservationStats struct {
	Made, Denied                     uint64
	Settled, Late, Repeated, Unknown uint64
	Reserved, Charged                uint64
}

// reservationCounts is a ReservationStats for concurrent use.
type reservationCounts struct {
	made, denied, settled, late, repeated, unknown, reserved, charged atomic.Uint64
}

// ended counts a settlement.
func (c *reservationCounts) ended(s *Settlement) {
	switch {
	case s.Repeated:
		c.repeated.Add(1)
		return
	case s.Late:
		c.late.Add(1)
	default:
		c.settled.Add(1)
	}
	c.charged.Add(uint64(s.Charged))
}

func (c *reservationCounts) stats() ReservationStats {
	return ReservationStats{
		Made: c.made.Load(), Denied: c.denied.Load(), Settled: c.settled.Load(), Late: c.late.Load(), Repeated: c.repeated.Load(),
		Unknown: c.unknown.Load(), Reserved: c.reserved.Load(), Charged: c.charged.Load(),
	}
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

// counts is a sums for concurrent use.
type counts struct {
	allowed, denied, shadowed, errors atomic.Uint64
	// usage is nil for descriptors, and until a reservation of the rule is settled.
	usage atomic.Pointer[usage]
}

func (c *counts) add(t sums) {
	addIf(&c.allowed, t.allowed)
	addIf(&c.denied, t.denied)
	addIf(&c.shadowed, t.shadowed)
	addIf(&c.errors, t.errors)
}

// addIf does not touch the cache line when there is nothing to add.
func addIf(c *atomic.Uint64, n uint64) {
	if n > 0 {
		c.Add(n)
	}
}

// ruleName identifies the counts of a rule or pool across reloads.
type ruleName struct{ domain, name string }

func (n ruleName) compare(m ruleName) int {
	return cmp.Or(cmp.Compare(n.domain, m.domain), cmp.Compare(n.name, m.name))
}

// ruleCounts are the counts of the rules of one rules.Set. Rules of one domain and name share theirs. The maps never change.
type ruleCounts struct {
	byRule map[*rules.Rule]*counts
	byName map[ruleName]*counts
	byHash map[uint64]*counts
}

// newRuleCounts returns counts for set, which may be nil, that continue those before.
func newRuleCounts(set *rules.Set, before ruleCounts) ruleCounts {
	c := ruleCounts{make(map[*rules.Rule]*counts), make(map[ruleName]*counts), make(map[uint64]*counts)}
	if set == nil {
		return c
	}
	for _, r := range set.Rules() {
		name := ruleName{r.Domain, r.Name}
		n := cmp.Or(c.byName[name], before.byName[name])
		if n == nil {
			n = new(counts)
		}
		c.byName[name], c.byRule[r], c.byHash[name.hash()] = n, n, n
	}
	return c
}

// Stats returns the counts since the Limiter was made.
func (l *Limiter) Stats() Stats {
	active, all := l.rules.Load(), l.results.load()
	st := Stats{
		Calls: l.calls.Load(), Allowed: all.Allowed, Denied: all.Denied, Shadowed: all.Shadowed,
		Errors: make(map[Code]uint64, len(checkCodes)), Unmatched: make(map[string]uint64, len(active.unmatched)),
		Rules: statsOf(active.counts.byName), Descriptors: active.descriptors.snapshot(), Pools: active.poolStats(l.config.Clock()),
		Reservations: l.reserved.stats(),
	}
	st.APIs, st.Latency = l.apiLatencies()
	for _, c := range checkCodes {
		st.Errors[c] = l.failures[c].Load()
	}
	for domain, n := range active.unmatched {
		st.Unmatched[domain] = n.Load()
	}
	return st
}

// count adds a batch that was decided at now to the statistics.
func (l *Limiter) count(now time.Duration, active *activeRules, b *Batch) {
	var all, one sums
	var rule *rules.Rule
	for i := range b.Results {
		r := &b.Results[i]
		all.add(r)
		if r.Err != nil {
			l.failures[r.Err.Code].Add(1)
		}
		if r.unmatched > rules.UnmatchedAllow {
			domain := b.Checks[i].Domain
			if active.unmatched[domain] == nil {
				domain = UnknownDomains
			}
			active.unmatched[domain].Add(1)
			l.unmatchedLog.log(now, domain, &b.Checks[i], r.unmatched)
		}
		if r.Rule != rule {
			if rule != nil {
				active.counts.byRule[rule].add(one)
			}
			rule, one = r.Rule, sums{}
		}
		one.add(r)
		active.descriptors.add(active.set, l.config.Hasher, b, i)
		if r.poolAsked {
			pool := active.pools[r.Rule.Elastic.Pool]
			if r.Elastic {
				pool.admitted.Add(1)
			} else {
				pool.denied.Add(1)
			}
		}
	}
	if rule != nil {
		active.counts.byRule[rule].add(one)
	}
	l.results.add(all)
}

const (
	// MaxDescriptorStats is the number of descriptors with counts of their own in Stats. Later ones share one per domain,
	// named OtherDescriptors, and so do those with names of more than maxDescriptorName bytes.
	MaxDescriptorStats = 1000
	OtherDescriptors   = "other"
	maxDescriptorName  = 512
)

// descriptorCounts counts the checks of rules with detailed_metric or value_to_metric by their values. It lives as long as the
// rules do. It is safe for concurrent use.
type descriptorCounts struct {
	// of are these rules. It never changes.
	of map[*rules.Rule]bool
	mu struct {
		sync.RWMutex
		byName map[ruleName]*counts
	}
}

// newDescriptorCounts returns the counts of set, nil if it is nil or has no such rules.
func newDescriptorCounts(set *rules.Set) *descriptorCounts {
	d := &descriptorCounts{of: make(map[*rules.Rule]bool)}
	if set != nil {
		for _, r := range set.Rules() {
			if r.PerValueMetric() {
				d.of[r] = true
			}
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
		c := n.load()
		list = append(list, RuleStats{name.domain, name.name, c.Allowed, c.Denied, c.Shadowed, c.Failed})
	}
	slices.SortFunc(list, func(a, b RuleStats) int { return ruleName{a.Domain, a.Name}.compare(ruleName{b.Domain, b.Name}) })
	return list
}

// UnknownDomains is the key of domains without rules in Stats.Unmatched.
const UnknownDomains = "(unknown)"

// newUnmatched returns counts for the domains of set, which may be nil, that continue those before.
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

// API is the one that received a call.
type API uint8

// The APIs. OtherAPI is the zero value, and APIs their number.
const (
	OtherAPI  API = iota
	GRPCAPI       // sluice.v1
	StreamAPI     // its CheckStream, where every request is a call
	HTTPAPI
	EnvoyAPI
	GubernatorAPI
	ForwardAuthAPI
	APIs = int(iota)
)

var apiNames = [APIs]string{"other", "grpc", "stream", "http", "envoy", "gubernator", "forward-auth"}

// String returns the API's name in metrics and traces.
func (d API) String() string {
	if int(d) >= APIs {
		d = OtherAPI
	}
	return apiNames[d]
}

// APILatency is the latency of decided calls of Check through one API.
type APILatency struct {
	API API
	timing.Snapshot
}

// apiLatencies returns the histograms of all APIs, and their sum.
func (l *Limiter) apiLatencies() (list []APILatency, all timing.Snapshot) {
	for i := range l.latency {
		one := APILatency{API(i), l.latency[i].Snapshot()}
		list = append(list, one)
		all.Add(one.Snapshot)
	}
	return list, all
}
