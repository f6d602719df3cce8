package client

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// ReportLoad tells the cluster how much of its load the service behind a pool bears: 0 is idle, 1 as much as it
// can bear. The pool shrinks by it, as its rule file says. A report counts for the time that the rules give it, 10 s
// by default, so report every few seconds. Each Client is a reporter of its own, and of several the highest
// load counts. An *Error says that load is out of range, or that the rules have no such pool or let it
// follow no load; ErrUnavailable that no node has answered in time.
func (c *Client) ReportLoad(ctx context.Context, domain, pool string, load float64) error {
	req := &sluicev1.ReportLoadRequest{Domain: domain, Pool: pool, Load: load, Reporter: c.reporter}
	_, err := c.inTurns(ctx, counterKey{}, func(ctx context.Context, n *node) error {
		try, cancel := context.WithTimeout(ctx, c.opts.timeout/2)
		defer cancel()
		_, err := sluicev1.NewSluiceServiceClient(n.conn).ReportLoad(try, req)
		if err != nil {
			return finalOf(err, codes.InvalidArgument, codes.NotFound, codes.FailedPrecondition)
		}
		return nil
	})
	if errors.Is(err, errUnsent) {
		return fmt.Errorf("%w within %v", ErrUnavailable, c.opts.timeout)
	}
	return err
}
