package cluster

import (
	"context"
	"time"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/member"
)

// A node whose clock is wrong would end windows at other times than the others. Only the alignment of windows is corrected: the
// tables get an offset. Decisions, leases and quorum use the clock as it is.

// corrector aligns windows to the voters' clocks.
type corrector struct {
	node *Node
	wake chan struct{} // the correction of stats has changed
	// Of the runner's goroutine.
	compared int64
	stats    member.Clocks
}

// compare compares this node's clock with the voters', every period.
func (c *corrector) compare(r *runner, now int64) {
	if c.compared != 0 && now < c.compared+int64(period) {
		return
	}
	c.compared = now
	most := int64(c.stats.MaxSkew)
	found := r.quorum.Clocks(now, most)
	ahead := correction(found, int64(c.stats.Correction), most)
	c.stats = member.Clocks{MaxSkew: c.stats.MaxSkew, Known: found.Known, Agree: found.Agree, Ahead: time.Duration(found.Ahead), Correction: time.Duration(ahead)}
	if ahead != c.node.ahead.Swap(ahead) {
		signal(c.wake)
	}
}

// correction returns the offset of windows from this node's clock; ahead is the present one. It is 0, or minus the difference from
// the voters' median if that is above most. The present offset stays while its error is at most most, since each change moves
// windows.
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
