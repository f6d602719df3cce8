package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/share"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/internal/snapshot"
	"github.com/sluice-project/sluice/rules"
)

// closedRetry is the RetryAfter of a check that was denied without an owner: about
// when one may be there again. Nothing is known of the counter. It is also that of a share before the process has had
// quorum, and just after a pause.
const closedRetry = time.Second

var errMinority = errors.New("this node has no quorum")

// answers counts what was answered without an owner.
type answers struct{ share, closed, open atomic.Uint64 }

// onFailure answers req, for which no owner was reached because of cause, as its
// rule says. w is nil unless the batch is all-or-nothing.
func (n *Node) onFailure(r *routing, req *check.Request, w *whole, cause error) check.Answer {
	return n.standIn(r, req, w, req.OnFailure, &n.stats.failure, cause)
}

// onPartition answers req, whose owner this node is or cannot hear, while it has no quorum.
func (n *Node) onPartition(r *routing, req *check.Request, w *whole) check.Answer {
	return n.standIn(r, req, w, req.OnPartition, &n.stats.minority, errMinority)
}

// standIn answers req without an owner. Only Check and Read can be answered so; the other
// verbs are about a counter, and it is elsewhere.
func (n *Node) standIn(r *routing, req *check.Request, w *whole, policy rules.OnFailure, count *answers, cause error) check.Answer {
	if req.Verb != bucket.Check && req.Verb != bucket.Read {
		n.stats.unanswered.Add(1)
		return check.Answer{Err: fmt.Errorf("%w: %w", check.ErrNoOwner, cause)}
	}
	n.stats.cause.Store(&cause)
	a := check.Answer{Owner: n.cfg.Name}
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
	pendingGrants := c.sum() != s.seen
	s.seen = c.sum()
	switch {
	case pendingGrants && s.began == 0:
		s.began, s.last = m.now, m.now
		log.Warn("checks are answered without their owners, by on_failure or on_partition", "share", c.share-s.before.share,
			"closed", c.closed-s.before.closed, "open", c.open-s.before.open, "cause", c.cause)
	case pendingGrants:
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

// DeferredChanged returns what holds one whenever the deferred charges have changed since it was last received from.
func (n *Node) DeferredChanged() <-chan struct{} { return n.deferredChanged }

// SaveDeferred writes what this node has admitted without owners, and no owner has been charged yet, to the writer that create
// makes, and commits it: a counter for each key, that has spent just that.
func (n *Node) SaveDeferred(ctx context.Context, create func(message.Set) (*snapshot.Writer, error)) (keys int, err error) {
	var set message.Set
	if err := n.runner.ask(ctx, func(int64) { set = n.runner.quorum.Set() }); err != nil {
		return 0, err
	}
	now, at := n.cfg.Clock(), time.Now()
	table, keys, err := n.shares.Table(now, n.routing.Load().voters, n.cfg.Ring.Partitions)
	if err != nil {
		return 0, err
	}
	w, err := create(set)
	if err != nil {
		return 0, err
	}
	defer w.Abort()
	c := copier{table: table, clock: n.cfg.Clock}
	for p := range n.cfg.Ring.Partitions {
		if c.read(now, p); len(c.keys) == 0 {
			continue
		}
		if err := c.write(w, snapshot.Section{Partition: p, Complete: true, At: at}); err != nil {
			return 0, err
		}
	}
	return keys, w.Commit()
}

// LoadDeferred reads what SaveDeferred has written in an earlier run into rec, as Load reads counters.
func (rec *Recorded) LoadDeferred(r *snapshot.Reader, now time.Time) error {
	h := r.Header()
	table, err := bucket.NewTable(bucket.Config{Shards: h.Partitions})
	if err != nil {
		return err
	}
	var list []share.Charge
	for {
		s, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		then := now.Add(-s.Age(now)).UnixNano()
		for {
			im, err := r.Image()
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			if err := table.Import(then, s.Partition, im, im.Data, im.Counters, false); err != nil {
				return fmt.Errorf("deferred charges of partition %d: %w", s.Partition, err)
			}
		}
		list = append(list, share.FromTable(then, table, s.Partition)...)
	}
	rec.deferred, rec.voters = list, max(1, len(h.Set.Members))
	return nil
}

// Deferred returns of how many keys there are deferred charges.
func (rec *Recorded) Deferred() int { return len(rec.deferred) }

const (
	// settlePeriod is how often owners are told what was admitted without them, and
	// settleBatch of how many keys at once.
	settlePeriod = 100 * time.Millisecond
	settleBatch  = 512
)

// settleUp charges to owners what was admitted without them, whenever this node has
// quorum, until ctx ends.
func (n *Node) settleUp(ctx context.Context) {
	task := n.settles
	defer task.stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-task.woken:
			task.begin()
		case <-task.due:
			if n.mayDecide(n.cfg.Clock()) {
				n.settle(ctx, settleBatch)
			}
			keys, _ := n.shares.Charges.Count()
			task.done(keys > 0)
		}
	}
}

