package cluster

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

const (
	// settlePeriod is how often holders are told what was admitted without them, and
	// settleBatch of how many keys at once.
	settlePeriod = 100 * time.Millisecond
	settleBatch  = 512
)

// owed remembers what this node has admitted without a holder and not told one yet, key
// by key, the oldest first. Above max keys the oldest is forgotten.
type owed struct {
	max   int
	chore *chore
	mu    struct {
		sync.Mutex
		debts     map[bucket.Key]debt
		order     []bucket.Key // of debts
		sent      []debt       // taken, and not answered yet
		forgotten uint64
	}
	// changed holds one when what is on disk is out of date.
	changed chan struct{}
}

// debt is what is owed on one key.
type debt struct {
	key       bucket.Key
	limits    *bucket.Limits
	cost      int64
	transient bool
	at        int64 // of one that an earlier run has left: when it had this cost
}

func newOwed(max int) *owed {
	o := &owed{max: max, chore: newChore(settlePeriod), changed: make(chan struct{}, 1)}
	o.mu.debts = make(map[bucket.Key]debt)
	return o
}

// add notes that r was admitted.
func (o *owed) add(r *bucket.Request) {
	o.put(debt{key: r.Key, limits: r.Limits, cost: max(1, r.Cost), transient: r.Transient})
}

// put adds d to what is owed on its key.
func (o *owed) put(d debt) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before, known := o.mu.debts[d.key]
	if !known {
		if len(o.mu.order) >= o.max {
			delete(o.mu.debts, o.mu.order[0])
			o.mu.order = o.mu.order[1:]
			o.mu.forgotten++
		}
		o.mu.order = append(o.mu.order, d.key)
	}
	d.cost += before.cost
	o.mu.debts[d.key] = d
	o.chore.call()
	signal(o.changed)
}

// forgive notes that an admission was taken back.
func (o *owed) forgive(k bucket.Key, cost int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if d, ok := o.mu.debts[k]; ok {
		d.cost = max(0, d.cost-max(1, cost))
		o.mu.debts[k] = d
		signal(o.changed)
	}
}

// take returns the oldest debts, which are no longer owed then.
func (o *owed) take(most int) []debt {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(most, len(o.mu.order))
	list := make([]debt, n)
	for i, k := range o.mu.order[:n] {
		list[i] = o.mu.debts[k]
		delete(o.mu.debts, k)
	}
	o.mu.order = o.mu.order[n:]
	if n > 0 {
		o.mu.sent = list
	}
	return list
}

// answered says that what was taken is charged, or owed again.
func (o *owed) answered() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.mu.sent != nil {
		o.mu.sent = nil
		signal(o.changed)
	}
}

// all returns all debts, those that were taken and are not answered among them.
func (o *owed) all() []debt {
	o.mu.Lock()
	defer o.mu.Unlock()
	list := slices.Clone(o.mu.sent)
	for _, k := range o.mu.order {
		list = append(list, o.mu.debts[k])
	}
	return list
}

// count returns how many keys are owed for, and how many were forgotten.
func (o *owed) count() (keys int, forgotten uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.mu.order), o.mu.forgotten
}

// settleUp charges to holders what was admitted without them, whenever this node has the
// right to decide and so is among the majority, until ctx ends.
func (n *Node) settleUp(ctx context.Context) {
	chore := n.owed.chore
	defer chore.stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-chore.woken:
			chore.begin()
		case <-chore.due:
			if n.mayDecide(n.cfg.Clock()) {
				n.settle(ctx, n.owed.take(settleBatch))
			}
			keys, _ := n.owed.count()
			chore.done(keys > 0)
		}
	}
}

// settle charges debts. One that no owner has taken is owed again. One that was sent
// without an answer counts as charged: charging it twice would deny what was never
// admitted. It stays spent of this node's share until it expires, as no owner has acknowledged it.
func (n *Node) settle(ctx context.Context, debts []debt) {
	defer n.owed.answered()
	now, voters := n.cfg.Clock(), n.routing.Load().voters
	var b check.Batch
	var of []debt
	for _, d := range debts {
		// What has expired since is no longer to be charged.
		cost := min(d.cost, n.spentApart(now, d, voters))
		if cost <= 0 {
			continue
		}
		of = append(of, d)
		b.Requests = append(b.Requests, check.Request{Request: bucket.Request{
			Key: d.key, Limits: d.limits, Cost: cost, Verb: bucket.Charge, Transient: d.transient,
		}})
	}
	if len(of) == 0 {
		return
	}
	b.Answers = make([]check.Answer, len(of))
	f := n.newForwarding(&b, nil)
	f.once = true
	for i := range of {
		f.pending = append(f.pending, pending{index: i})
	}
	n.finish(ctx, f)
	for i, a := range b.Answers {
		switch {
		case a.Err == nil:
			n.stats.settled.Add(uint64(b.Requests[i].Cost))
			n.acknowledged(of[i], b.Requests[i].Cost, voters)
		case !errors.Is(a.Err, check.ErrAmbiguous):
			n.owed.put(of[i])
		}
	}
}

// acknowledged notes that the owner has charged so much of d: what it says is left of the key has that in it.
func (n *Node) acknowledged(d debt, cost int64, voters int) {
	n.apart.Do(n.cfg.Clock(), &bucket.Request{Key: d.key, Limits: d.limits.Share(voters), Cost: cost, Verb: bucket.Refund})
}

// spentApart returns how much of what was admitted of d's key without its owner counts now: the most that any of
// its limits still counts.
func (n *Node) spentApart(now int64, d debt, voters int) int64 {
	share := d.limits.Share(voters)
	list, _ := n.apart.Look(now, d.key, share)
	return cost(share, list)
}
