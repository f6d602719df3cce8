package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// maxSpread is the most that Wait comes later than it might, so that many who wait for one limit
// do not come back all at once.
const maxSpread = 100 * time.Millisecond

// Wait asks until q is admitted, and then waits for as long as a leaky queue wants it to. It returns at
// once, with what was decided, when the context's deadline is earlier than the limit would admit q or than its turn
// comes (ErrWouldExceedDeadline), and when the limit never will (ErrNever); else its error is the context's, or
// Check's. What was admitted to a queue stays charged, whatever the error: those behind it were told their times.
func (c *Client) Wait(ctx context.Context, q Check) (Decision, error) {
	for {
		d, err := c.Check(ctx, q)
		switch {
		case err != nil:
			return d, err
		case d.Allowed:
			if d.Delay <= 0 {
				return d, nil
			}
			if tooLate(ctx, d.Delay) {
				return d, ErrWouldExceedDeadline
			}
			if !sleep(ctx, d.Delay) {
				return d, ctx.Err()
			}
			return d, nil
		case d.RetryAfter == Never:
			return d, ErrNever
		}
		wait := max(d.RetryAfter, time.Millisecond)
		if tooLate(ctx, wait) {
			return d, ErrWouldExceedDeadline
		}
		spread := rand.N(min(wait/10, maxSpread) + 1) // #nosec G404 -- a pause
		if !sleep(ctx, wait+spread) {
			return d, ctx.Err()
		}
	}
}

// tooLate reports whether ctx ends before wait has passed.
func tooLate(ctx context.Context, wait time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < wait
}
