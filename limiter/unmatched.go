package limiter

import (
	"sync/atomic"

	"github.com/sluice-project/sluice/rules"
)

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
