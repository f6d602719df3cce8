package client

import (
	"context"
	"math/rand/v2"
	"time"
)

// maxSpread is the most that Wait comes later than it might, so that many who wait for one limit
// do not come back all at once.
const maxSpread = 100 * time.Millisecond

// Wait asks until q is admitted, and then for as long as a leaky queue wants it to wait. It returns at
// once, with the denial, when the context's deadline is earlier than the limit would admit q
// (ErrWouldExceedDeadline) and when it never will (ErrNever); else its error is the context's, or
// Check's. What was admitted to a queue stays charged even if the context ends first.
func (c *Client) Wait(ctx context.Context, q Check) (Decision, error) {
	for {
		d, err := c.Check(ctx, q)
		switch {
		case err != nil:
			return d, err
		case d.Allowed:
			if d.Delay > 0 && !sleep(ctx, d.Delay) {
				return d, ctx.Err()
			}
			return d, nil
		case d.RetryAfter == Never:
			return d, ErrNever
		}
		wait := max(d.RetryAfter, time.Millisecond)
		if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) < wait {
			return d, ErrWouldExceedDeadline
		}
		spread := min(wait/10, maxSpread)
		if !sleep(ctx, wait+rand.N(spread+1)) {
			return d, ctx.Err()
		}
	}
}
