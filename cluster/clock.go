package cluster

import (
	"context"
	"time"

	"github.com/sluice-project/sluice/cluster/quorum"
)

// A node whose clock differs from the others' would end its windows at other times. The clock for decisions, leases and quorum
// stays as it is; the tables get the offset of the clock that windows are aligned to.

// ClockStats compares a node's clock with the voters'.
type ClockStats struct {
	// Known: the clocks of a majority of the voters are known. Agree: a majority of the voters has clocks that differ by no more
	// than Config.MaxClockSkew.
	Known, Agree bool
	// Ahead is how far this node's clock is ahead of the median of those that agree, 0 if none do.
	Ahead time.Duration
	// Correction is how far windows are aligned ahead of this node's clock.
	Correction time.Duration
}

// corrector aligns windows to the voters' clocks.
type corrector struct {
	node *Node
	wake chan struct{} // the correction of stats has changed
	// Of the runner's goroutine.
	compared int64
	stats    ClockStats
}

// compare compares this node's clock with the voters', every period.
func (c *corrector) compare(r *runner, now int64) {
	if c.compared != 0 && now < c.compared+int64(period) {
		return
	}
	c.compared = now
	most := int64(c.node.cfg.MaxClockSkew)
	found := r.quorum.Clocks(now, most)
	ahead := correction(found, int64(c.stats.Correction), most)
	c.stats = ClockStats{found.Known, found.Agree, time.Duration(found.Ahead), time.Duration(ahead)}
	if ahead != c.node.ahead.Swap(ahead) {
		signal(c.wake)
	}
}

// correction returns how far windows must be aligned ahead of this node's clock, given that they are ahead by now. A node uses
// its own clock or, where that is off by more than most, the median of the voters. A correction stays in force as long as its
// error is at most most: a little skew is better than change.
func correction(found quorum.Clocks, ahead, most int64) int64 {
	off := func(d int64) bool { return d > most || d < -most }
	switch {
	case !found.Known: // it may be correct
		return ahead
	case !found.Agree:
		return 0
	case !off(found.Ahead + ahead):
		return ahead
	case off(found.Ahead):
		return -found.Ahead
	}
	return 0
}

// run corrects the tables, beside the runner: a table may be large.
func (c *corrector) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
			ahead := c.node.ahead.Load()
			c.node.table.Correct(ahead)
			c.node.shares.Correct(ahead)
		}
	}
}
