package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/rules"
)

// settles is more than how long a node that has lost quorum waits for its peers before it answers at once.
const settles = time.Second

// TestMinority: a node that is cut off loses quorum and answers by on_partition, at
// once; the others go on with everything. Healed, it is one of them again, and its
// share is charged.
func TestMinority(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		a, c := f.nodes["a"], f.nodes["c"]
		const limit = 9
		keys := requests(90, hourly(limit))
		for i := range keys {
			keys[i].OnPartition = rules.OnFailure(i % 3)
		}
		f.cut("ab", "c")
		f.eventually(time.Second, "c has lost quorum", func() bool { return !c.mayDecide(c.clock()) })
		time.Sleep(settles) // and a and b are no longer heard
		// The copies are on nodes that are not heard, so they protect nothing.
		f.eventually(time.Second, "c counts its partitions as unprotected", func() bool {
			s := c.Stats().Partitions
			return s.Owned > 0 && s.Unprotected == s.Owned
		})
		for round := range 5 {
			start := time.Now()
			answers := decide(t.Context(), c.Node, keys...)
			if took := time.Since(start); took != 0 {
				t.Errorf("it took %v", took)
			}
			for i, answer := range answers {
				switch rules.OnFailure(i % 3) {
				case rules.FailOpen:
					wantAnswer(t, "open", answer, true, check.Open, "c")
				case rules.FailClosed:
					wantAnswer(t, "closed", answer, false, check.Closed, "c")
				default:
					wantAnswer(t, fmt.Sprintf("share, round %d", round), answer, round < limit/3, check.Share, "c")
				}
			}
		}
		if s := c.Stats(); s.MinorityShare != 150 || s.MinorityClosed != 150 || s.MinorityOpen != 150 || s.Deferred != 30 {
			t.Errorf("%+v", s)
		}
		f.eventually(5*time.Second, "a and b hold all", func() bool { return f.owned("a", "b") == 31 })
		for i, answer := range decide(t.Context(), a.Node, keys...) {
			if answer.Err != nil || answer.Remaining != limit-1 {
				t.Errorf("asked in the majority: key %d: %+v", i, answer)
			}
		}
		f.cut()
		f.eventually(5*time.Second, "c has quorum again", func() bool { return c.mayDecide(c.clock()) })
		f.within(10*time.Second, "c is settled", c.Settled)
		f.eventually(5*time.Second, "all is told", func() bool { return c.Stats().DeferredCharged == 90 && c.Stats().Deferred == 0 })
		f.owners()
		for i, answer := range decide(t.Context(), c.Node, keys...) {
			want := int64(limit - 2)
			if rules.OnFailure(i%3) == rules.FailShare {
				want -= limit / 3
			}
			if answer.Err != nil || answer.Remaining != want || answer.Source == check.Share {
				t.Errorf("healed: key %d: %+v, want %d remaining", i, answer, want)
			}
		}
		f.cut("ab", "c")
		f.eventually(time.Second, "c has lost quorum again", func() bool { return !c.mayDecide(c.clock()) })
		time.Sleep(settles)
		for round := range 2 {
			for i, answer := range decide(t.Context(), c.Node, keys...) {
				// Of a key of which 4 were left when its owner was last heard, a third is 1.
				if rules.OnFailure(i%3) == rules.FailShare && answer.Allowed != (round == 0) {
					t.Errorf("a second cut, round %d, key %d: %+v", round, i, answer)
				}
			}
		}
		time.Sleep(200 * time.Millisecond)
		for _, want := range []string{"quorum lost", "quorum regained"} {
			if !strings.Contains(c.log.String(), want) {
				t.Errorf("c's log does not say %q:\n%s", want, c.log.String())
			}
		}
	})
}

// TestMinorityOfTwo: two nodes that are cut off together do not wait for each other.
func TestMinorityOfTwo(t *testing.T) {
	running(t, "a b c d e", func(t *testing.T, f *fleet) {
		keys := requests(60, hourly(10))
		f.cut("abc", "de")
		d := f.nodes["d"]
		f.eventually(time.Second, "d has lost quorum", func() bool { return !d.mayDecide(d.clock()) })
		time.Sleep(settles)
		start := time.Now()
		forwards := d.Stats().Forwards
		for _, a := range decide(t.Context(), d.Node, keys...) {
			wantAnswer(t, "in the minority", a, true, check.Share, "d")
			if a.Limit != 2 {
				t.Errorf("%+v, want a fifth", a)
			}
		}
		if took := time.Since(start); took > 4*latency || d.Stats().Forwards == forwards {
			t.Errorf("it took %v, with %d forwards", took, d.Stats().Forwards-forwards)
		}
	})
}

// TestForget: of two, the survivor is a minority until the other is forgotten by hand.
func TestForget(t *testing.T) {
	running(t, "a b", func(t *testing.T, f *fleet) {
		a := f.nodes["a"]
		if err := a.Forget(t.Context(), "b"); err != member.ErrAlive {
			t.Errorf("forgetting one that lives: %v", err)
		}
		f.kill("b")
		f.eventually(time.Second, "a has lost quorum", func() bool { return !a.mayDecide(a.clock()) })
		time.Sleep(time.Second)
		o, err := a.Overview(t.Context())
		if err != nil || o.HasQuorum || o.Reason != "1 of 2 voters are alive, and a majority is 2" {
			t.Errorf("%+v, %v", o, err)
		}
		if b := o.Members[1]; b.Name != "b" || b.Alive || !o.Set.Has("b") || b.Silent < time.Second || b.Owned == 0 {
			t.Errorf("%+v", b)
		}
		f.hide("b")
		must(t, a.Forget(t.Context(), "b"))
		f.eventually(5*time.Second, "a holds all", func() bool { return a.Stats().Partitions.Owned == 31 && a.Stats().HasQuorum })
		f.owners()
	})
}

// TestQuorumTimeout: with a longer quorum timeout a node bears a longer silence, and the others claim nothing before.
func TestQuorumTimeout(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newFleet(t)
		for _, name := range []string{"a", "b", "c"} {
			f.join(name, func(c *Config) { c.QuorumTimeout = 1800 * time.Millisecond })
		}
		c := f.nodes["c"]
		time.Sleep(5 * time.Second) // it has been given its part
		f.cut("ab", "c")
		others := func() int { return f.owned("a", "b") }
		before := others()
		for range 15 {
			time.Sleep(100 * time.Millisecond)
			if !c.mayDecide(c.clock()) || others() != before {
				t.Fatalf("c may decide: %v; the others hold %d, and held %d", c.mayDecide(c.clock()), others(), before)
			}
		}
		f.eventually(500*time.Millisecond, "c has lost quorum", func() bool { return !c.mayDecide(c.clock()) })
		if n := others(); n != before {
			t.Errorf("the others hold %d, and held %d", n, before)
		}
		f.eventually(5*time.Second, "the others hold all", func() bool { return others() == 31 })
	})
}
