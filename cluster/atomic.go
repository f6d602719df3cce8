package cluster

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/lease"
	"github.com/sluicecluster/sluice/cluster/share"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
)

// undoLog records the charges of an atomic batch, to undo them if the batch fails. Each check has an ID, which its retries
// keep, so that an owner charges it once. Not safe for concurrent use.
type undoLog struct {
	base   uint64 // ID of check 0
	local  []localCharge
	shares []*share.Receipt // charges to shares of this node
	held   []lease.Held     // charges to what this node has leased of other regions
	remote []remoteCharge
	// hurried: the batch is bounded by its caller's deadline.
	hurried bool
}

// localCharge is a charge in this node's table.
type localCharge struct {
	receipt bucket.Receipt
	key     bucket.Key
}

// remoteCharge is a charge of check index that the node at addr has made, or may have made.
type remoteCharge struct {
	addr  string
	index int
}

var undoLogs = sync.Pool{New: func() any { return new(undoLog) }}

// mayUndo reports whether a charge by a check of verb v may have to be given back, as only those of verb Check may. u may be nil.
func (u *undoLog) mayUndo(v bucket.Verb) bool { return u != nil && v == bucket.Check }

// try decides r on the table of this node, and records a charge that may have to be given back. seq is the number of the change that it
// made, 0 if none.
func (u *undoLog) try(table *bucket.Table, now int64, r *bucket.Request, sync bool) (bucket.Decision, uint64, bucket.Verdict) {
	if !u.mayUndo(r.Verb) {
		return tryTable(table, now, r, sync)
	}
	u.local = append(u.local, localCharge{key: r.Key})
	last := len(u.local) - 1
	d, seq, v := table.Try(now, r, &u.local[last].receipt)
	if !u.local[last].receipt.Charged() {
		u.local, seq = u.local[:last], 0
	}
	return d, seq, v
}

// tryTable decides r on table. seq is the number of the charge, 0 if there is none or if it needs no confirmation: a replica that
// misses a refund, a reset or a denial admits no more for it. A repeated charge with Once needs that of the first.
func tryTable(table *bucket.Table, now int64, r *bucket.Request, sync bool) (d bucket.Decision, seq uint64, v bucket.Verdict) {
	if !sync {
		d, _, v = table.Try(now, r, nil)
		return d, 0, v
	}
	if r.Reservation != nil { // a repeated one waits for what the first has changed
		if d, seq, v = table.Try(now, r, nil); r.Verb == bucket.Reserve && !d.Allowed {
			seq = 0
		}
		return d, seq, v
	}
	var rc bucket.Receipt
	d, seq, v = table.Try(now, r, &rc)
	if !rc.Charged() && r.Once == 0 {
		seq = 0
	}
	return d, seq, v
}

// decideAtomic decides an atomic batch: all checks at once, and if one of verb Check is denied or has no answer, it gives all
// charges back. A denial by a rule in shadow mode fails no batch, and a failure does not change its answer, though its charge
// is given back with the others.
//
// A failure changes the answers that were admitted: they become denied, and may be retried when the failed check may be. Limit
// and Remaining stay as they were with the charge: the limiter reads them again.
func (n *Node) decideAtomic(ctx context.Context, b *check.Batch) {
	u := undoLogs.Get().(*undoLog)
	count := uint64(len(b.Requests))
	u.base = n.ids.Add(count) - count + 1
	ctx, hurried, cancel := n.bounded(ctx)
	defer cancel()
	u.hurried = hurried
	n.forward(ctx, b, u)
	if failed, retry := failure(b); failed {
		for i := range b.Requests {
			r, a := &b.Requests[i], &b.Answers[i]
			if r.Verb == bucket.Check && !r.Shadow && a.Allowed {
				a.Allowed, a.Soft, a.Delay, a.GivenBack = false, false, 0, true
				if retry != bucket.Never { // Never is said of the check that costs too much
					a.RetryAfter = max(a.RetryAfter, retry)
				}
			}
		}
		n.giveBack(ctx, b, u)
	}
	clear(u.local)
	clear(u.shares)
	clear(u.held)
	clear(u.remote)
	*u = undoLog{local: u.local[:0], shares: u.shares[:0], held: u.held[:0], remote: u.remote[:0]}
	undoLogs.Put(u)
}

