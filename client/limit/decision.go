package limit

import "time"

// Decision answers a Check. When denied, it describes the limit that takes longest to admit the amount; when allowed, the
// one with the least remaining.
type Decision struct {
	// Allowed is what the caller is to do. A charge, a refund and a reset are always allowed.
	Allowed bool
	// Verdict is why.
	Verdict Verdict
	// Source is who decided.
	Source Source
	// Degraded is nil when the owner of the counter has decided, or a node that has units of it. Otherwise it is why
	// nobody who counts was asked.
	Degraded error
	// Rule is the name of the rule, or its path in the file; empty when none matched.
	Rule string
	// LimitName is the name of the limit, as RateLimit-Policy has it, and LimitIndex its index in the rule's limits, or in
	// the Check's own, which have no names.
	LimitName  string
	LimitIndex int
	// Counted: a limit was read, which Limit, Remaining, Count, Burst, Period and ResetAfter describe. They are 0 where
	// nothing limits the check, and where nothing is known of its counter.
	Counted bool
	// Limit is the most units that can be admitted at once: the burst if there is one, else the count.
	Limit int64
	// Remaining is how many of them are left.
	Remaining int64
	// Count is how many units are admitted in each period, and Burst the burst; 0 for none.
	Count, Burst int64
	// Period is that of the limit; a calendar month counts as 30 days, a year as 365. 0 if it has none.
	Period time.Duration
	// ResetAfter is the time until nothing is spent any more.
	ResetAfter time.Duration
	// RetryAfter is the time until the amount would be admitted; 0 when allowed, and when that time is not known or never
	// comes. RetryIn tells these apart.
	RetryAfter time.Duration
	// Delay is how long to wait before acting, of an admitted check whose limit is a leaky queue. Wait does.
	Delay time.Duration
	// Owner is the name of the node that decided, if any.
	Owner string
	// Staleness is the age of the counter that a node decided on, if Source is SourceEventual.
	Staleness time.Duration
	// Response is the rule's HTTP response to a denied request; nil for the service's own. Do not change it.
	Response *Response
}

// RetryIn returns the time after which the check may be admitted, 0 if it was allowed. It returns false if that is not
// known, or if Verdict is VerdictNever.
func (d *Decision) RetryIn() (time.Duration, bool) {
	return d.RetryAfter, d.Allowed || d.RetryAfter > 0
}

// Response is a rule's own answer over HTTP.
type Response struct {
	// Status is 400 to 599, or 0 for the default, 429.
	Status int
	// Header is in the order of the rule.
	Header []Header
	// Body may be empty.
	Body string
}

// Header is one HTTP header.
type Header struct{ Name, Value string }

// Verdict is why a check was allowed or denied. Values that this package does not know may come from newer nodes:
// Decision.Allowed is valid with them.
type Verdict uint8

const (
	// VerdictUnknown: the node did not say.
	VerdictUnknown Verdict = iota
	// VerdictAllowed: every limit admits, or a FailurePolicy.
	VerdictAllowed
	// VerdictSoft: allowed only by the soft margin of a limit.
	VerdictSoft
	// VerdictShadow: allowed because the rule is in shadow mode, and its limits would have denied.
	VerdictShadow
	// VerdictElastic: the rule's limits denied, and its pool admitted. All else is about these limits.
	VerdictElastic
	// VerdictDenied: a limit denies, or a FailurePolicy.
	VerdictDenied
	// VerdictNever: the amount can never be admitted.
	VerdictNever
	// VerdictDeniedByOthers: this check of a Batch would have been admitted, and another was denied.
	VerdictDeniedByOthers
)

// String returns the name that the HTTP API has for v.
func (v Verdict) String() string {
	return nameOf(v, "unknown", "allowed", "allowed_soft", "allowed_shadow", "allowed_elastic", "denied", "denied_never", "denied_by_others")
}

// Source is who decided. Those of nodes are below 128.
type Source uint8

