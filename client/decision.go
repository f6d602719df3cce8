package client

import (
	"math"
	"time"
)

// Never is the RetryAfter of a cost that can never be admitted.
const Never = time.Duration(math.MaxInt64)

// Decision is the answer to a Check. When denied it describes the limit that takes longest to
// admit the cost; when allowed, the one with the least remaining.
type Decision struct {
	Allowed bool
	// Soft: admitted only by the soft margin. Shadowed: the rule only watches, and would have denied.
	Soft, Shadowed bool
	// Elastic: the rule's limits denied, and its pool admitted. All else is about these limits.
	Elastic bool
	// Source says who decided.
	Source Source
	// LimitIndex is the deciding limit's place among the rule's limits, or among the Check's own.
	LimitIndex int
	// Limit is that limit's count, or its burst; Remaining what is left of it. Both are the largest
	// int64 where nothing limits the check, and 0 where nothing is known of the counter.
	Limit, Remaining int64
	// Period is that of the limit; a calendar month counts as 30 days, a year as 365.
	Period time.Duration
	// ResetAfter is the time until the whole limit is free again, RetryAfter that until this cost would be
	// admitted: 0 when allowed, or Never.
	ResetAfter, RetryAfter time.Duration
	// Delay is how long to wait before acting, of an admitted check whose limit is a leaky queue. Wait does.
	Delay time.Duration
	// Rule is the name of the rule, or its path in the file; empty when none matched.
	Rule string
	// Holder is the name of the node that decided, if one did.
	Holder string
	// Staleness is how old what the node knew of the counter was, if Source is SourceEventual.
	Staleness time.Duration
	// Response is what the rule has HTTP services answer to whom it denies; nil for their own answer. Not
	// to be changed.
	Response *Response

	deniedFor time.Duration
}

// Response is a rule's own answer over HTTP.
type Response struct {
	// Status is 400 to 599, or 0 for the default, 429.
	Status int
	Header []Header
	Body   string
}

// Header is one HTTP header.
type Header struct{ Name, Value string }

// Source says who decided.
type Source uint8

const (
	// SourceHeld: the node that was asked holds the key.
	SourceHeld Source = iota + 1
	// SourceForwarded: another node holds the key, and the one that was asked has asked it.
	SourceForwarded
	// SourceShare, SourceClosed and SourceOpen: no holder answered the node; the rule's on_failure or
	// on_partition did.
	SourceShare
	SourceClosed
	SourceOpen
	// SourceUnruled: nothing limits the check.
	SourceUnruled
	// SourceLease: another node holds the key, and has lent units of it to the one that was asked.
	SourceLease
	// SourceEventual: the node that was asked decided by itself, on its share of what was left when it last heard of
	// the holder.
	SourceEventual
	// SourceLostState: the key's counter was lost in a takeover without state, and its rule denies what may have been spent.
	SourceLostState
	// SourceDenyCache: this client remembers a denial that still stands.
	SourceDenyCache
	// SourceFailOpen, SourceFailClosed and SourceFailLocal: no node answered this client in time; its
	// FailurePolicy did.
	SourceFailOpen
	SourceFailClosed
	SourceFailLocal

	sources = int(iota) + 1
)

func (s Source) String() string {
	names := [sources]string{
		"unknown", "held", "forwarded", "share", "closed", "open", "unruled", "lease", "eventual", "lost_state",
		"deny_cache", "fail_open", "fail_closed", "fail_local",
	}
	if int(s) < len(names) {
		return names[s]
	}
	return names[0]
}
