package local

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/client/limit"
)

const (
	// maxRemembered bounds each of the memories below.
	maxRemembered = 10_000
	// maxInlineEntries bounds the entries of logs and sub-windows of the limits of a check, as nodes do by default.
	maxInlineEntries = 4096
)

// inlineLimits remembers the limits that came with checks, by their domain and the first of them: validating takes longer than
// deciding, and a table compares sets by their pointers.
type inlineLimits struct {
	mu struct {
		sync.RWMutex
		sets map[inlineKey]inlineSet
	}
}

type inlineKey struct {
	domain string
	first  limit.Limit
}

type inlineSet struct {
	list   []limit.Limit
	limits *bucket.Limits
}

// of returns the set of list.
func (n *inlineLimits) of(domain string, list []limit.Limit) (*bucket.Limits, error) {
	key := inlineKey{domain, list[0]}
	n.mu.RLock()
	known := n.mu.sets[key]
	n.mu.RUnlock()
	if slices.Equal(known.list, list) {
		return known.limits, nil
	}
	limits, err := newLimits(domain, list)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.sets == nil || len(n.mu.sets) >= maxRemembered {
		n.mu.sets = make(map[inlineKey]inlineSet)
	}
	n.mu.sets[key] = inlineSet{slices.Clone(list), limits}
	return limits, nil
}

func newLimits(domain string, list []limit.Limit) (*bucket.Limits, error) {
	var out []bucket.Limit
	for _, l := range list {
		if l.Algorithm == 0 && !l.Unlimited {
			l.Algorithm = limit.FixedWindow
		}
		out = append(out, bucket.Limit{
			Algorithm: enum[bucket.Algorithm](l.Algorithm), Count: l.Count, Period: l.Period, Unlimited: l.Unlimited,
			Burst: l.Burst, Cost: l.Weight, Refill: enum[bucket.Refill](l.Refill), Align: enum[bucket.Align](l.Align),
			Unit: enum[bucket.Unit](l.Unit), Zone: l.TimeZone, MinInterval: l.MinInterval, BlockFor: l.BlockFor,
			Soft: l.SoftPercent, CountDenied: l.CountDenied, SubWindows: l.SubWindows, LogEntries: l.LogEntries,
		})
	}
	limits, err := bucket.NewLimitsIn(domain, out...)
	if err == nil {
		err = limits.Within(maxInlineEntries)
	}
	if fe, ok := errors.AsType[*bucket.FieldError](err); ok {
		return nil, limit.Invalid(fmt.Sprintf("limits[%d].%s", fe.Index, fe.Field), fe.Reason)
	}
	return limits, err
}

// enum returns the value of package bucket, which has the same numbers. One that bucket cannot have stays invalid.
func enum[B ~uint8, L ~int32](v L) B {
	if v < 0 || v > 255 {
		return 255
	}
	return B(v)
}

// namedSpendings remembers the charges and refunds that had an idempotency key: at least the last maxRemembered.
type namedSpendings struct {
	mu struct {
		sync.Mutex
		newer, older map[bucket.Key]bool
	}
}

// repeats reports whether k was seen before, and remembers it.
func (n *namedSpendings) repeats(k bucket.Key) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.newer[k] || n.mu.older[k] {
		return true
	}
	if n.mu.newer == nil || len(n.mu.newer) >= maxRemembered {
		n.mu.newer, n.mu.older = make(map[bucket.Key]bool), n.mu.newer
	}
	n.mu.newer[k] = true
	return false
}