// failure reports whether some check fails the batch, and the longest RetryAfter of such a check.
func failure(b *check.Batch) (failed bool, retry time.Duration) {
	for i := range b.Requests {
		r, a := &b.Requests[i], &b.Answers[i]
		if r.Verb == bucket.Check && !a.Allowed && (a.Err != nil || !r.Shadow) {
			failed, retry = true, max(retry, a.RetryAfter)
		}
	}
	return failed, retry
}

// Backoff between attempts to give charges back, doubling.
const (
	firstGiveBackWait = 10 * time.Millisecond
	lastGiveBackWait  = 200 * time.Millisecond
)

// giveBack undoes the charges in u: here at once, elsewhere by a goroutine per node. It returns when all is given back, or
// when ctx ends; the goroutines go on then.
func (n *Node) giveBack(ctx context.Context, b *check.Batch, u *undoLog) {
	n.giveBackLocal(u)
	if len(u.remote) == 0 {
		return
	}
	slices.SortFunc(u.remote, func(a, b remoteCharge) int { return cmp.Or(strings.Compare(a.addr, b.addr), a.index-b.index) })
	left := slices.Compact(u.remote)
	var group sync.WaitGroup
	for len(left) > 0 {
		// The goroutines may outlive the batch, so they get records of their own.
		addr := left[0].addr
		var records []check.Record
		for ; len(left) > 0 && left[0].addr == addr; left = left[1:] {
			rec := check.Record{GiveBack: true, ID: u.base + uint64(left[0].index)}
			rec.Key = b.Requests[left[0].index].Key
			records = append(records, rec)
		}
		group.Add(1)
		n.background.Go(func() {
			defer group.Done()
			n.giveBackTo(addr, records)
		})
	}
	done := make(chan struct{})
	n.background.Go(func() {
		group.Wait()
		close(done)
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// giveBackLocal undoes the charges of this node's own tables. A charge in a partition that has moved to another node stands
// there.
func (n *Node) giveBackLocal(u *undoLog) {
	now, r := n.cfg.Clock(), n.routing.Load()
	for _, rc := range u.shares {
		n.shares.TakeBack(now, rc)
		n.invalidate(now, rc.Key)
	}
	lost := 0
	for i := range u.held {
		if !u.held[i].GiveBack(now) {
			lost++
		}
	}
	for i := range u.local {
		l := &u.local[i]
		if !r.owns(l.key) {
			lost++
			continue
		}
		n.table.GiveBack(now, &l.receipt)
		n.invalidate(now, l.key)
	}
	n.stats.giveBacksLost.Add(uint64(lost))
	n.stats.gaveBack.Add(uint64(len(u.shares) + len(u.held) + len(u.local) - lost))
}

// giveBackTo gives charges back to the node at addr, until it has acknowledged them or giveBackTimeout has passed. A second
// attempt is harmless, so it retries after every error. It does not depend on the context of the batch, after whose end the
// charges stand all the same.
func (n *Node) giveBackTo(addr string, records []check.Record) {
	ctx, cancel := context.WithTimeout(context.Background(), giveBackTimeout)
	defer cancel()
	replies := make([]check.Reply, len(records))
	for wait := firstGiveBackWait; ; wait = min(2*wait, lastGiveBackWait) {
		try, done := context.WithTimeout(ctx, n.cfg.CheckTimeout)
		err := n.cfg.Peers.Call(try, addr, records, replies)
		done()
		if err == nil {
			n.stats.gaveBack.Add(uint64(len(records)))
			return
		}
		if !pause.For(ctx, wait) {
			n.stats.giveBacksLost.Add(uint64(len(records)))
			return
		}
	}
}
