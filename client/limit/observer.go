package limit

import (
	"context"
	"errors"
	"time"
)

// Observer gets an Event for every decision. Decided is called in the caller's goroutine, and must be quick and safe for
// concurrent use.
type Observer interface {
	Decided(ctx context.Context, e Event)
}

// Event is one decision or error. CheckAll has one for each check, or one if it failed: with the domain of the first check
// and the sum of the amounts.
type Event struct {
	Domain string
	Verb   Verb
	Amount int64
	// Decision is zero if Err is set.
	Decision Decision
	Err      error
	// Took is the time until the answer, retries included.
	Took time.Duration
}

// Outcome is what became of a check.
type Outcome string

const (
	// OutcomeAllowed and OutcomeDenied are decisions.
	OutcomeAllowed Outcome = "allowed"
	OutcomeDenied  Outcome = "denied"
	// OutcomeShadow: allowed by a rule in shadow mode that would have denied.
	OutcomeShadow Outcome = "shadowed"
	// OutcomeInvalid: an *Error.
	OutcomeInvalid Outcome = "invalid"
	// OutcomeError: any other error.
	OutcomeError Outcome = "error"
)

// Outcome returns what became of the check of e.
func (e *Event) Outcome() Outcome {
	switch {
	case e.Err != nil:
		if _, ok := errors.AsType[*Error](e.Err); ok {
			return OutcomeInvalid
		}
		return OutcomeError
	case e.Decision.Verdict == VerdictShadow:
		return OutcomeShadow
	case e.Decision.Allowed:
		return OutcomeAllowed
	}
	return OutcomeDenied
}
