package cluster

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/share"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/rules"
)

// closedRetry is the RetryAfter of a check that was denied without a holder: about
// when one may be there again. Nothing is known of the counter. It is also that of a share before the process has had
// quorum, and just after a pause.
const closedRetry = time.Second

var errMinority = errors.New("this node has no quorum")

// answers counts what was answered without a holder.
type answers struct{ share, closed, open atomic.Uint64 }

// onFailure answers req, for which no holder was reached because of cause, as its
// rule says. w is nil unless the batch is all-or-nothing.
func (n *Node) onFailure(r *routing, req *check.Request, w *whole, cause error) check.Answer {
	return n.standIn(r, req, w, req.OnFailure, &n.stats.failure, cause)
}

// onPartition answers req, whose owner this node is or cannot hear, while it has no quorum.
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
	n.stats.cause.Store(&cause)
	a := check.Answer{Holder: n.cfg.Name}
	if policy == rules.FailShare && !n.shares.When.MayShare(n.cfg.Clock()) {
		policy = rules.FailClosed
	}
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
		a.Decision = n.share(r, req, w)
	}
	return a
}

// share answers req by this node's share of its limits.
func (n *Node) share(r *routing, req *check.Request, w *whole) bucket.Decision {
	now := n.cfg.Clock()
	at := share.Place{Voters: r.voters, Quorum: n.mayDecide(now), Owns: r.holds(req.Key)}
	var rc *share.Receipt
	if w != nil {
		rc = new(share.Receipt)
	}
	d, charged := n.shares.Answer(now, at, &req.Request, req.UnknownShare, rc)
	if charged {
		n.settles.call()
		if w != nil {
			w.shares = append(w.shares, rc)
		}
	}
	return d
}

// spellEnds is how long no check is answered without its owner before a spell of such answers is over. It bounds the lines: two for
// each spell.
const spellEnds = int64(5 * time.Second)

// fallbackCounts is how many checks were answered without their owners, by policy, since the start, and why the last one was.
type fallbackCounts struct {
	share, closed, open uint64
	cause               error
}

func (c fallbackCounts) sum() uint64 { return c.share + c.closed + c.open }

// fallbackSpell logs when checks begin to be answered without their owners, and when they no longer are.
type fallbackSpell struct {
	before      fallbackCounts // the spell, or what there was until now
	seen        uint64
	began, last int64 // of the spell; began is 0 outside
}

func (s *fallbackSpell) tell(log *slog.Logger, m moment) {
	c := &m.fallback
	news := c.sum() != s.seen
	s.seen = c.sum()
	switch {
	case news && s.began == 0:
		s.began, s.last = m.now, m.now
		log.Warn("checks are answered without their owners, by on_failure or on_partition", "share", c.share-s.before.share,
			"closed", c.closed-s.before.closed, "open", c.open-s.before.open, "cause", c.cause)
	case news:
		s.last = m.now
	case s.began != 0 && m.now-s.last >= spellEnds:
		log.Info("checks are answered by their owners again", "after", time.Duration(s.last-s.began), "share", c.share-s.before.share,
			"closed", c.closed-s.before.closed, "open", c.open-s.before.open)
		s.before, s.began = *c, 0
	}
}

// fallbacks returns the counts until now.
func (n *Node) fallbacks() (c fallbackCounts) {
	for _, a := range []*answers{&n.stats.failure, &n.stats.minority} {
		c.share += a.share.Load()
		c.closed += a.closed.Load()
		c.open += a.open.Load()
	}
	if cause := n.stats.cause.Load(); cause != nil {
		c.cause = *cause
	}
	return c
}
