package cluster

import (
	"context"
	"fmt"
	"math"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/race"
)

// TestClocksThatDiffer: partitions go to a node whose clock is off and back, under load. No key is admitted again before the time that its
// denial said, and none is denied for longer than a few milliseconds beyond it; and every node knows whose clock is off.
func TestClocksThatDiffer(t *testing.T) {
	const period, limit = 2 * time.Second, 5
	var limits []*bucket.Limits
	for _, l := range []bucket.Limit{
		{Algorithm: bucket.FixedWindow}, {Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit},
		{Algorithm: bucket.FixedWindow, Align: bucket.AlignCalendar, Unit: bucket.Minute},
		{Algorithm: bucket.TokenBucket}, {Algorithm: bucket.TokenBucket, Refill: bucket.RefillInterval},
		{Algorithm: bucket.LeakyBucket}, {Algorithm: bucket.LeakyQueue},
		{Algorithm: bucket.SlidingLog}, {Algorithm: bucket.SlidingCounter}, {Algorithm: bucket.SlidingWindow},
	} {
		l.Count = limit
		if l.Align != bucket.AlignCalendar {
			l.Period = period
		}
		limits = append(limits, limitsOf(l))
	}
	shifts := []time.Duration{2 * time.Second, -2 * time.Second, 10 * time.Second, -10 * time.Second, time.Hour, -time.Hour, 700 * time.Millisecond}
	if race.Enabled { // the goroutines are the same whatever the clocks say
		shifts = shifts[:2]
	}
	for _, shift := range shifts {
		for _, first := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, first %v", shift, first), func(t *testing.T) {
				bubble(t, func(t *testing.T) { differ(t, limits, period, shift, first) })
			})
		}
	}
}

// differ has a node whose clock is off by shift join two others, or be there before them, and leave.
func differ(t *testing.T, limits []*bucket.Limits, period, shift time.Duration, first bool) {
	f := newFleet(t)
	wall := steadyClock()
	odd := func(c *Config) { c.Clock = func() int64 { return wall() + int64(shift) } }
	if first {
		f.join("o", odd)
	} else {
		f.join("a")
	}
	f.join("b")
	h := &hammer{t: t, node: f.nodes["b"].Node}
	for _, set := range limits {
		h.requests = append(h.requests, requests(8, set)...)
	}
	for i := range h.requests {
		h.requests[i].Key.Lo = uint64(i) * 0x9e3779b97f4a7c15
	}
	h.keys = make([]hammered, len(h.requests))
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); h.run(ctx) }()
	defer func() { stop(); <-done }()

	time.Sleep(period)
	if first {
		f.join("a") // now the others are a majority
	} else {
		f.join("o", odd)
	}
	time.Sleep(2 * period)
	h.aligned.Store(true)
	time.Sleep(2 * period)
	if moved := f.owners()["o"]; moved == 0 {
		t.Error("the odd one holds nothing")
	}
	for name, n := range f.nodes {
		s, want := n.Stats().Clock, map[string]time.Duration{"o": shift}
		if (s.Ahead-want[name]).Abs() > 5*time.Millisecond || !s.Agree || (s.Correction != 0) != (name == "o") || s.Correction != 0 && (s.Correction+shift).Abs() > 5*time.Millisecond {
			t.Errorf("%s: %+v", name, s)
		}
		o, err := n.Overview(t.Context())
		must(t, err)
		for _, m := range o.Members {
			if m.Ahead == nil || (*m.Ahead-want[m.Name]).Abs() > 5*time.Millisecond {
				t.Errorf("%s of %s: %v", name, m.Name, m.Ahead)
			}
		}
	}
	f.handOff("o")
	time.Sleep(3 * period)
	stop()
	<-done
	for i, k := range h.keys {
		if k.admitted < 2*int(h.requests[i].Limits.At(0).Count) && h.requests[i].Limits.At(0).Align != bucket.AlignCalendar {
			t.Errorf("key %d of %s: %d admitted in all", i, h.requests[i].Limits.At(0).Algorithm, k.admitted)
		}
	}
}

// hammer asks for keys all the time and holds each answer against the ones before.
type hammer struct {
	t        *testing.T
	node     *Node
	requests []check.Request
	keys     []hammered
	// aligned: all windows are those of right clocks by now.
	aligned atomic.Bool
}

// hammered is what one key has answered.
type hammered struct {
	// asked and answered are of the first denial in a row, until is for how long it was.
	asked, answered time.Time
	until           time.Duration
	admitted        int
}

func (h *hammer) run(ctx context.Context) {
	for ctx.Err() == nil {
		asked := time.Now()
		answers := decide(context.WithoutCancel(ctx), h.node, h.requests...)
		answered := time.Now()
		for i, a := range answers {
			h.hold(i, &a, asked, answered)
		}
		time.Sleep(7 * time.Millisecond)
	}
}

func (h *hammer) hold(i int, a *check.Answer, asked, answered time.Time) {
	const slack = 60 * time.Millisecond // on the way, a few handoffs
	k, limit := &h.keys[i], h.requests[i].Limits.At(0)
	switch {
	case a.Err != nil, a.Source == check.Share, a.Source == check.Closed:
		h.t.Errorf("key %d of %s: %+v", i, limit.Algorithm, a)
	case a.Allowed:
		if k.until > 0 && answered.Sub(k.asked) < k.until {
			h.t.Errorf("key %d of %s %s: admitted %v after it was denied for %v", i, limit.Algorithm, limit.Align, answered.Sub(k.asked), k.until)
		}
		k.until = 0
		k.admitted++
	case k.until == 0:
		k.asked, k.answered, k.until = asked, answered, a.RetryAfter
		if longest := max(2*limit.Period, 90*time.Second*time.Duration(min(1, limit.Unit))); k.until > longest || k.until > math.MaxInt64/2 {
			h.t.Errorf("key %d of %s: denied for %v", i, limit.Algorithm, k.until)
		}
		if end := answered.Add(k.until); h.aligned.Load() && limit.Algorithm == bucket.FixedWindow && limit.Align == bucket.AlignEpoch && end.Sub(end.Round(limit.Period)).Abs() > slack {
			h.t.Errorf("key %d of %s: its window ends at %v, which is no boundary of the others' clocks", i, limit.Algorithm, end)
		}
	case asked.Sub(k.answered) > k.until+slack:
		h.t.Errorf("key %d of %s %s: denied %v after it was denied for %v", i, limit.Algorithm, limit.Align, asked.Sub(k.answered), k.until)
	}
}