const (
	// SourceUnknown: a newer node says something that this package does not know.
	SourceUnknown Source = iota
	// SourceOwned: the node that was asked owns the key.
	SourceOwned
	// SourceForwarded: the owner, which the node that was asked has asked.
	SourceForwarded
	// SourceShare, SourceClosed and SourceOpen: no owner answered the node; the rule's on_failure or on_partition decided.
	SourceShare
	SourceClosed
	SourceOpen
	// SourceUnmatched: nothing limits the check. Rule is empty if no rule matched, which is mostly a mistake.
	SourceUnmatched
	// SourceLease: another node owns the key, and has granted units of it to the one that was asked.
	SourceLease
	// SourceEventual: the node that was asked decided by itself, on its share of what was left when it last heard of the
	// owner.
	SourceEventual
	// SourceLostState: the key's counter was lost in a takeover without state, and its rule denies what may have been spent.
	SourceLostState
)

const (
	// SourceDenyCache: this client remembers a denial that still stands.
	SourceDenyCache Source = iota + 128
	// SourceFailOpen, SourceFailClosed and SourceFailLocal: no node answered this client in time; a FailurePolicy did.
	SourceFailOpen
	SourceFailClosed
	SourceFailLocal
	// SourceLocal: a limiter in this process.
	SourceLocal
)

// String returns the name that the HTTP API has for s.
func (s Source) String() string {
	if s >= SourceDenyCache {
		return nameOf(s-SourceDenyCache, "deny_cache", "fail_open", "fail_closed", "fail_local", "local")
	}
	return nameOf(s, "unknown", "owned", "forwarded", "share", "closed", "open", "unmatched", "lease", "eventual", "lost_state")
}

// Batch answers several checks that were decided as one: all are allowed, or nothing was spent.
type Batch struct {
	// Allowed is what the caller is to do.
	Allowed bool
	// RetryAfter is the time until all may be admitted; 0 when allowed, and when it is not known or never comes.
	RetryAfter time.Duration
	// Decisions are those of the checks, in their order. Those that would have been admitted have VerdictDeniedByOthers.
	Decisions []Decision
}

// NewBatch returns the Batch of decisions that were made as one.
func NewBatch(decisions []Decision) Batch {
	b := Batch{Allowed: true, Decisions: decisions}
	known := true
	for i := range decisions {
		d := &decisions[i]
		if d.Allowed {
			continue
		}
		b.Allowed = false
		b.RetryAfter = max(b.RetryAfter, d.RetryAfter)
		known = known && (d.RetryAfter > 0 || d.Verdict == VerdictDeniedByOthers)
	}
	if !known {
		b.RetryAfter = 0
	}
	return b
}

// RetryIn returns the time after which all checks may be admitted, as Decision.RetryIn.
func (b *Batch) RetryIn() (time.Duration, bool) { return b.RetryAfter, b.Allowed || b.RetryAfter > 0 }

// Denied returns the indexes of the checks whose limits denied, so that the others were denied with them.
func (b *Batch) Denied() []int {
	var denied []int
	for i := range b.Decisions {
		if d := &b.Decisions[i]; !d.Allowed && d.Verdict != VerdictDeniedByOthers {
			denied = append(denied, i)
		}
	}
	return denied
}

// Strictest returns the decision to tell a caller: of those that denied, the one with the longest RetryAfter, or
// VerdictNever; without any, the one with the least remaining, with the longest Delay of all.
func (b *Batch) Strictest() Decision {
	best := 0
	var delay time.Duration
	for i := range b.Decisions {
		delay = max(delay, b.Decisions[i].Delay)
		if i > 0 && stricter(&b.Decisions[i], &b.Decisions[best]) {
			best = i
		}
	}
	if len(b.Decisions) == 0 {
		return Decision{}
	}
	d := b.Decisions[best]
	if d.Allowed {
		d.Delay = delay
	}
	return d
}

// stricter reports whether a is stricter than b.
func stricter(a, b *Decision) bool {
	if rank := rankOf(a) - rankOf(b); rank != 0 {
		return rank > 0
	}
	if !a.Allowed {
		return a.RetryAfter > b.RetryAfter
	}
	return a.Counted && (!b.Counted || a.Remaining < b.Remaining)
}

// rankOf is higher for a decision that matters more.
func rankOf(d *Decision) int {
	switch {
	case d.Allowed:
		return 0
	case d.Verdict == VerdictDeniedByOthers:
		return 1
	case d.Verdict == VerdictNever:
		return 3
	}
	return 2
}
