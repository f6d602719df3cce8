package cluster

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/lease"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
)

// hot makes keys hot as they are in a cluster that runs.
func hot(c *Config) { c.Hot = 0 }

// newHotFleet is newFleet with leases.
func newHotFleet(t *testing.T, names ...string) *fleet {
	f := newFleet(t)
	for _, name := range names {
		f.join(name, hot)
	}
	return f
}

// flow is checks of one key that come to a node at equal distances.
type flow struct {
	every time.Duration
	// What became of them.
	asked, admitted, forwarded, leased atomic.Int64
}

// run asks n for r every so often, each check by a goroutine of its own, until d has passed.
func (s *flow) run(t *testing.T, n *Node, r check.Request, d time.Duration) {
	var all sync.WaitGroup
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(s.every) {
		all.Go(func() {
			a := decide(t.Context(), n, r)[0]
			if a.Err != nil || a.Source > check.Forwarded && a.Source != check.Leased {
				t.Errorf("%+v", a)
			}
			s.asked.Add(1)
			if a.Allowed {
				s.admitted.Add(1)
			}
			switch a.Source {
			case check.Forwarded:
				s.forwarded.Add(1)
			case check.Leased:
				s.leased.Add(1)
			}
		})
	}
	all.Wait()
}

// evenly returns a flow for each of some nodes.
func evenly(every time.Duration, names ...string) map[string]*flow {
	flows := make(map[string]*flow)
	for _, name := range names {
		flows[name] = &flow{every: every}
	}
	return flows
}

// flows runs a flow at each node of f, by name, and returns what was admitted in all.
func (f *fleet) flows(r check.Request, d time.Duration, flows map[string]*flow) (admitted int64) {
	var all sync.WaitGroup
	for name, s := range flows {
		all.Go(func() { s.run(f.t, f.nodes[name].Node, r, d) })
	}
	all.Wait()
	for _, s := range flows {
		admitted += s.admitted.Load()
	}
	return admitted
}

// balanced checks of each node that what was granted to it is accounted for.
func (f *fleet) balanced() {
	f.t.Helper()
	for name, n := range f.nodes {
		if s := n.Stats().Leases; s.Granted != s.Spent+s.Returned+s.Expired+uint64(s.Live) {
			f.t.Errorf("%s: %+v does not add up", name, s)
		}
	}
}

// TestLeaseWindow: a limit of 10,000 a minute, of which five nodes want ten times as much, is used up, and never
// exceeded; nearly all checks are answered where they are asked.
func TestLeaseWindow(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newHotFleet(t, "a", "b", "c", "d", "e")
		time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
		r := request(f.nodes["a"].Node, "c", 1, limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10_000, Period: time.Minute}))
		flows := evenly(1500*time.Microsecond, "a", "b", "c", "d", "e")
		admitted := f.flows(r, 20*time.Second, flows)
		if admitted > 10_000 || admitted < 9_900 {
			t.Errorf("%d admitted of 10,000", admitted)
		}
		for name, s := range flows {
			if n := s.admitted.Load(); n < 1500 || n > 2500 {
				t.Errorf("%s admitted %d, want about a fifth", name, n)
			}
			if n := s.forwarded.Load(); n > s.asked.Load()/20 {
				t.Errorf("%d of %d checks at %s went to the owner", n, s.asked.Load(), name)
			}
		}
		f.balanced()
	})
}

// TestLeaseSkew: a node with nine tenths of the demand gets about as much of the limit within 200 ms, and the
// others do not starve.
func TestLeaseSkew(t *testing.T) {
	for _, busy := range []string{"a", "c"} { // c is the owner
		bubble(t, func(t *testing.T) {
			f := newHotFleet(t, "a", "b", "c")
			r := request(f.nodes["a"].Node, "c", 1, limitsOf(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1000, Period: time.Second}))
			f.flows(r, 3*time.Second, evenly(time.Millisecond, "a", "b", "c"))
			skewed := func() map[string]*flow {
				flows := evenly(4*time.Millisecond, "a", "b", "c")
				flows[busy] = &flow{every: 220 * time.Microsecond}
				return flows
			}
			f.flows(r, 200*time.Millisecond, skewed())
			flows := skewed()
			all := f.flows(r, 5*time.Second, flows)
			for name, s := range flows {
				n, least, most := s.admitted.Load(), all*2/100, all*10/100
				if name == busy {
					least, most = all*85/100, all
				}
				if n < least || n > most {
					t.Errorf("%s is busy: %s admitted %d of %d; want %d to %d", busy, name, n, all, least, most)
				}
			}
			if all < 5*950 || all > 5*1000+100 {
				t.Errorf("%d admitted in 5 s of 1000 a second", all)
			}
			f.balanced()
		})
	}
}

