package cluster

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster/share"
	"github.com/sluice-project/sluice/internal/check"
)

// whole remembers what the checks of an all-or-nothing batch have charged, so that
// it can be given back. Every check has an id for that; a check that is sent again
// keeps it, so that an owner charges it once. Not safe for concurrent use.
type whole struct {
	base  uint64 // the id of check 0
	local []localCharge
	// shares are what it has charged to shares of this node.
	shares []*share.Receipt
	away   []awayCharge
}

// localCharge is one in a table of this node.
type localCharge struct {
	table   *bucket.Table
	receipt bucket.Receipt
	key     bucket.Key
}

// awayCharge is one that the node at addr has made, or may have.
type awayCharge struct {
	addr  string
	index int
}

var wholes = sync.Pool{New: func() any { return new(whole) }}

// try decides r on the table of what this node holds. A nil w does not remember it. seq
// is that of the change which r has charged, 0 if none.
func (w *whole) try(table *bucket.Table, now int64, r *bucket.Request, sync bool) (bucket.Decision, uint64, bucket.Verdict) {
	if w == nil || r.Verb != bucket.Check {
		return tryOn(table, now, r, sync)
	}
	w.local = append(w.local, localCharge{table: table, key: r.Key})
	last := len(w.local) - 1
	d, seq, v := table.Try(now, r, &w.local[last].receipt)
	if !w.local[last].receipt.Charged() {
		w.local, seq = w.local[:last], 0
	}
	return d, seq, v
}

// tryOn decides r on table. seq is that of the change which r has charged, 0 if none or if
// nobody waits for its confirmation: a copy that misses a refund or a reset, or that a check was
// denied, admits no more for it.
func tryOn(table *bucket.Table, now int64, r *bucket.Request, sync bool) (d bucket.Decision, seq uint64, v bucket.Verdict) {
	if !sync {
		d, _, v = table.Try(now, r, nil)
		return d, 0, v
	}
	var rc bucket.Receipt
	d, seq, v = table.Try(now, r, &rc)
	if !rc.Charged() {
		seq = 0
	}
	return d, seq, v
}

// mark makes the record of check index one whose charge is held.
func (w *whole) mark(rec *check.Record, index int) {
	if rec.Verb == bucket.Check {
		rec.Hold, rec.ID = true, w.base+uint64(index)
	}
}

// sent notes that the node at addr may have charged check index.
func (w *whole) sent(addr string, index int) { w.away = append(w.away, awayCharge{addr, index}) }

// decideWhole decides an all-or-nothing batch: all checks at once, and if one of
// verb Check is denied or has no answer, everything back. The denial of a rule in
// shadow mode fails no batch, and a failure does not change its answer, though its
// charge is given back with the others.
//
// The answers that a failure changes are those that were admitted: they are not
// allowed, and may be tried again when the check that failed may be. Limit and
// Remaining stay as they were with the charge.
func (n *Node) decideWhole(ctx context.Context, b *check.Batch) {
	w := wholes.Get().(*whole)
	count := uint64(len(b.Requests))
	w.base = n.ids.Add(count) - count + 1
	ctx, cancel := n.bounded(ctx)
	defer cancel()
	n.forward(ctx, b, w)
	if failed, retry := failure(b); failed {
		for i := range b.Requests {
			r, a := &b.Requests[i], &b.Answers[i]
			if r.Verb == bucket.Check && !r.Shadow && a.Allowed {
				a.Allowed, a.Soft, a.Delay, a.GivenBack = false, false, 0, true
				if retry != bucket.Never { // that is said of the check whose cost it is
					a.RetryAfter = max(a.RetryAfter, retry)
				}
			}
		}
		n.giveBack(ctx, b, w)
	}
	clear(w.local)
	clear(w.shares)
	clear(w.away)
	*w = whole{local: w.local[:0], shares: w.shares[:0], away: w.away[:0]}
	wholes.Put(w)
}

// failure reports whether some check fails the batch, and the longest time after
// which such a check may be tried again.
func failure(b *check.Batch) (failed bool, retry time.Duration) {
	for i := range b.Requests {
		r, a := &b.Requests[i], &b.Answers[i]
		if r.Verb != bucket.Check || a.Allowed || a.Err == nil && r.Shadow {
			continue
		}
		failed = true
		retry = max(retry, a.RetryAfter)
	}
	return failed, retry
}

// Waits between attempts to give charges back, doubling.
const (
	firstGiveBackWait = 10 * time.Millisecond
	lastGiveBackWait  = 200 * time.Millisecond
)

// giveBack undoes what w remembers: here at once, elsewhere by a goroutine per node.
// It returns when all is given back, or when ctx ends; the goroutines go on then.
func (n *Node) giveBack(ctx context.Context, b *check.Batch, w *whole) {
	if len(w.local)+len(w.shares) > 0 {
		n.giveBackHere(w)
	}
	if len(w.away) == 0 {
		return
	}
	slices.SortFunc(w.away, func(a, b awayCharge) int {
		if c := strings.Compare(a.addr, b.addr); c != 0 {
			return c
		}
		return a.index - b.index
	})
	away := slices.Compact(w.away)
	var group sync.WaitGroup
	for len(away) > 0 {
		// The goroutines may outlive the batch, so they get records of their own.
		addr := away[0].addr
		var records []check.Record
		for len(away) > 0 && away[0].addr == addr {
			i := away[0].index
			rec := check.Record{GiveBack: true, ID: w.base + uint64(i)}
			rec.Key = b.Requests[i].Key
			records = append(records, rec)
			away = away[1:]
		}
		group.Add(1)
		n.returning.Go(func() {
			defer group.Done()
			n.giveBackTo(addr, records)
		})
	}
	done := make(chan struct{})
	n.returning.Go(func() {
		group.Wait()
		close(done)
	})
	select {
	case <-done:
	case <-ctx.Done():
	}
}

// giveBackHere undoes the charges of this node's own tables. One whose partition has
// moved to another node stands there.
func (n *Node) giveBackHere(w *whole) {
	now, r := n.cfg.Clock(), n.routing.Load()
	lost, back := 0, len(w.shares)
	for _, rc := range w.shares {
		n.shares.TakeBack(now, rc)
		n.invalidated(now, rc.Key)
	}
	for i := range w.local {
		l := &w.local[i]
		if !r.holds(l.key) {
			lost++
			continue
		}
		back++
		l.table.GiveBack(now, &l.receipt)
		n.invalidated(now, l.key)
	}
	n.stats.giveBacksLost.Add(uint64(lost))
	n.stats.gaveBack.Add(uint64(back))
}

// giveBackTo gives charges back to the node at addr, until it has said so or
// GiveBackTimeout has passed. Doing it again is harmless, so every error is met by
// trying again. The context of the batch does not matter here: it may have ended, and
// the charges are standing all the same.
func (n *Node) giveBackTo(addr string, records []check.Record) {
	ctx, cancel := context.WithTimeout(context.Background(), n.cfg.GiveBackTimeout)
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
		if !pause(ctx, wait) {
			n.stats.giveBacksLost.Add(uint64(len(records)))
			return
		}
	}
}

// pause waits for d. It reports false when ctx ended.
func pause(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
