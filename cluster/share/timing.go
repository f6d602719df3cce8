package share

import (
	"math"
	"sync/atomic"
	"time"
)

// pauseAfter is the time between two turns of a process from which on it is taken to have been paused.
const pauseAfter = 300 * time.Millisecond

// settleWithin is how long a process that has quorum waits for its partitions and their replicas, at most, before it counts as settled.
const settleWithin = 30 * time.Second

// Timing says when checks may be answered without their owners. One goroutine, the runner, takes its turns; checks read it at any
// time, also when a process has just woken and the runner has not run yet.
type Timing struct {
	// grace is how long a process that has woken or lost quorum waits for its peers before it answers without them.
	grace int64
	// timeout is how long a check may wait for an owner.
	timeout int64
	// from is when a share may first be given; math.MaxInt64 before that is known. Before the process has quorum nothing is known of
	// what was spent, nor of the voters; until partitions have owners and replicas, checks wait for these and not for a lost node.
	from atomic.Int64
	// began is when the process first had quorum, 0 before; the runner's alone.
	began int64
	// without is since when the process runs without quorum and without a pause; math.MaxInt64 while it has quorum.
	without atomic.Int64
	// lost is when quorum ended.
	lost atomic.Int64
	// woke is the end of the last pause; turned is the runner's last turn.
	woke, turned atomic.Int64
}

// Start is called before all else, at the start of the process.
func (f *Timing) Start(now int64, grace, timeout time.Duration) {
	f.grace, f.timeout = int64(grace), int64(timeout)
	f.from.Store(math.MaxInt64)
	f.without.Store(math.MaxInt64)
	f.woke.Store(math.MinInt64)
	f.turned.Store(now)
}

// Turn notes a turn of the runner at now, in a process that has quorum until the given time. It reports whether the
// process has got quorum since the turn before.
func (f *Timing) Turn(now, until int64) (regained bool) {
	before := f.turned.Swap(now)
	paused := now-before > int64(pauseAfter)
	if paused {
		f.woke.Store(now)
	}
	had := f.without.Load() == math.MaxInt64
	switch {
	case now < until:
		if f.began == 0 {
			f.began = now
		}
		f.without.Store(math.MaxInt64)
		return !had
	case had:
		f.lost.Store(min(max(before, until), now))
		f.without.Store(now)
	case paused:
		f.without.Store(now)
	}
	return false
}

// Settle notes whether the process has settled: it has quorum, holds its partitions and has replicas of them. Checks that
// came before are denied, not answered by a share.
func (f *Timing) Settle(now int64, settled bool) {
	if settled || f.began != 0 && now-f.began >= int64(settleWithin) {
		f.from.Store(now + f.timeout)
	}
}

// Settling reports whether settle waits to be told.
func (f *Timing) Settling() bool { return f.from.Load() == math.MaxInt64 }

// AsOf returns the time of which shares are worked out: now with quorum, and else when it ended, since what was left then has
// come back here at this node's part of the rate.
func (f *Timing) AsOf(now int64, quorum bool) int64 {
	if quorum || f.without.Load() == math.MaxInt64 {
		return now
	}
	return f.lost.Load()
}

// awake reports whether the process has run for long enough since its last pause to have heard its peers.
func (f *Timing) awake(now int64) bool {
	woke := f.woke.Load()
	return now-f.turned.Load() <= int64(pauseAfter) && (woke == math.MinInt64 || now-woke >= f.grace)
}

// MayShare reports whether a share may be given: the process has settled since it started, and was not paused just now.
func (f *Timing) MayShare(now int64) bool { return now >= f.from.Load() && f.awake(now) }

// AtOnce reports whether a process without quorum has been so for long enough that checks need not wait for an owner
// that it does not hear.
func (f *Timing) AtOnce(now int64) bool {
	since := f.without.Load()
	return since != math.MaxInt64 && now-since >= f.grace && f.MayShare(now)
}