// grants counts the records of calls that ask for leases, or return some.
func grants(calls []call) (asked, returned int) {
	for _, c := range calls {
		for _, r := range c.records {
			if r.Grant {
				asked++
			}
			if r.Return {
				returned++
			}
		}
	}
	return asked, returned
}

// hotTestCluster returns a node of three, of which another holds r, that has a lease of it. Leases are tended by hand.
func hotTestCluster(t *testing.T, limits *bucket.Limits) (w *testCluster, a *Node, r check.Request) {
	w = newTestCluster(t, "b", "c")
	a = w.add("a", hot)
	w.agree(2)
	r = request(a, "b", 1, limits)
	warm(t, a, r)
	return w, a, r
}

// warm asks n for r, 1000 times a second, until it has a lease.
func warm(t *testing.T, n *Node, r check.Request) {
	for range 200 {
		if decide(t.Context(), n, r)[0].Source == check.Leased {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("there is no lease: %+v", n.Stats().Leases)
}

// TestLeaseCold: a key of which a node asks 400 checks a second, or 200 at once, is leased of by nobody, and no message is
// sent that there would not be without leases.
func TestLeaseCold(t *testing.T) {
	posed(t, "b", func(t *testing.T, w *testCluster) {
		a := w.add("a", hot)
		w.agree(2)
		r := request(a, "b", 1, hourly(10_000))
		for range 400 {
			decide(t.Context(), a, r)
			time.Sleep(2500*time.Microsecond - 2*latency)
		}
		if calls := w.callsSoFar(); len(calls) != 400 {
			t.Errorf("%d calls for 400 checks", len(calls))
		}
		other := request(a, "b", 2, hourly(10_000))
		crowd(t.Context(), a, 200, other)
		if asked, _ := grants(w.callsSoFar()); asked != 0 || a.Stats().Leases != (lease.Stats{}) {
			t.Errorf("%d leases were asked for: %+v", asked, a.Stats().Leases)
		}
	})
}

// TestLeaseReturned: when nobody asks any more, all that was not spent is back.
func TestLeaseReturned(t *testing.T) {
	bubble(t, func(t *testing.T) {
		_, a, r := hotTestCluster(t, hourly(100_000))
		b := a.cfg.Peers.(wire).nodes["b"]
		admitted := int64(0)
		for range 500 {
			if decide(t.Context(), a, r)[0].Allowed {
				admitted++
			}
			time.Sleep(300 * time.Microsecond)
			if admitted%60 == 0 {
				a.giveBackLeases(a.book.Tick(a.cfg.Clock()))
			}
		}
		before := a.Stats()
		for range 20 {
			time.Sleep(leasePeriod)
			a.giveBackLeases(a.book.Tick(a.cfg.Clock()))
		}
		a.background.Wait()
		s := a.Stats()
		if s.Leases.Live != 0 || s.Leases.Keys != 0 || s.Leases.Expired != 0 || s.Leases.Returned == 0 {
			t.Errorf("%+v", s.Leases)
		}
		want := int64(s.Forwarded) + int64(s.Leases.Spent)
		if n := spent(b, r); n != want || before.Leases.Spent < 400 {
			t.Errorf("%d spent at the owner, want %d: %+v", n, want, s.Leases)
		}
	})
}

// TestLeaseElsewhere: what a lease cannot answer goes to the owner: reads, refunds, charges, resets, whole batches, other
// limits, and rules whose denials may not be remembered.
func TestLeaseElsewhere(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, a, r := hotTestCluster(t, hourly(100_000))
		read, charge, refund, reset, drain, fresh, other := r, r, r, r, r, r, r
		read.Verb, charge.Verb, refund.Verb, reset.Verb = bucket.Read, bucket.Charge, bucket.Refund, bucket.Reset
		drain.Drain, fresh.NoDenialCache = true, true
		for name, q := range map[string]check.Request{"read": read, "charge": charge, "refund": refund, "drain": drain, "fresh": fresh} {
			before := len(w.callsSoFar())
			wantAnswer(t, name, decide(t.Context(), a, q)[0], true, check.Forwarded, "b")
			if len(w.callsSoFar()) == before {
				t.Errorf("%s was answered from a lease", name)
			}
		}
		wantAnswer(t, "all or nothing", decideAll(t.Context(), a, r, r)[0], true, check.Forwarded, "b")
		wantAnswer(t, "a check", decide(t.Context(), a, r)[0], true, check.Leased, "b")
		other.Limits = hourly(99_999)
		wantAnswer(t, "other limits", decide(t.Context(), a, other)[0], true, check.Forwarded, "b")
		if s := a.Stats().Leases; s.Live != 0 || s.Returned == 0 {
			t.Errorf("the lease of the old limits is kept: %+v", s)
		}
		decide(t.Context(), a, reset)
	})
}

