package cluster

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/eventual"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/ring"
	"github.com/sluicecluster/sluice/rules"
)

// eventualWindow is long enough that a window's limit is used up in it, and reports come to rest.
const eventualWindow = 10 * time.Second

// eventualCheck returns a check of cost 1 of one key in eventual mode.
func eventualCheck(limit int64) check.Request {
	return check.Request{
		Request: bucket.Request{
			Key: bucket.Key{Hi: 7, Lo: 3}, Cost: 1,
			Limits: limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: limit, Period: eventualWindow}),
		},
		Eventual: true, OnPartition: rules.FailClosed, OnFailure: rules.FailClosed,
	}
}

// beginning waits for the beginning of a window.
func beginning(q check.Request, n *runningNode) (ends int64) {
	time.Sleep(time.Duration(q.Limits.WindowEnd(n.cfg.Clock()) - n.cfg.Clock()))
	return q.Limits.WindowEnd(n.cfg.Clock())
}

// late makes reports and their answers come d later.
func (f *fleet) late(d time.Duration) {
	if d == 0 {
		return
	}
	f.loses(func(_, to string, e message.Envelope) bool {
		switch e.Body.(type) {
		case *message.Report, *message.Account:
			n := f.nodes[to]
			f.onTheWay.Go(func() {
				time.Sleep(d)
				n.Deliver(e)
			})
			return true
		}
		return false
	})
}

// counted returns what the counter of q's key has counted at its owner, beyond the limit too.
func (f *fleet) counted(q check.Request) int64 {
	q.Limits = limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1 << 40, Period: q.Limits.At(0).Period})
	for _, n := range f.nodes {
		if n.routing.Load().owns(q.Key) {
			return spent(n.Node, q)
		}
	}
	f.t.Error("nobody holds the key")
	return 0
}

// TestEventualExcess: the limit is used up, and what is admitted beyond it stays below the formula. Both are printed
// side by side.
func TestEventualExcess(t *testing.T) {
	const limit, demanded = 2000, 1000
	names := []string{"a", "b", "c", "d", "e"}
	for _, n := range []int{2, 3, 5} {
		for _, delay := range []time.Duration{0, 50 * time.Millisecond, 200 * time.Millisecond} {
			bubbleAs(t, fmt.Sprintf("%d nodes, %v", n, delay), func(t *testing.T) {
				f := newFleet(t, names[:n]...)
				f.late(delay)
				q, d := eventualCheck(limit), new(load)
				first := beginning(q, f.nodes["a"])
				for _, node := range f.nodes {
					d.ask(node.Node, []check.Request{q})
				}
				time.Sleep(eventualWindow - time.Second)
				one := f.counted(q)
				second := beginning(q, f.nodes["a"])
				time.Sleep(eventualWindow - time.Second)
				two := f.counted(q)
				d.end()
				bound := int64(demanded*float64(n-1)*(4*eventual.Period+3*delay).Seconds()) + int64(n)
				for w, counted := range map[int64]int64{first: one, second: two} {
					excess := d.windows[w] - limit
					t.Logf("excess %d, formula %d", excess, bound)
					if excess < 0 || excess > bound {
						t.Errorf("%d admitted of %d, at most %d allowed", d.windows[w], limit, limit+bound)
					}
					if counted != d.windows[w] {
						t.Errorf("the owner has counted %d, admitted were %d", counted, d.windows[w])
					}
				}
				if d.sources[check.Eventual] < d.windows[second] {
					t.Errorf("admitted by source: %v", d.sources)
				}
				// At the beginning of a window it is that of the one before.
				if most := 2*(eventual.Period+2*delay) + 10*time.Millisecond; d.oldest > most {
					t.Errorf("knowledge was %v old, want at most %v", d.oldest, most)
				}
			})
		}
	}
}

