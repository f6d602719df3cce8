package limiter

import (
	"hash/maphash"
	"strconv"
	"weak"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/sluicecluster/sluice/bucket"
)

// Interner gives equal sets of limits of one domain one pointer: counters compare their limits by pointer first. It is a bounded
// LRU of weak pointers. Nothing relies on sharing: of two different sets with one hash only the later is shared. Safe for
// concurrent use.
type Interner struct {
	seed maphash.Seed
	sets *lru.Cache[uint64, weak.Pointer[bucket.Limits]] // by a hash of the domain, the home and the limits
}

// NewInterner returns an Interner of at most size sets, 1 or more.
func NewInterner(size int) *Interner {
	sets, err := lru.New[uint64, weak.Pointer[bucket.Limits]](size)
	if err != nil {
		panic(err) // only for a size below 1
	}
	return &Interner{maphash.MakeSeed(), sets}
}

// known returns the set of list, or nil, and its hash.
func (n *Interner) known(domain, home string, list []bucket.Limit) (l *bucket.Limits, sum uint64) {
	sum = maphash.String(n.seed, domain)
	if home != "" {
		sum = sum*31 + maphash.String(n.seed, home)
	}
	for i := range list {
		sum = sum*31 + maphash.Comparable(n.seed, list[i])
	}
	found, _ := n.sets.Get(sum)
	if l = found.Value(); l != nil && !l.Is(domain, home, list) {
		l = nil
	}
	return l, sum
}

// Shared returns the set that equal ones share: l, if there was none.
func (n *Interner) Shared(l *bucket.Limits) *bucket.Limits {
	known, sum := n.known(l.Domain(), l.Home(), l.List())
	if known == nil {
		n.sets.Add(sum, weak.Make(l))
		return l
	}
	return known
}

// errSetsFull is the error of a check with new limits while the node has too many.
var errSetsFull = &Error{
	Code: Overloaded, Field: "limits",
	Message: "this node keeps as many different sets of limits as it can (" + strconv.Itoa(bucket.DefaultMaxSets) +
		" in all), and this domain has its share of them; " +
		"nothing was charged; use fewer different sets, or put the limits into a rule file",
}

// inlineLimits returns the set for limits of a check, a new one unless the account is full. The
// error is errSetsFull or a *bucket.FieldError.
func (l *Limiter) inlineLimits(domain, home string, list []bucket.Limit, full func(account string) bool) (*bucket.Limits, error) {
	if len(list) > bucket.MaxLimits {
		return bucket.NewLimits(list...)
	}
	limits, sum := l.inline.known(domain, home, list)
	if limits != nil {
		return limits, nil
	}
	if full != nil && full(domain) {
		return nil, errSetsFull
	}
	limits, err := bucket.NewLimitsAt(domain, home, list...)
	if err == nil {
		err = limits.Within(l.config.InlineEntries)
	}
	if err != nil {
		return nil, err
	}
	l.inline.sets.Add(sum, weak.Make(limits))
	return limits, nil
}
