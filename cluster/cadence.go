package cluster

import (
	"time"
)

const (
	// period is how often both machines are given the time at least while something goes on.
	period = 20 * time.Millisecond
	// After calmAfter in which nothing has gone on it is calmPeriod, or until the next heartbeat is due.
	calmAfter  = time.Second
	calmPeriod = 100 * time.Millisecond
)

// cadence says when the runner takes a turn of its own accord, so that an idle node sleeps: each time that it wakes costs it
// more than the turn does. One goroutine uses it.
type cadence struct {
	tick    *time.Ticker
	stirred int64 // when something last went on
	calm    bool
}

// newCadence returns one in which something goes on. Stop its tick.
func newCadence(now int64) *cadence { return &cadence{tick: time.NewTicker(period), stirred: now} }

// stir notes that something goes on.
func (c *cadence) stir(now int64) {
	c.stirred = now
	if c.calm {
		c.calm = false
		c.tick.Reset(period)
	}
}

// turned follows a turn. While it is calm, the next one is calmPeriod from it, whatever it was for, or at due.
func (c *cadence) turned(now, due int64) {
	c.calm = c.calm || now-c.stirred >= int64(calmAfter)
	if c.calm {
		c.tick.Reset(time.Duration(min(now+int64(calmPeriod), max(due, now+int64(time.Millisecond))) - now))
	}
}

// task is when to do work that comes up now and then: every period while there is some. It rests
// otherwise, so that an idle node sleeps. One goroutine uses it, but for call.
type task struct {
	calls  chan struct{}
	period time.Duration
	tick   *time.Ticker // nil before the first call
	// Of these two, one is nil: due tells when to work, woken that begin is to be called.
	due   <-chan time.Time
	woken <-chan struct{}
}

func newTask(period time.Duration) *task {
	c := &task{calls: make(chan struct{}, 1), period: period}
	c.woken = c.calls
	return c
}

// call says that there is work, once it is there to be seen. Safe for concurrent use.
func (c *task) call() { signal(c.calls) }

// begin follows a receipt from woken.
func (c *task) begin() {
	c.tick = time.NewTicker(c.period)
	c.due, c.woken = c.tick.C, nil
}

// done says whether there is more to do after this time. What is called for during the work is not missed: the call
// waits.
func (c *task) done(more bool) {
	if more {
		return
	}
	c.tick.Stop()
	c.due, c.woken = nil, c.calls
}

// stop ends it.
func (c *task) stop() {
	if c.tick != nil {
		c.tick.Stop()
	}
}
