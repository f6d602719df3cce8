package bucket

import (
	"math"
	"time"
)

// Verb is what a request does to a counter.
type Verb uint8

const (
	// Check charges Cost to every limit if all admit it, else to none. Cost 0
	// only reads: it is answered as cost 1 would be, and spends nothing.
	Check Verb = iota
	// Read answers whether and when Check would admit Cost (0 is taken as 1), and
	// changes nothing. What remains is what remains now.
	Read
	// Charge spends Cost whatever the limits say and may leave a debt.
	Charge
	// Refund gives Cost back to the windows and levels of now, never above full.
	Refund
	// Reset forgets the counter.
	Reset
)

// Never is the RetryAfter of a cost that these limits can never admit.
const Never = time.Duration(math.MaxInt64)

// Request asks for one decision on one key. Cost is at least 0; less is taken as 0.
type Request struct {
	Key    Key
	Limits *Limits
	Cost   int64
	Verb   Verb
	// Transient: losing this charge in a crash is accepted, so it is journaled only by
	// RecordAll, and no gate holds it up.
	Transient bool
	// Drain: a Check that is denied charges all that is left, the soft margin included, to
	// every limit that has too little for it. A LeakyQueue, which has a level to wait
	// for, is left alone.
	Drain bool
	// NoDelay: a Check or Read that a LeakyQueue would admit with a Delay is denied instead, and
	// charges nothing: for callers that cannot wait. RetryAfter then is the time until it
	// would be admitted without one.
	NoDelay bool
	// Reserve is how many units (0 or more; less is taken as 0) a Check or Read must leave free in every
	// limit: it is admitted iff its cost and Reserve together would be, and charged its cost. For those who
	// share a counter with others that come before them.
	Reserve int64
	// DenyLost: where the shard's counters are lost, see SetLost, a Check or Read takes all for spent that may have been.
	DenyLost bool
}

// Decision answers a Request. When denied it describes the limit that takes
// longest to admit the cost; when allowed, the one with the least remaining.
// Between equals it describes the first.
type Decision struct {
	// Allowed is always true for Charge, Refund and Reset.
	Allowed bool
	// Soft marks a check that only the soft margin admitted.
	Soft bool
	// Lost: it is denied, and only because what was spent before counters were lost is not known, see SetLost.
	Lost bool
	// Index is the deciding limit's place in the request's Limits.
	Index uint8
	// Limit is that limit's Count (Burst for buckets), Remaining what is left
	// of it, never negative and never above Limit.
	Limit, Remaining int64
	// ResetAfter is the time until the whole limit is free again, its minimum
	// interval included.
	ResetAfter time.Duration
	// RetryAfter is the time until this cost would be admitted by all limits
	// if nothing else came: 0 if allowed, Never if it cannot be. It is exact: 1 ns
	// earlier the cost would be denied.
	RetryAfter time.Duration
	// Delay is how long the caller must wait before it acts (LeakyQueue).
	Delay time.Duration
}

// normal returns r's verb and cost such that a Check, Charge or Refund has a cost above 0.
func (r *Request) normal() (Verb, int64) {
	verb, cost := r.Verb, r.Cost
	switch {
	case verb > Reset, verb == Check && cost <= 0:
		verb = Read
	case verb == Reset || verb == Read || cost > 0:
	default: // charging or refunding nothing
		return status, 0
	}
	return verb, max(1, cost)
}

// status is the verb of a request that changes nothing and cannot be denied.
const status = Reset + 1
