package cluster

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/snapshot"
)

// TestLiveTraffic: while a cluster grows from one node to three and shrinks again, every
// key, of a sync rule or not, has one owner that knows all that was spent: each admits its limit exactly,
// no check is answered without an owner, and nothing is charged twice.
func TestLiveTraffic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const limit = 300
		keys := requests(60, hourly(limit))
		for i := range keys {
			keys[i].Sync = i%3 == 0
		}
		f := newFleet(t, "a")
		var l load
		l.ask(f.nodes["a"].Node, keys)
		time.Sleep(100 * time.Millisecond)
		l.ask(f.join("b").Node, keys)
		time.Sleep(100 * time.Millisecond)
		l.ask(f.join("c").Node, keys)
		time.Sleep(100 * time.Millisecond)
		if count := f.owners(); len(count) != 3 {
			t.Errorf("held by %v, want by all three", count)
		}
		f.handOff("a")
		if count := f.owners(); count["a"] != 0 || len(count) != 2 {
			t.Errorf("held by %v, want by b and c", count)
		}
		time.Sleep(time.Second) // a goes on asking
		admitted, apart := l.end()
		for i, n := range admitted {
			if n != limit {
				t.Errorf("key %d: %d admitted, want %d", i, n, limit)
			}
		}
		if apart != 0 {
			t.Errorf("%d admitted without an owner", apart)
		}
		for name, n := range f.nodes {
			s := n.Stats()
			if s.Share+s.MinorityShare+s.Ambiguous+s.Unanswered != 0 || s.Partitions.Takeovers != s.Partitions.WithoutState || s.Partitions.SteppedDown != 0 {
				t.Errorf("%s: %+v", name, s)
			}
		}
	})
}

// TestCrash: when one of three is gone, the others claim what it held out of their
// copies: nothing that was confirmed is forgotten.
func TestCrash(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		keys := requests(60, hourly(10))
		for range 6 {
			decide(t.Context(), f.nodes["a"].Node, keys...)
		}
		time.Sleep(100 * time.Millisecond) // copies are level
		f.kill("b")
		f.allHeld(5 * time.Second)
		var l load
		for _, n := range f.nodes {
			l.ask(n.Node, keys)
		}
		time.Sleep(time.Second)
		admitted, _ := l.end()
		for i, n := range admitted {
			if n != 4 {
				t.Errorf("key %d: %d admitted after the crash, want the 4 that were left", i, n)
			}
		}
		if log := f.nodes["a"].log.String(); !strings.Contains(log, "partitions taken over") || strings.Contains(log, "quorum lost") {
			t.Errorf("a's log:\n%s", log)
		}
	})
}

// TestBackAtOnce: a node that crashes and is back after 0.1 s may claim nothing for some seconds, as it does not know what its earlier run
// has promised. It is counted at once, but others own its partitions until then: keys wait for as long as after any crash.
func TestBackAtOnce(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		keys := requests(60, hourly(10))
		for range 6 {
			decide(t.Context(), f.nodes["a"].Node, keys...)
		}
		time.Sleep(100 * time.Millisecond) // replicas have it
		f.kill("a")
		time.Sleep(100 * time.Millisecond)
		n := f.start("a")
		served := make(chan struct{})
		go func() {
			defer close(served)
			f.serve(n)
		}()
		time.Sleep(1300 * time.Millisecond)
		if count := f.owners(); count["b"]+count["c"] != 31 {
			t.Errorf("1.3 s later partitions are owned by %v, want all 31 by b and c", count)
		}
		<-served
		f.within(10*time.Second, "a is settled", n.Settled)
		if count := f.owners(); count["a"] == 0 {
			t.Errorf("in the end partitions are owned by %v, want some by a", count)
		}
		f.wantLeft(keys, 4)
	})
}

// TestNewcomer: who has only just appeared counts as living until it has had time to be
// heard; who is silent after that does not.
func TestNewcomer(t *testing.T) {
	running(t, "a b", func(t *testing.T, f *fleet) {
		f.loses(func(_, to string, _ message.Envelope) bool { return to == "x" })
		x := f.start("x")
		f.eventually(100*time.Millisecond, "the others are seen", func() bool { return len(x.Ring().Members()) == 2 })
		dead := x.cfg.leastSilence()
		time.Sleep(dead / 2)
		if got := x.Ring().Members(); len(got) != 2 {
			t.Errorf("the ring of %v", got)
		}
		f.eventually(dead, "they are silent for too long", func() bool { return len(x.Ring().Members()) == 0 })
	})
}

