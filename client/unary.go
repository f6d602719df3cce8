package sluice

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// unaryCall makes one call at a node.
type unaryCall func(context.Context, sluicev1.RateLimitServiceClient) error

// unary makes a call at one node after another until one has answered, first at the owner of the counter key if it is known.
// repeat says that it may be made again after a lost answer.
func (c *Client) unary(ctx context.Context, key counterKey, repeat bool, f unaryCall) error {
	patience := time.Duration(c.patience.Load())
	ctx, cancel := context.WithTimeoutCause(ctx, patience, errUnsent)
	defer cancel()
	most := patience
	if repeat {
		most /= 2 // there is time for another node when this one hangs
	}
	var n *node
	var last error
	for wait := time.Duration(0); ; wait = max(firstWait, min(2*wait, lastWait)) {
		if wait > firstWait {
			pause.For(ctx, c.jitter(wait))
		}
		s, _, err := c.find(ctx, key, n)
		sent := err == nil
		if sent {
			n = s.node
			err = n.call(ctx, f, most)
		}
		if err == nil {
			return nil
		}
		busy := errors.Is(err, errBusy)
		if busy || errors.Is(err, ErrNoOwner) {
			last = err
		}
		final, ok := errors.AsType[*Error](err)
		switch {
		case ok:
			return final
		case sent && !busy && !repeat:
			if ctx.Err() != nil && ended(ctx) != errUnsent {
				err = ctx.Err()
			}
			return fmt.Errorf("%w: %w; it may have been done", ErrUnavailable, err)
		case errors.Is(err, errUnsent), ctx.Err() != nil && ended(ctx) == errUnsent:
			return c.unavailable(last)
		case ctx.Err() != nil:
			return ctx.Err()
		case c.closed.Load():
			return ErrClosed
		case busy && !c.repeats.take(time.Now(), c.stats.answered()):
			return c.unavailable(last)
		}
		c.stats.retries.Add(1)
	}
}

// finalCodes are those of calls that no node would answer otherwise.
var finalCodes = []codes.Code{codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition, codes.PermissionDenied, codes.Unimplemented}

// call makes one call that takes most at most.
func (n *node) call(ctx context.Context, f unaryCall, most time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	return n.explain(f(ctx, sluicev1.NewRateLimitServiceClient(n.conn)))
}

// explain returns the error of a call for one of gRPC. An *Error is not to be retried.
func (n *node) explain(err error) error {
	st, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	final := slices.Contains(finalCodes, st.Code())
	for _, d := range st.Details() {
		e, ok := d.(*sluicev1.Error)
		switch {
		case ok && e.GetCode() == sluicev1.ErrorCode_ERROR_CODE_OVERLOADED:
			return errBusy
		case ok && final:
			return &Error{Code: codeOf(e.GetCode()), Field: e.GetField(), Message: e.GetMessage()}
		}
	}
	switch {
	case st.Code() == codes.Unimplemented:
		return &Error{Code: limit.CodeUnsupported, Message: "the node at " + n.addr + " does not have this call; upgrade all nodes to sluice v0.1.0 or later"}
	case final:
		return limit.Invalid("", st.Message())
	}
	return err
}