// TestEventualCut: who is cut off goes on with its last share until the window ends, and then answers as
// on_partition says. Healed, what it admitted is counted, if its window is not over.
func TestEventualCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const limit = 6000
		f := newFleet(t, "a", "b", "c")
		q := eventualCheck(limit)
		q.Limits = limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: limit, Period: 30 * time.Second})
		for f.nodes["c"].routing.Load().owns(q.Key) {
			q.Key.Lo++
		}
		d := new(load)
		w := beginning(q, f.nodes["a"])
		for _, node := range f.nodes {
			d.ask(node.Node, []check.Request{q})
		}
		time.Sleep(time.Second)
		f.cut("ab", "c")
		time.Sleep(10 * time.Second)
		answer := decide(t.Context(), f.nodes["c"].Node, q)[0]
		wantAnswer(t, "cut off", answer, false, check.Eventual, "c")
		if answer.Age < 9*time.Second {
			t.Errorf("what is known is said to be %v old", answer.Age)
		}
		f.cut()
		time.Sleep(2 * time.Second)
		if counted := f.counted(q); counted != d.windows[w] {
			t.Errorf("the owner has counted %d, admitted were %d", counted, d.windows[w])
		}
		// Of three who ask 1000 times a second, c had a third of what was left after a second.
		excess, bound := d.windows[w]-limit, int64(2*1000*(4*eventual.Period).Seconds())+(limit-3*1000)/3+100
		t.Logf("excess %d after a cut of 10 s, formula %d", excess, bound)
		if excess < 0 || excess > bound {
			t.Errorf("excess %d", excess)
		}
		f.cut("ab", "c")
		d.end()
		beginning(q, f.nodes["a"])
		answer = decide(t.Context(), f.nodes["c"].Node, q)[0]
		wantAnswer(t, "in the next window", answer, false, check.Closed, "c")
	})
}

// TestEventualOwners: the counter is right whoever holds it: after a handoff, and after a crash.
func TestEventualOwners(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const limit = 1 << 30
		f := newFleet(t, "a", "b", "c")
		q, d := eventualCheck(limit), new(load)
		q.Limits = limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: limit, Period: time.Hour})
		w := q.Limits.WindowEnd(f.nodes["a"].clock())
		owner := func() string {
			r := f.nodes["a"].routing.Load()
			return r.nameOf(r.owner(q.Key))
		}
		next := func() string { // who holds it when this one has left
			table, err := ring.Build(f.nodes["a"].cfg.Ring, slices.DeleteFunc([]string{"a", "b", "c"}, func(n string) bool { return n == owner() }))
			must(t, err)
			return table.Owner(q.Key.Shard(31))
		}
		for owner() == "a" || next() == "a" {
			q.Key.Lo++
		}
		d.ask(f.nodes["a"].Node, []check.Request{q})
		time.Sleep(time.Second)
		before := owner()
		f.state(before, member.Leaving)
		f.eventually(10*time.Second, "another holds it", func() bool { return owner() != before })
		time.Sleep(time.Second)
		before = owner()
		f.crash(before)
		f.eventually(10*time.Second, "another holds it after a crash", func() bool { return owner() != before })
		time.Sleep(2 * time.Second)
		d.end()
		time.Sleep(time.Second)
		if counted := f.counted(q); counted != d.windows[w] {
			t.Errorf("the owner has counted %d, admitted were %d: %v", counted, d.windows[w], d.sources)
		}
		if d.sources[check.Eventual] < 1000 {
			t.Errorf("admitted by source: %v", d.sources)
		}
	})
}

// TestEventualRegions: a limit of nodes in three regions under eventual mode is used up, and exceeded by no more than the formula with the
// wide area's delay. Nearly all is decided at the nodes. Without the home they continue until the window ends, and then on_partition
// decides; what they have admitted in the window is counted once the home is back.
func TestEventualRegions(t *testing.T) {
	const limit, demanded = 2000, 1000
	for _, far := range []time.Duration{25 * time.Millisecond, 75 * time.Millisecond, 150 * time.Millisecond} {
		bubbleAs(t, far.String(), func(t *testing.T) {
			w := newWorld(t, far)
			q := eventualCheck(limit)
			q.Limits = global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: limit, Period: eventualWindow})
			ctx, stop := context.WithCancel(t.Context())
			var tasks sync.WaitGroup
			defer tasks.Wait()
			defer stop()
			d, owner := new(load), ""
			for name, n := range w.nodes {
				tasks.Go(func() { n.eventual.task.run(ctx, n.eventual.report) })
				if name[:2] == "eu" && n.routing.Load().owns(q.Key) {
					owner = name // the other one would report by a message, which get lost here
				}
			}
			home := &runningNode{Node: w.nodes[owner]}
			first := beginning(q, home)
			for name, n := range w.nodes {
				if name == owner || name[:2] != "eu" {
					d.ask(n, []check.Request{q})
				}
			}
			counted := func() int64 {
				wide := q
				wide.Limits = global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1 << 40, Period: eventualWindow})
				return spent(home.Node, wide)
			}
			bound := int64(demanded*4*(4*eventual.Period+3*far).Seconds()) + 5
			ended := func(at int64) {
				t.Helper()
				time.Sleep(time.Duration(at-int64(time.Second)) - time.Duration(home.cfg.Clock()))
				d.mu.Lock()
				admitted := d.windows[at]
				d.mu.Unlock()
				t.Logf("excess %d, formula %d", admitted-limit, bound)
				if admitted < limit || admitted > limit+bound {
					t.Errorf("%d admitted of %d, at most %d more allowed", admitted, limit, bound)
				}
				if n := counted(); n != admitted {
					t.Errorf("the home has counted %d, admitted were %d", n, admitted)
				}
			}
			ended(first)
			second := beginning(q, home)
			away := w.homeChecks()
			ended(second)
			if n := w.homeChecks() - away; n > 0 {
				t.Errorf("the home decided %d checks", n)
			}
			third := beginning(q, home)
			time.Sleep(300 * time.Millisecond)
			w.setCut("us", true)
			time.Sleep(3 * time.Second)
			w.setCut("us", false)
			ended(third)
			fourth := beginning(q, home)
			w.setCut("us", true)
			time.Sleep(eventualWindow + 2*time.Second)
			for _, name := range []string{"us1", "us2"} {
				wantAnswer(t, "cut off", decide(t.Context(), w.nodes[name], q)[0], false, check.Closed, name)
			}
			w.setCut("us", false)
			d.end()
			if n := d.windows[fourth]; n < limit || n > 2*limit {
				t.Errorf("%d admitted in the window of the cut, want at most what two regions may admit", n)
			}
		})
	}
}

