package limiter

import (
	"cmp"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/timing"
	"github.com/sluicecluster/sluice/rules"
)

// Stats are counts since the Limiter was made, of checks of every verb.
type Stats struct {
	// Calls are calls of Check, rejected ones too.
	Calls uint64
	// Results has every check once, but errors, which are in Errors by code.
	Results Results
	Errors  map[Code]uint64
	// Rules are these counts for the rules in force that have been matched, sorted by domain and name: at most MaxNames, and OtherNames
	// of each domain. They outlive reloads that keep the name. InForce is the number of rules in force.
	Rules   []RuleStats
	InForce int
	// Unmatched are the checks that no rule matches, by domain of the rules in force, and UnknownDomains for all other
	// domains. Checks with their own limits do not count, nor those of domains that allow such checks.
	Unmatched map[string]uint64
	// Descriptors are these counts for the descriptors of rules with detailed_metric or value_to_metric, by their names in
	// metrics: at most MaxNames, and OtherNames of each domain. They restart when the rules change.
	Descriptors []RuleStats
	// Pools are those of the rules in force, sorted by domain and name.
	Pools []PoolStats
	// Reservations are counts of reservations through this node.
	Reservations ReservationStats
	// Latency is that of decided calls of Check, APIs the same for each API.
	Latency timing.Snapshot
	APIs    []APILatency
	// Early are the checks that were answered without their owners before their callers' deadlines. The reason is the index.
	Early [APIs][check.NotAsked]uint64
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
	Domain, Name string
	Results
}

// Results are counts of checks by result. Only checks that spend or reserve what limits admit are allowed; other verbs have results of
// their own where they are not denied, shadowed or errors: a check of cost 0 is a read.
type Results [results]uint64

// The results of checks.
const (
	ResultAllowed = iota
	ResultDenied
	ResultShadowed
	ResultError
	ResultRead
	ResultCharged
	ResultRefunded
	ResultReset
	results
)

// ResultNames are those of Results in metrics.
var ResultNames = [results]string{"allowed", "denied", "shadowed", "error", "read", "charged", "refunded", "reset"}

// resultOf returns the result r of c.
func resultOf(c *Check, r *Result) int {
	switch {
	case r.Err != nil:
		return ResultError
	case r.Shadowed:
		return ResultShadowed
	case !r.Allowed:
		return ResultDenied
	}
	switch c.Verb {
	case bucket.Charge:
		return ResultCharged
	case bucket.Refund:
		return ResultRefunded
	case bucket.Reset:
		return ResultReset
	case bucket.Read:
		return ResultRead
	case bucket.Check:
		if c.Cost == 0 {
			return ResultRead
		}
	}
	return ResultAllowed
}

// passed returns the checks that were not denied, shadowed or errors.
func (t *Results) passed() (n uint64) {
	for i, of := range t {
		if i != ResultDenied && i != ResultShadowed && i != ResultError {
			n += of
		}
	}
	return n
}

// counts are Results for concurrent use.
type counts struct {
	of [results]atomic.Uint64
	// usage is nil for descriptors, and until a reservation of the rule is settled.
	usage atomic.Pointer[usage]
	// shown are the counts that a rule has in Stats, its own or those of OtherNames; nil until it is matched.
	shown atomic.Pointer[counts]
}

func (c *counts) add(t Results) {
	for i, n := range t {
		addIf(&c.of[i], n)
	}
}

func (c *counts) results() (t Results) {
	for i := range t {
		t[i] = c.of[i].Load()
	}
	return t
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
	active := l.rules.Load()
	st := Stats{
		Calls: l.calls.Load(), Results: l.results.results(), InForce: len(active.counts.byName),
		Errors: make(map[Code]uint64, len(checkCodes)), Unmatched: make(map[string]uint64, len(active.unmatched)),
		Rules: l.named.stats(), Descriptors: active.descriptors.stats(), Pools: active.poolStats(l.config.Clock()),
		Reservations: l.reserved.stats(),
	}
	st.APIs, st.Latency = l.apiLatencies()
	for api := range l.early {
		for reason := range l.early[api] {
			st.Early[api][reason] = l.early[api][reason].Load()
		}
	}
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
	var all, one Results
	var rule *rules.Rule
	for i := range b.Results {
		r := &b.Results[i]
		of := resultOf(&b.Checks[i], r)
		all[of]++
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
				l.named.addRule(rule, active.counts.byRule[rule], one)
			}
			rule, one = r.Rule, Results{}
		}
		one[of]++
		active.descriptors.add(active.set, l.config.Hasher, b, i, of)
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
		l.named.addRule(rule, active.counts.byRule[rule], one)
	}
	l.results.add(all)
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
