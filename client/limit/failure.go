package limit

import "fmt"

// FailurePolicy decides checks and reads that no node has answered in time. Charges, refunds and resets fail with
// ErrUnavailable.
//
// A policy cannot know whether a node has charged the check: its answer may only have been lost. So do not refund what a policy
// has admitted (Decision.Degraded is set): if it was not charged, the refund would give back units that others have spent.
type FailurePolicy struct {
	// Kind is SourceFailOpen, SourceFailClosed or SourceFailLocal; SourceUnknown in the zero FailurePolicy, which decides
	// nothing.
	Kind Source
	// Share is that of FailLocal.
	Share float64
	// Limiter is that of FailTo.
	Limiter Limiter
	// ByRule: the rule's on_failure goes first.
	ByRule bool
}

// FailOpen admits.
func FailOpen() FailurePolicy { return FailurePolicy{Kind: SourceFailOpen} }

// FailClosed denies, for a second.
func FailClosed() FailurePolicy { return FailurePolicy{Kind: SourceFailClosed} }

// FailLocal admits a share of a counter's limit, above 0 and at most 1, by a token bucket in the client: with n clients of
// equal load, 1/n admits about what the limit does. The limit is that of the counter's last decision; checks of unknown
// counters are admitted.
func FailLocal(share float64) FailurePolicy {
	return FailurePolicy{Kind: SourceFailLocal, Share: share}
}

// FailTo asks another Limiter, for example one of package local with the same rules.
func FailTo(l Limiter) FailurePolicy { return FailurePolicy{Kind: SourceFailLocal, Limiter: l} }

// FailByRule does what the rule's on_failure says, if it is open or closed and the client has had a decision under that
// rule; otherwise orElse decides.
func FailByRule(orElse FailurePolicy) FailurePolicy {
	orElse.ByRule = true
	return orElse
}

// Validate returns an error that names what is wrong with p, or nil.
func (p FailurePolicy) Validate() error {
	switch {
	case p.Kind != SourceFailOpen && p.Kind != SourceFailClosed && p.Kind != SourceFailLocal:
		return fmt.Errorf("FailurePolicy %v; want one of FailOpen, FailClosed, FailLocal, FailTo, FailByRule", p.Kind)
	case p.Kind == SourceFailLocal && p.Limiter == nil && !(p.Share > 0 && p.Share <= 1):
		return fmt.Errorf("FailLocal: share %v; want above 0 and at most 1", p.Share)
	}
	return nil
}