// TestAllLeave: where everybody leaves nobody waits for a next owner.
func TestAllLeave(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		for name := range f.nodes {
			f.state(name, member.Leaving)
		}
		start := time.Now()
		held := 0
		for _, n := range f.nodes {
			f.within(time.Second, "nobody is left to take it", func(ctx context.Context) error {
				_, left, err := n.HandOff(ctx)
				held += left
				return err
			})
		}
		if took := time.Since(start); took > 100*time.Millisecond || held < 31 {
			t.Errorf("it took %v, and %d partitions are still held", took, held)
		}
		for name, n := range f.nodes {
			a := decide(t.Context(), n.Node, requests(1, hourly(5))...)[0]
			if a.Err != nil || a.Limit != 5 {
				t.Errorf("asked at %s meanwhile: %+v", name, a)
			}
		}
	})
}

// TestGossipLags: nodes that leave at once hand everything off once, to those who stay,
// although gossip takes a while to tell them of each other.
func TestGossipLags(t *testing.T) {
	running(t, "a b c d", func(t *testing.T, f *fleet) {
		time.Sleep(2 * time.Second)
		left := make(chan int)
		var before [2]handoff.Stats
		for i, name := range []string{"a", "b"} {
			before[i] = f.nodes[name].Stats().Partitions
			all := f.members[name]
			m := all
			m.State = member.Leaving
			f.members[name] = m
			f.gossipTo(name)
			f.members[name] = all
			go func() {
				_, n, _ := f.nodes[name].HandOff(t.Context())
				left <- n
			}()
		}
		time.Sleep(300 * time.Millisecond)
		f.state("a", member.Leaving)
		f.state("b", member.Leaving)
		if a, b := <-left, <-left; a+b != 0 {
			t.Errorf("%d and %d left", a, b)
		}
		time.Sleep(time.Second)
		for i, name := range []string{"a", "b"} {
			s := f.nodes[name].Stats().Partitions
			if s.HandedOff != before[i].HandedOff+uint64(before[i].Owned) || s.Received != before[i].Received {
				t.Errorf("%s: %+v\n after %+v", name, s, before[i])
			}
		}
		f.owners()
	})
}

// TestAlone: a node without others founds, serves and leaves without waiting for any.
func TestAlone(t *testing.T) {
	bubble(t, func(t *testing.T) {
		start := time.Now()
		f := newFleet(t, "a")
		a := f.nodes["a"]
		wantAnswer(t, "alone", decide(t.Context(), a.Node, requests(1, hourly(5))...)[0], true, check.Owned, "a")
		f.state("a", member.Leaving)
		f.within(100*time.Millisecond, "nobody takes it", func(ctx context.Context) error { _, _, err := a.HandOff(ctx); return err })
		f.within(100*time.Millisecond, "nobody else is counted", a.LeaveSet)
		if took := time.Since(start); took > 500*time.Millisecond {
			t.Errorf("a short life of %v", took)
		}
	})
}

// TestNotRunning: what needs the runner fails, rather than waits, when that has ended, and leaves nothing behind.
func TestNotRunning(t *testing.T) {
	running(t, "a", func(t *testing.T, f *fleet) {
		a := f.nodes["a"]
		f.kill("a")
		_, err := a.Overview(t.Context())
		if err != errNotRunning {
			t.Errorf("got %v", err)
		}
		if err := a.Join(t.Context()); err != errNotRunning {
			t.Errorf("got %v", err)
		}
		_, err = a.Snapshot(t.Context(), func(message.Set) (*snapshot.Writer, error) { return nil, errors.New("called") })
		if !errors.Is(err, errNotRunning) {
			t.Errorf("got %v", err)
		}
		if a.mayDecide(a.clock()) {
			t.Error("it has quorum")
		}
		for range 2 * inboxSize {
			a.Deliver(message.Envelope{})
		}
		if n := a.Stats().Dropped; n < inboxSize {
			t.Errorf("%d dropped", n)
		}
	})
}
