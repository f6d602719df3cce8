package cluster

import (
	"math"
	"sync/atomic"
	"time"
)

// pauseAfter is the time between two turns of the runner from which on the process is taken to have been paused. It takes a
// turn at least every calmPeriod.
const pauseAfter = 300 * time.Millisecond

// fallback says when checks may be answered without their owners. The runner keeps it; checks read it at any time, also
// when a process has just woken and the runner has not run yet.
type fallback struct {
	// grace is how long a process that has woken or lost quorum waits for its peers before it answers without them.
	grace int64
	// hadQuorum: since the start of the process. Before, nothing is known of what was spent, nor of the voters.
	hadQuorum atomic.Bool
	// without is since when the process runs without quorum and without a pause; math.MaxInt64 while it has quorum.
	without atomic.Int64
	// lost is when quorum ended.
	lost atomic.Int64
	// woke is the end of the last pause; turned is the runner's last turn.
	woke, turned atomic.Int64
}

func (f *fallback) init(now int64, grace time.Duration) {
	f.grace = int64(grace)
	f.without.Store(math.MaxInt64)
	f.woke.Store(math.MinInt64)
	f.turned.Store(now)
}

// turn notes a turn of the runner at now, in a process that has quorum until the given time. It reports whether the
// process has got quorum since the turn before.
func (f *fallback) turn(now, until int64) (regained bool) {
	before := f.turned.Swap(now)
	paused := now-before > int64(pauseAfter)
	if paused {
		f.woke.Store(now)
	}
	had := f.without.Load() == math.MaxInt64
	switch {
	case now < until:
		f.hadQuorum.Store(true)
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

// asOf returns the time of which shares are worked out: now with quorum, and else when it ended, since what was left then has
// come back here at this node's part of the rate.
func (f *fallback) asOf(now int64, quorum bool) int64 {
	if quorum || f.without.Load() == math.MaxInt64 {
		return now
	}
	return f.lost.Load()
}

// awake reports whether the process has run for long enough since its last pause to have heard its peers.
func (f *fallback) awake(now int64) bool {
	woke := f.woke.Load()
	return now-f.turned.Load() <= int64(pauseAfter) && (woke == math.MinInt64 || now-woke >= f.grace)
}

// shares reports whether a share may be given: the process knows the voters, and was not paused just now.
func (f *fallback) shares(now int64) bool { return f.hadQuorum.Load() && f.awake(now) }

// atOnce reports whether a process without quorum has been so for long enough that checks need not wait for an owner
// that it does not hear.
func (f *fallback) atOnce(now int64) bool {
	since := f.without.Load()
	return since != math.MaxInt64 && now-since >= f.grace && f.shares(now)
}
