package shed

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// node serves calls in order on its processors, in simulated time, and shows its Gate what the runtime would show it.
type node struct {
	gate  *Gate
	cost  time.Duration // of a call on a processor
	calls chan call
	wg    sync.WaitGroup

	mu struct {
		sync.Mutex
		waits    []time.Duration // of the calls begun in this tick
		admitted []served
		rejected []time.Duration // when
	}
	began time.Time
}

type call struct {
	came time.Time
	done chan struct{} // nil if nobody waits for it
}

// served is a call that was: when it came, counted from the beginning, and how long it took.
type served struct{ at, took time.Duration }

// simulate runs f on a node with a target of 10 ms.
func simulate(t *testing.T, processors int, cost time.Duration, f func(*node)) {
	synctest.Test(t, func(t *testing.T) {
		n := &node{
			gate: gate(t, Config{MaxCalls: 1 << 14, MaxWait: 10 * time.Millisecond}),
			cost: cost, calls: make(chan call, 1<<20), began: time.Now(),
		}
		stop := make(chan struct{})
		for range processors {
			n.wg.Go(n.serve)
		}
		n.wg.Go(func() { n.observe(stop) })
		f(n)
		close(stop)
		close(n.calls)
		n.wg.Wait()
	})
}

func (n *node) serve() {
	for c := range n.calls {
		wait := time.Since(c.came)
		if !n.gate.Enter(1) {
			panic("no place")
		}
		time.Sleep(n.cost)
		n.gate.Leave(1)
		n.mu.Lock()
		n.mu.waits = append(n.mu.waits, wait)
		n.mu.admitted = append(n.mu.admitted, served{c.came.Sub(n.began), time.Since(c.came)})
		n.mu.Unlock()
		if c.done != nil {
			close(c.done)
		}
	}
}

func (n *node) observe(stop <-chan struct{}) {
	tick := time.NewTicker(Tick)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		l := Load{Waiting: len(n.calls)}
		n.mu.Lock()
		if slices.Sort(n.mu.waits); len(n.mu.waits) > 0 {
			l.Wait = n.mu.waits[len(n.mu.waits)*9/10]
		}
		n.mu.waits = nil
		n.mu.Unlock()
		n.gate.Observe(l)
	}
}

// offer has the gate decide about a call.
func (n *node) offer(done chan struct{}) bool {
	if !n.gate.Admit() {
		n.mu.Lock()
		n.mu.rejected = append(n.mu.rejected, time.Since(n.began))
		n.mu.Unlock()
		return false
	}
	n.calls <- call{time.Now(), done}
	return true
}

// closedLoop has callers that call again once they have their response, or 10 ms after they were rejected.
func (n *node) closedLoop(callers int, d time.Duration) {
	end := time.Now().Add(d)
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for time.Now().Before(end) {
				if done := make(chan struct{}); n.offer(done) {
					<-done
				} else {
					time.Sleep(10 * time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
}

// openLoop has calls come one after the other whatever becomes of them.
func (n *node) openLoop(every, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(every) {
		n.offer(nil)
	}
}

// 64 callers who wait for their responses are served, however slowly.
func TestClosedLoopIsServed(t *testing.T) {
	for _, processors := range []int{1, 2} {
		for _, cost := range []time.Duration{20 * time.Microsecond, time.Millisecond, 5 * time.Millisecond} {
			simulate(t, processors, cost, func(n *node) {
				n.closedLoop(64, 5*time.Second)
				if len(n.mu.rejected) > 0 {
					t.Errorf("%d processors, %v a call: %d rejected, the first after %v", processors, cost, len(n.mu.rejected), n.mu.rejected[0])
				}
			})
		}
	}
}

// Twice what a node can do: what it admits is answered within 100 ms, and it is kept busy.
func TestOpenLoopIsShed(t *testing.T) {
	const short, long = 10 * time.Second, 130 * time.Second // long has two probes
	for _, c := range []struct {
		processors int
		cost       time.Duration
		d          time.Duration
	}{
		{1, 200 * time.Microsecond, short}, {2, 200 * time.Microsecond, short},
		{1, time.Millisecond, long}, {2, time.Millisecond, short}, {1, 2 * time.Millisecond, long},
	} {
		simulate(t, c.processors, c.cost, func(n *node) {
			n.openLoop(c.cost/time.Duration(2*c.processors), c.d)
			var took []time.Duration
			for _, s := range n.mu.admitted {
				if s.at > time.Second { // it finds out
					took = append(took, s.took)
				}
			}
			slices.Sort(took)
			p50, p99 := took[len(took)/2], took[len(took)*99/100]
			if p99 >= 100*time.Millisecond {
				t.Errorf("%+v: p99 of what was admitted is %v", c, p99)
			}
			if longest := took[len(took)-1]; longest > 250*time.Millisecond {
				t.Errorf("%+v: a call took %v: a crowd came back, and was let be", c, longest)
			}
			used := float64(len(took)) * c.cost.Seconds() / float64(c.processors) / (c.d - time.Second).Seconds()
			if used < 0.85 {
				t.Errorf("%+v: %.2f of the processors was used", c, used)
			}
			t.Logf("%+v: p50 %v, p99 %v, longest %v, used %.2f", c, p50, p99, took[len(took)-1], used)
		})
	}
}

// Once overload is over, callers who wait for their responses are served again, though they keep the processor full.
func TestClosedLoopIsServedAfterOverload(t *testing.T) {
	simulate(t, 1, time.Millisecond, func(n *node) {
		n.openLoop(n.cost/4, 5*time.Second)
		if n.gate.Stats().Rejecting == 0 {
			t.Fatal("nothing is rejected under four times the load")
		}
		n.closedLoop(64, 100*time.Second)
		last := n.mu.rejected[len(n.mu.rejected)-1] - 5*time.Second
		if last > time.Minute {
			t.Errorf("calls were rejected %v after the overload", last)
		}
		t.Logf("the last one was rejected %v after the overload", last)
	})
}
