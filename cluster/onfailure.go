package cluster

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/rules"
)

// closedRetry is the RetryAfter of a check that was denied without a holder: about
// when one may be there again. Nothing is known of the counter.
const closedRetry = time.Second

var errMinority = errors.New("this node is cut off from the majority, and so has no right to decide")

// answers counts what was answered without a holder.
type answers struct{ share, closed, open atomic.Uint64 }

// onFailure answers req, for which no holder was reached because of cause, as its
// rule says. w is nil unless the batch is all-or-nothing.
func (n *Node) onFailure(r *routing, req *check.Request, w *whole, cause error) check.Answer {
	return n.standIn(r, req, w, req.OnFailure, &n.stats.failure, cause)
}

// onPartition answers req, whose holder this node is or cannot hear, while it has no
// right to decide.
func (n *Node) onPartition(r *routing, req *check.Request, w *whole) check.Answer {
	return n.standIn(r, req, w, req.OnPartition, &n.stats.minority, errMinority)
}

// standIn answers req without a holder. Only Check and Read can be answered so; the other
// verbs are about a counter, and it is elsewhere.
func (n *Node) standIn(r *routing, req *check.Request, w *whole, policy rules.OnFailure, count *answers, cause error) check.Answer {
	if req.Verb != bucket.Check && req.Verb != bucket.Read {
		n.stats.unanswered.Add(1)
		return check.Answer{Err: fmt.Errorf("%w: %w", check.ErrNoHolder, cause)}
	}
	a := check.Answer{Holder: n.cfg.Name}
	switch policy {
	case rules.FailOpen:
		count.open.Add(1)
		a.Source, a.Allowed = check.Open, true
	case rules.FailClosed:
		count.closed.Add(1)
		a.Source, a.RetryAfter = check.Closed, closedRetry
	default:
		count.share.Add(1)
		a.Source = check.Share
		// Counted apart from what this node holds: the counter elsewhere goes on
		// with what it has, and this node's share of it is spent only once, whatever
		// the reasons are for which it answers alone.
		share := req.Request
		share.Limits = req.Limits.Share(r.counted)
		var charged bool
		if a.Decision, charged = w.apart(n.apart, n.cfg.Clock(), &share); charged {
			n.owed.add(&req.Request)
		}
	}
	return a
}
