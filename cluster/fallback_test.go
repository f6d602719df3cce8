package cluster

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/rules"
)

// policies asks n for one key under each policy, and wants what a process answers that must not give a share: after
// the deadline, only open admits.
func policies(t *testing.T, what string, n *Node) {
	t.Helper()
	var all []check.Request
	for i, p := range []rules.OnFailure{rules.FailShare, rules.FailClosed, rules.FailOpen} {
		r := check.Request{OnFailure: p, OnPartition: p}
		r.Limits, r.Cost, r.Key.Hi, r.Key.Lo = hourly(1000), 1, uint64(i), uint64(i)
		all = append(all, r)
	}
	start := time.Now()
	answers := decide(t.Context(), n, all...)
	if took := time.Since(start); took != n.cfg.CheckTimeout {
		t.Errorf("%s: it took %v, want the whole of the check's time", what, took)
	}
	wantAnswer(t, what+", share", answers[0], false, check.Closed, n.cfg.Name)
	wantAnswer(t, what+", closed", answers[1], false, check.Closed, n.cfg.Name)
	wantAnswer(t, what+", open", answers[2], true, check.Open, n.cfg.Name)
	for i, a := range answers[:2] {
		if a.RetryAfter <= 0 || a.RetryAfter > time.Second {
			t.Errorf("%s: answer %d: retry after %v, want at most a second", what, i, a.RetryAfter)
		}
	}
}

// TestStartingNode: before it has had quorum a process denies what it cannot forward: it knows neither what was
// spent nor how many voters there are.
func TestStartingNode(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newTestCluster(t)
		policies(t, "posed, before the first view", w.add("fresh", nil))
		f := newFleet(t)
		n := f.start("a")
		policies(t, "before a view", n.Node)
		f.show(member.Member{Name: "b", Boot: "0-b", Peer: "nowhere:7462", State: member.Serving})
		time.Sleep(5 * time.Second)
		policies(t, "with a view, without a voter set", n.Node)
	})
}

// TestUnsettledNode: a node that has quorum and never got its partitions gives no share when it is cut off. One that has settled does.
func TestUnsettledNode(t *testing.T) {
	running(t, "a", func(t *testing.T, f *fleet) {
		f.loses(losing[*message.TransferBatch])
		f.serve(f.start("b"))
		time.Sleep(2 * time.Second)
		for _, n := range f.nodes {
			if !n.mayDecide(n.clock()) {
				t.Fatalf("%s has no quorum", n.cfg.Name)
			}
		}
		f.cut("a", "b")
		time.Sleep(2 * time.Second)
		for _, c := range []struct {
			node    string
			allowed bool
			source  check.Source
		}{{"a", true, check.Share}, {"b", false, check.Closed}} {
			n := f.nodes[c.node].Node
			wantAnswer(t, "asked at "+c.node, decide(t.Context(), n, requests(1, hourly(10))...)[0], c.allowed, c.source, c.node)
		}
	})
}

// TestRestartedVoter: a voter that was killed and is back gives no share until it has quorum, and forwards
// as soon as it knows where.
func TestRestartedVoter(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		keys := requests(60, hourly(9))
		f.kill("c")
		f.eventually(5*time.Second, "a and b hold all", func() bool { return f.owned() == 31 })
		f.spend(f.nodes["a"].Node, keys)
		f.cut("ab", "c")
		c := f.start("c")
		joined := make(chan error, 1)
		go func() { joined <- errors.Join(c.MayFound(t.Context(), true, true), c.Join(t.Context())) }()
		for range 3 {
			for _, a := range decide(t.Context(), c.Node, keys...) {
				if a.Allowed || a.Source != check.Closed {
					t.Fatalf("cut off: %+v", a)
				}
			}
		}
		f.cut()
		start := time.Now()
		for !c.mayDecide(c.clock()) {
			for _, a := range decide(t.Context(), c.Node, keys...) {
				if a.Allowed {
					t.Fatalf("%v after the start: %+v", time.Since(start), a)
				}
			}
			time.Sleep(time.Millisecond)
		}
		must(t, <-joined)
		f.state("c", member.Serving)
		f.within(10*time.Second, "c is settled", c.Settled)
		for _, a := range decide(t.Context(), c.Node, keys...) {
			if a.Allowed || a.Source != check.Owned && a.Source != check.Forwarded {
				t.Errorf("settled: %+v", a)
			}
		}
	})
}

// spend spends keys wholly.
func (f *fleet) spend(n *Node, keys []check.Request) {
	f.t.Helper()
	for i := range keys {
		all := keys[i]
		all.Cost = all.Limits.At(0).Count
		if a := decide(context.Background(), n, all)[0]; !a.Allowed {
			f.t.Fatalf("spending key %d: %+v", i, a)
		}
	}
}

// TestWokenNode: what waited in the sockets of a paused process is not answered by shares when it wakes.
func TestWokenNode(t *testing.T) {
	for _, pause := range []time.Duration{650 * time.Millisecond, 2 * time.Second, time.Minute} {
		running(t, "a b c", func(t *testing.T, f *fleet) {
			c := f.nodes["c"]
			keys := requests(60, hourly(9))
			f.spend(f.nodes["a"].Node, keys)
			c.asleep.Add(int64(pause)) // its clock has gone on, and it has read nothing
			for round := range 100 {
				for i, a := range decide(t.Context(), c.Node, keys...) {
					if a.Allowed || a.Source == check.Share {
						t.Fatalf("after %v, round %d, key %d: %+v", pause, round, i, a)
					}
				}
				time.Sleep(10 * time.Millisecond)
			}
			if s := c.Stats(); s.Share+s.MinorityShare > 0 {
				t.Errorf("after %v: %d shares", pause, s.Share+s.MinorityShare)
			}
		})
	}
}

// TestWokenNodeHearsNobody: nor by shares when the caller cannot wait, while the peers are still to be heard.
func TestWokenNodeHearsNobody(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		c := f.nodes["c"]
		f.cut("ab", "c")
		c.asleep.Add(int64(2 * time.Second))
		woke := time.Now()
		for answered := map[check.Source]bool{}; !answered[check.Share]; {
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			for i, a := range decide(ctx, c.Node, requests(60, hourly(9))...) {
				early := time.Since(woke) < c.cfg.leastSilence()
				if early && (a.Allowed || a.Source == check.Share) {
					t.Fatalf("%v after it woke, key %d: %+v", time.Since(woke), i, a)
				}
				answered[a.Source] = true
			}
			cancel()
			if time.Since(woke) > 5*time.Second {
				t.Fatal("it gives no share")
			}
		}
	})
}

// TestQuorumLostForAMoment: a node that loses quorum for less than a second while its peers live waits for it.
func TestQuorumLostForAMoment(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		c := f.nodes["c"]
		keys := requests(60, hourly(9))
		f.loses(losing[*message.Ack])
		f.eventually(time.Second, "nobody has quorum", func() bool {
			for _, n := range f.nodes {
				if n.mayDecide(n.clock()) {
					return false
				}
			}
			return true
		})
		time.AfterFunc(300*time.Millisecond, func() { f.loses(nil) })
		for i, a := range decide(t.Context(), c.Node, keys...) {
			if a.Source != check.Owned && a.Source != check.Forwarded {
				t.Errorf("key %d: %+v", i, a)
			}
		}
	})
}
