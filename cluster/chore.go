package cluster

import "time"

// chore is when to do work that comes up now and then: every period while there is some. It rests
// otherwise, so that an idle node sleeps. One goroutine uses it, but for call.
type chore struct {
	calls  chan struct{}
	period time.Duration
	tick   *time.Ticker // nil before the first call
	// Of these two, one is nil: due tells when to work, woken that begin is to be called.
	due   <-chan time.Time
	woken <-chan struct{}
}

func newChore(period time.Duration) *chore {
	c := &chore{calls: make(chan struct{}, 1), period: period}
	c.woken = c.calls
	return c
}

// call says that there is work, once it is there to be seen. Safe for concurrent use.
func (c *chore) call() { signal(c.calls) }

// begin follows a receipt from woken.
func (c *chore) begin() {
	c.tick = time.NewTicker(c.period)
	c.due, c.woken = c.tick.C, nil
}

// done says whether there is more to do after this time. What is called for during the work is not missed: the call
// waits.
func (c *chore) done(more bool) {
	if more {
		return
	}
	c.tick.Stop()
	c.due, c.woken = nil, c.calls
}

// stop ends it.
func (c *chore) stop() {
	if c.tick != nil {
		c.tick.Stop()
	}
}
