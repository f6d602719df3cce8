package cluster

import (
	"fmt"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/rules"
)

// closedRetry is the RetryAfter of a check that on_failure closed has denied: about
// when a holder may be there again. Nothing is known of the counter.
const closedRetry = time.Second

// onFailure answers req, for which no holder was reached because of cause, as its
// rule says. Only Check and Read can be answered so; the other verbs are about a
// counter, and it is elsewhere. w is nil unless the batch is all-or-nothing.
func (n *Node) onFailure(r *routing, req *check.Request, w *whole, cause error) check.Answer {
	if req.Verb != bucket.Check && req.Verb != bucket.Read {
		n.stats.unanswered.Add(1)
		return check.Answer{Err: fmt.Errorf("%w: %w", check.ErrNoHolder, cause)}
	}
	a := check.Answer{Holder: n.cfg.Name}
	switch req.OnFailure {
	case rules.FailOpen:
		n.stats.open.Add(1)
		a.Source, a.Allowed = check.Open, true
	case rules.FailClosed:
		n.stats.closed.Add(1)
		a.Source, a.RetryAfter = check.Closed, closedRetry
	default:
		n.stats.share.Add(1)
		a.Source = check.Share
		// Counted apart from what this node holds: the counter elsewhere goes on
		// with what it has, and this node's share of it is spent only once.
		share := req.Request
		share.Limits = req.Limits.Share(r.members())
		a.Decision = w.do(n.apart, n.cfg.Clock(), &share)
	}
	return a
}
