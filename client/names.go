package sluice

import "github.com/sluicecluster/sluice/client/limit"

// The names of package limit that programs use most.
type (
	// Key is a counter, and asks about it.
	Key = limit.Key
	// Check is one question about a counter.
	Check = limit.Check
	// Entry is one (key, value) of a descriptor.
	Entry = limit.Entry
	// Decision answers a Check.
	Decision = limit.Decision
	// Batch answers several checks that were decided as one.
	Batch = limit.Batch
	// Limit is a limit that comes with a check.
	Limit = limit.Limit
	// Limiter decides checks; a *Client is one.
	Limiter = limit.Limiter
	// FailurePolicy decides when no node answers.
	FailurePolicy = limit.FailurePolicy
	// Error is why no node can decide a check.
	Error = limit.Error
	// DeniedError is the error of Reserve, Hold and Acquire when the limits deny.
	DeniedError = limit.DeniedError
	// Observer gets an Event for every decision.
	Observer = limit.Observer
	// Event is one decision or error.
	Event = limit.Event
)

// The errors of package limit, for errors.Is.
var (
	ErrDenied              = limit.ErrDenied
	ErrNever               = limit.ErrNever
	ErrWouldExceedDeadline = limit.ErrWouldExceedDeadline
	ErrUnavailable         = limit.ErrUnavailable
	ErrNoOwner             = limit.ErrNoOwner
	ErrClosed              = limit.ErrClosed
	ErrInvalid             = limit.ErrInvalid
	ErrUnknownDomain       = limit.ErrUnknownDomain
	ErrForbidden           = limit.ErrForbidden
	ErrUnauthenticated     = limit.ErrUnauthenticated
	ErrRejected            = limit.ErrRejected
)

// FailOpen admits when no node answers.
func FailOpen() FailurePolicy { return limit.FailOpen() }

// FailClosed denies when no node answers, for a second.
func FailClosed() FailurePolicy { return limit.FailClosed() }

// FailLocal admits a share of a counter's last known limit when no node answers: see limit.FailLocal.
func FailLocal(share float64) FailurePolicy { return limit.FailLocal(share) }

// FailTo asks another Limiter when no node answers: see limit.FailTo.
func FailTo(l Limiter) FailurePolicy { return limit.FailTo(l) }

// FailByRule does what the rule's on_failure says when no node answers: see limit.FailByRule.
func FailByRule(orElse FailurePolicy) FailurePolicy { return limit.FailByRule(orElse) }
