package cluster

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/share"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// closedRetry is the RetryAfter of a check that was denied without an owner: about when there may be one again. The counter
// is not known. It is also that of a share before the process has had quorum, and just after a pause.
const closedRetry = time.Second

var errMinority = errors.New("this node has no quorum")

// fallbackStats counts checks that were answered without an owner, by policy.
type fallbackStats struct{ share, closed, open atomic.Uint64 }

// fallback answers p without an owner: by its rule's on_partition if this node has no quorum, else by on_failure. Only Check
// and Read can be answered so; the other verbs change a counter that is not here.
func (f *forwarding) fallback(r *routing, p *pending) {
	n, req, a, cause := f.node, &f.batch.Requests[p.index], &f.batch.Answers[p.index], p.cause
	p.done = true
	if p.early != 0 {
		n.stats.early.Add(1)
	}
	if req.Verb != bucket.Check && req.Verb != bucket.Read {
		n.stats.unanswered.Add(1)
		*a = check.Answer{Err: fmt.Errorf("%w: %w", check.ErrNoOwner, cause), Early: p.early}
		return
	}
	policy, count := req.OnFailure, &n.stats.failure
	if cause == errMinority || cause == errCutOff || cause == errNoRole {
		policy, count = req.OnPartition, &n.stats.minority
	}
	// Where this region has no role, or the home is reached and does not decide, another region may get the role, with all that is left.
	// A key that moves may have its home anywhere.
	elsewhere := cause == errNoRole || req.Home() == bucket.HomeAuto && n.manyRegions() || cause != errCutOff && (p.home || n.away(&req.Request) != "")
	if policy == rules.FailShare && (!n.shares.When.MayShare(n.cfg.Clock()) || elsewhere) {
		policy = rules.FailClosed
	}
	n.stats.cause.Store(&cause)
	*a = check.Answer{Owner: n.cfg.Name, Early: p.early}
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
		a.Decision = n.share(r, req, f.undo)
	}
}

// share answers req by this node's share of its limits.
func (n *Node) share(r *routing, req *check.Request, u *undoLog) bucket.Decision {
	now := n.cfg.Clock()
	away := n.away(&req.Request) != ""
	at := share.Place{Parts: n.parts(r.voters), Quorum: !away && n.mayDecide(now), Owns: !away && r.owns(req.Key)}
	var rc *share.Receipt
	if u != nil {
		rc = new(share.Receipt)
	}
	d, charged := n.shares.Answer(now, at, &req.Request, req.UnknownShare, rc)
	if charged {
		n.deferredTask.call()
		if u != nil {
			u.shares = append(u.shares, rc)
		}
	}
	return d
}