// settle charges the deferred charges of the oldest keys, at most so many.
func (n *Node) settle(ctx context.Context, most int) {
	defer n.shares.Charges.Answered()
	voters := n.routing.Load().voters
	list := n.shares.Take(n.cfg.Clock(), voters, most)
	if len(list) == 0 {
		return
	}
	var b check.Batch
	for _, c := range list {
		b.Requests = append(b.Requests, check.Request{Request: bucket.Request{
			Key: c.Key, Limits: c.Limits, Cost: c.Due, Verb: bucket.Charge, Transient: c.Transient,
		}})
	}
	b.Answers = make([]check.Answer, len(list))
	f := n.newForwarding(&b, nil)
	f.once = true
	for i := range list {
		f.pending = append(f.pending, pending{index: i})
	}
	n.finish(ctx, f)
	for i, a := range b.Answers {
		outcome := share.NotCharged
		switch {
		case a.Err == nil:
			n.stats.settled.Add(uint64(list[i].Due))
			outcome = share.Charged
		case errors.Is(a.Err, check.ErrAmbiguous):
			outcome = share.AnswerLost
		}
		n.shares.Ended(n.cfg.Clock(), list[i], voters, outcome)
	}
}

// lostLimits are the limits of the rules that deny what may have been spent before counters were lost.
type lostLimits struct {
	list atomic.Pointer[[]*bucket.Limits]
	// Of the runner: what until has worked out, for which list and clock.
	of    *[]*bucket.Limits
	ahead int64
	ends  map[int64]int64
}

// SetLostLimits says which limits the rules have under which the loss of a counter denies checks. A loss is over when nothing that was
// spent of them before it counts any more. Until it is called, a loss only ends otherwise.
func (n *Node) SetLostLimits(list []*bucket.Limits) { n.lostLimits.list.Store(&list) }

// lostUntil returns until when counters that were lost at since matter to a rule. Only for the runner.
func (n *Node) lostUntil(since int64) int64 {
	l, list, ahead := &n.lostLimits, n.lostLimits.list.Load(), n.ahead.Load()
	if list == nil {
		return math.MaxInt64
	}
	if l.of != list || l.ahead != ahead || len(l.ends) > n.cfg.Ring.Partitions {
		l.of, l.ahead, l.ends = list, ahead, make(map[int64]int64)
	}
	end, known := l.ends[since]
	if !known {
		end = since
		for _, limits := range *list {
			end = max(end, limits.SpentUntil(since+ahead)-ahead)
		}
		l.ends[since] = end
	}
	return end
}

// AcceptLoss has this node, and all others that it sees, take lost counters for unspent. It returns how many partitions of this node
// that ended it for, and who the others are.
func (n *Node) AcceptLoss(ctx context.Context) (partitions int, told []string, err error) {
	r := n.runner
	err = r.ask(ctx, func(now int64) {
		partitions = r.handoff.AcceptLoss(now)
		for _, p := range r.placement.view.Members {
			if p != r.self {
				told = append(told, p.Name)
			}
		}
	})
	return partitions, told, err
}