// TestEventualRoles: sums follow a role that is passed on, and after the loss of the home they are reported to the region that decides then:
// in a window with both, what is admitted is counted once, and the formula holds with the time without a home.
func TestEventualRoles(t *testing.T) {
	for _, lost := range []bool{false, true} {
		bubbleAs(t, fmt.Sprintf("lost=%v", lost), func(t *testing.T) {
			const limit, demanded, window = 20_000, 1000, 60 * time.Second
			p := newPlaying(t, 0, nil)
			q, d := eventualCheck(limit), new(load)
			q.Limits = global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: limit, Period: window})
			ctx, stop := context.WithCancel(t.Context())
			var tasks sync.WaitGroup
			defer tasks.Wait()
			defer stop()
			for _, n := range p.nodes {
				tasks.Go(func() { n.eventual.task.run(ctx, n.eventual.report) })
				tasks.Go(func() { n.eventual.run(ctx) })
			}
			ends := beginning(q, &runningNode{Node: p.nodes["eu1"]})
			for name, n := range p.nodes {
				if !lost || name[:2] != "eu" {
					d.ask(n, []check.Request{q})
				}
			}
			time.Sleep(2 * time.Second)
			began := time.Now()
			if lost {
				p.carry.Lock()
				p.carry.drop = func(from, to string, _ *message.RegionMessages) bool { return from == "eu" || to == "eu" }
				p.carry.Unlock()
				p.setCut("eu", true)
			} else if err := p.pass("eu", "us"); err != nil {
				t.Fatal(err)
			}
			var owner *Node
			for owner == nil && time.Since(began) < 20*time.Second {
				time.Sleep(10 * time.Millisecond)
				for name, n := range p.nodes {
					if _, ok := n.mayPlay(n.cfg.Clock(), "eu"); ok && name[:2] != "eu" && n.routing.Load().owns(q.Key) {
						owner = n
					}
				}
			}
			if owner == nil {
				t.Fatal("no other region decides")
			}
			idle := time.Since(began)
			time.Sleep(time.Duration(ends-int64(10*time.Second)) - time.Duration(owner.cfg.Clock()))
			d.mu.Lock()
			admitted, reported := d.windows[ends], d.windows[ends]
			if lost { // what eu decided itself is lost with it
				reported = d.sources[check.Eventual]
			}
			d.mu.Unlock()
			bound := int64(demanded*5*(4*eventual.Period+3*p.far+idle).Seconds()) + 6
			t.Logf("%d admitted of %d, formula %d, %v until %s decided", admitted, limit, limit+bound, idle, owner.cfg.Name)
			if admitted < limit || admitted > limit+bound {
				t.Errorf("%d admitted", admitted)
			}
			wide := q
			wide.Limits = global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1 << 40, Period: window})
			if n := spent(owner, wide); n != reported {
				t.Errorf("%s has counted %d, admitted were %d", owner.cfg.Name, n, reported)
			}
			d.end()
		})
	}
}
