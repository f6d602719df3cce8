package cluster

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/check"
)

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
		n.madeRoom(now, rc.Key)
	}
	for i := range w.local {
		l := &w.local[i]
		if !r.holds(l.key) {
			lost++
			continue
		}
		back++
		l.table.GiveBack(now, &l.receipt)
		n.madeRoom(now, l.key)
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