// TestLeaseDenied: a lease that is used up denies what the owner would deny as well, without asking it all the time; what it
// says of the time to come again is no less than that of the owner.
func TestLeaseDenied(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, a, r := hotTestCluster(t, hourly(1000))
		denied, asked := 0, len(w.callsSoFar())
		var last check.Answer
		for range 4000 {
			if last = decide(t.Context(), a, r)[0]; !last.Allowed {
				denied++
			}
			time.Sleep(500 * time.Microsecond)
		}
		if s := a.Stats(); denied < 2900 || spent(w.nodes["b"], r) != 1000 || len(w.callsSoFar())-asked > 150 {
			t.Errorf("%d denied, %d spent, %d calls: %+v", denied, spent(w.nodes["b"], r), len(w.callsSoFar())-asked, s.Leases)
		}
		if last.RetryAfter < 50*time.Minute || last.Limit != 1000 || last.Remaining != 0 {
			t.Errorf("%+v", last)
		}
	})
}

// TestLeaseSync: a grant is answered when a copy has it, whatever the rule's replication is, but for what may be
// lost.
func TestLeaseSync(t *testing.T) {
	bubble(t, func(t *testing.T) {
		for _, unreplicated := range []bool{false, true} {
			w := newTestCluster(t, "b")
			a := w.add("a", hot)
			w.agree(2)
			r := request(a, "b", 1, hourly(1000))
			r.Unreplicated = unreplicated
			warm(t, a, r)
			for _, c := range w.callsSoFar() {
				if rec := &c.records[0]; rec.Grant && (rec.Sync == unreplicated || rec.Unreplicated != unreplicated) {
					t.Errorf("%+v", rec)
				}
			}
		}
	})
}

// TestGrantedNotRemembered: while units of a key are granted, a denial of its owner is good for nobody's memory, whoever asks and
// in whatever batch: what is granted may come back.
func TestGrantedNotRemembered(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, r := hotTestCluster(t, hourly(1000))
		b, c := w.nodes["b"], w.nodes["c"]
		r.Cost = 900
		beside := request(b, "c", 2, hourly(1000))
		for name, answer := range map[string]check.Answer{
			"at the owner":     decide(t.Context(), b, r, r)[1],
			"in a mixed batch": decide(t.Context(), b, beside, r)[1],
			"forwarded":        decide(t.Context(), c, r)[0],
			"in one record":    decide(t.Context(), c, r, r, r)[2],
		} {
			if answer.Allowed || answer.Age != check.DoNotCache {
				t.Errorf("%s: %+v; want a denial that is only true now", name, answer)
			}
		}
		before := len(w.callsSoFar())
		if decide(t.Context(), c, r); len(w.callsSoFar()) == before {
			t.Error("it is answered from memory")
		}
	})
}

// TestLeaseMixed: the owner's own checks and those of batches over several keys take part in the sharing.
func TestLeaseMixed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newHotFleet(t, "a", "b", "c")
		c := f.nodes["c"]
		limits := limitsOf(bucket.Limit{Algorithm: bucket.TokenBucket, Count: 1000, Period: time.Second})
		r, beside := request(c.Node, "c", 1, limits), request(c.Node, "a", 2, hourly(1<<40))
		remote := &flow{every: time.Millisecond}
		own := int64(0)
		var all sync.WaitGroup
		all.Go(func() { remote.run(t, f.nodes["a"].Node, r, 5*time.Second) })
		for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
			if decide(t.Context(), c.Node, beside, r)[1].Allowed {
				own++
			}
		}
		all.Wait()
		if n := remote.admitted.Load(); n < own*7/10 || n > own*14/10 || n+own > 6100 || n+own < 5700 {
			t.Errorf("%d admitted at the owner, %d elsewhere; want half of 6000 each", own, n)
		}
		f.balanced()
	})
}

// TestLeaseLoss: when the owner dies, what it has granted is charged wherever its keys go; when a leaseholder dies, what it had
// is lost and nothing else.
func TestLeaseLoss(t *testing.T) {
	for _, victim := range []string{"a", "c"} {
		for _, sync := range []bool{true, false} {
			bubble(t, func(t *testing.T) {
				f := newHotFleet(t, "a", "b", "c")
				r := request(f.nodes["a"].Node, "c", 1, hourly(2_000))
				r.Sync = sync
				before := evenly(1200*time.Microsecond, "a", "b", "c")
				admitted := f.flows(r, 500*time.Millisecond, before)
				live := f.nodes[victim].Stats().Leases.Live
				f.kill(victim)
				after := evenly(1200*time.Microsecond, "a", "b", "c")
				delete(after, victim)
				admitted += f.flows(r, 3*time.Second, after)
				denied := -admitted
				for _, s := range slices.Concat(slices.Collect(maps.Values(before)), slices.Collect(maps.Values(after))) {
					denied += s.asked.Load()
				}
				most, least := int64(2_000), 2_000-live-25 // of a time out under sync
				if !sync && victim == "c" {
					most += 50 * 10 / 4 // 50 ms
				}
				if admitted > most || admitted < least || denied == 0 {
					t.Errorf("%s dies, sync=%v: %d admitted and %d denied, want %d to %d; %d units were with it",
						victim, sync, admitted, denied, least, most, live)
				}
			})
		}
	}
}

// TestLeaseHandOff: a key that changes hands takes what is granted of it along.
func TestLeaseHandOff(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newHotFleet(t, "a", "b", "c")
		r := request(f.nodes["a"].Node, "c", 1, hourly(4_000))
		time.AfterFunc(200*time.Millisecond, func() { f.state("c", member.Leaving) })
		admitted := f.flows(r, 2*time.Second, evenly(300*time.Microsecond, "a", "b"))
		if f.nodes["a"].Ring().Owner(r.Key.Shard(31)) == "c" {
			t.Error("the key is where it was")
		}
		if admitted > 4_000 || admitted < 3_960 {
			t.Errorf("%d admitted, want 4,000", admitted)
		}
		f.balanced()
	})
}

// TestLeaseReserve: what leaves room for others is leased too, and leaves it.
func TestLeaseReserve(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := newHotFleet(t, "a", "b", "c")
		r := request(f.nodes["a"].Node, "a", 1, hourly(3000))
		low := r
		low.Reserve = 1000
		flows := evenly(time.Millisecond, "a", "b", "c")
		if n := f.flows(low, 2*time.Second, flows); n > 2000 || n < 1990 {
			t.Errorf("%d admitted that leave 1000 of 3000, want 2000", n)
		}
		if n := flows["b"].leased.Load() + flows["c"].leased.Load(); n < 1000 {
			t.Errorf("%d answered by leases, want most", n)
		}
		if n := f.flows(r, 2*time.Second, evenly(time.Millisecond, "a", "b", "c")); n < 995 || n > 1010 {
			t.Errorf("%d admitted of what was left, want 1000", n)
		}
		f.balanced()
	})
}
