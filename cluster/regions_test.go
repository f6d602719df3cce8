package cluster

import (
	"cmp"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/rules"
)

// world is regions of two nodes each, eu1 and eu2 and so on, between which a message takes far one way.
type world struct {
	*testCluster
	far time.Duration
	rtt map[string]time.Duration // by both regions' names, where it is not 2*far
	cut map[string]bool          // regions that nobody reaches, and that reach nobody
}

// view is how one region sees the others.
type regionView struct {
	*world
	self string
}

func (v regionView) Self() string         { return v.self }
func (v regionView) Has(name string) bool { return slices.Contains([]string{"eu", "us", "ap"}, name) }

func (v regionView) Addr(region string, try int) string {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.cut[region] || v.cut[v.self] {
		return ""
	}
	return region + string(rune('1'+try%2)) + ":7462"
}

func (w *world) setCut(region string, cut bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut[region] = cut
}

// Others: there are no roles to play, as nobody speaks.
func (v regionView) Others() []string                     { return nil }
func (v regionView) Post(string, *message.RegionMessages) {}

// Part: eu has half of all, each other region a quarter.
func (v regionView) Part() (own, all int) {
	if v.self == "eu" {
		return 2, 4
	}
	return 1, 4
}

func (v regionView) RTT(region string) time.Duration {
	return cmp.Or(v.rtt[v.self+region], v.rtt[region+v.self], 2*v.far)
}

// newWorld runs what the nodes do about leases until the test ends.
func newWorld(t *testing.T, far time.Duration) *world {
	w := &world{&testCluster{t: t, nodes: make(map[string]*Node)}, far, nil, map[string]bool{}}
	w.mu.retained = make(map[string][]string)
	w.delay = func(from, to string) time.Duration {
		if from[:2] == to[:2] {
			return latency
		}
		return far
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for _, region := range []string{"eu", "us", "ap"} {
		names := []string{region + "1", region + "2"}
		for _, name := range names {
			w.add(name, func(c *Config) { c.Regions, c.Hot = regionView{w, region}, 0 })
		}
		for _, name := range names {
			n := w.nodes[name]
			pose(n, viewOf(1, names...))
			all.Go(func() { n.maintainLeases(ctx) })
		}
	}
	t.Cleanup(func() {
		stop()
		all.Wait()
		for _, n := range w.nodes {
			n.background.Wait()
		}
		w.late.Wait()
	})
	return w
}

// global is limits whose counters eu has.
func global(list ...bucket.Limit) *bucket.Limits {
	l, err := bucket.NewLimitsAt("d", "eu", list...)
	if err != nil {
		panic(err)
	}
	return l
}

// flows is fleet.flows.
func (w *world) flows(r check.Request, d time.Duration, flows map[string]*flow) (admitted int64) {
	before := int64(0)
	for _, s := range flows {
		before += s.admitted.Load()
	}
	var all sync.WaitGroup
	for name, s := range flows {
		all.Go(func() { s.run(w.t, w.nodes[name], r, d) })
	}
	all.Wait()
	for _, s := range flows {
		admitted += s.admitted.Load()
	}
	return admitted - before
}

// messages counts the calls between regions.
func (w *world) messages() (n int) {
	for _, c := range w.callsSoFar() {
		if c.from[:2] != c.to[:2] {
			n++
		}
	}
	return n
}

// homeChecks counts the checks that were sent to the home.
func (w *world) homeChecks() (n uint64) {
	for _, node := range w.nodes {
		n += node.Stats().HomeChecks
	}
	return n
}

// TestRegionsLimit: three regions that want twice a limit together, by equal parts or nine to one, get all of it and no more, and nearly all
// checks are answered inside their region.
func TestRegionsLimit(t *testing.T) {
	for name, limit := range map[string]bucket.Limit{
		"bucket":  {Algorithm: bucket.TokenBucket, Count: 1000, Period: time.Second, Burst: 2000},
		"window":  {Algorithm: bucket.FixedWindow, Count: 10_000, Period: 10 * time.Second},
		"counter": {Algorithm: bucket.SlidingCounter, Count: 10_000, Period: 10 * time.Second},
	} {
		for skew, every := range map[string][3]time.Duration{
			"equal": {3 * time.Millisecond, 3 * time.Millisecond, 3 * time.Millisecond},
			"90:10": {20 * time.Millisecond, 1111 * time.Microsecond, 20 * time.Millisecond},
		} {
			t.Run(name+" "+skew, func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					w := newWorld(t, 60*time.Millisecond)
					r := request(w.nodes["us1"], "us2", 1, global(limit))
					flows := map[string]*flow{}
					for i, region := range []string{"eu", "us", "ap"} {
						flows[region+"1"], flows[region+"2"] = &flow{every: every[i]}, &flow{every: every[i]}
					}
					w.flows(r, 10*time.Second, flows)
					for _, s := range flows {
						s.forwarded.Store(0)
						s.asked.Store(0)
						s.admitted.Store(0)
					}
					before, asked := w.messages(), w.homeChecks()
					admitted := w.flows(r, 20*time.Second, flows)
					if admitted > 20_000+2_000 || admitted < 19_000 {
						t.Errorf("%d admitted, want 20,000", admitted)
					}
					got := map[string]float64{} // by region, of what was asked
					for name, s := range flows {
						t.Logf("%s: asked %d, admitted %d", name, s.asked.Load(), s.admitted.Load())
						got[name[:2]] += float64(s.admitted.Load()) / float64(2*s.asked.Load())
					}
					for region, part := range got {
						if all := float64(admitted) / 40_000; part < 0.85*all || part > 1.15*all {
							t.Errorf("%s has got %.2f of its checks, all have %.2f", region, part, all)
						}
					}
					away := w.homeChecks() - asked
					t.Logf("%d admitted, %d messages between regions, for %d checks", admitted, w.messages()-before, away)
					if away > 600 { // at each end of a window, with which leases end: 180 ms, for a lease ends here half a round trip earlier
						t.Errorf("the home decided %d of 40,000 checks", away)
					}
				})
			})
		}
	}
}

// TestRegionsLoss: a bucket of one second's units, nine tenths of whose demand is 300 ms away where 5 % of the messages are late by a
// retransmission, and all after them on the same connection, is used nearly in full: a request is made before the last one has its answer.
func TestRegionsLoss(t *testing.T) {
	var used float64
	const seeds, rate, lasts = 4, 150, 60 * time.Second
	for seed := range uint64(seeds) {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 25*time.Millisecond)
			w.rtt = map[string]time.Duration{"usap": 150 * time.Millisecond, "euap": 300 * time.Millisecond}
			random, last := rand.New(rand.NewPCG(1, seed)), map[[2]string]time.Time{}
			w.delay = func(from, to string) time.Duration {
				if from[:2] == to[:2] {
					return latency
				}
				rtt := regionView{w, from[:2]}.RTT(to[:2])
				w.mu.Lock()
				defer w.mu.Unlock()
				at := time.Now().Add(rtt / 2)
				if random.Float64() < 0.05 {
					at = at.Add(rtt + 200*time.Millisecond)
				}
				way := [2]string{from, to}
				if at.Before(last[way]) {
					at = last[way]
				}
				last[way] = at
				return time.Until(at)
			}
			flows := map[string]*flow{}
			for region, part := range map[string]float64{"eu": 0.05, "us": 0.05, "ap": 0.9} {
				every := time.Duration(float64(time.Second) / (rate * part))
				flows[region+"1"], flows[region+"2"] = &flow{every: every}, &flow{every: every}
			}
			r := request(w.nodes["us1"], "us2", 1, global(bucket.Limit{Algorithm: bucket.TokenBucket, Count: rate, Period: time.Second}))
			w.flows(r, 10*time.Second, flows)
			admitted := w.flows(r, lasts, flows)
			if admitted > rate*(61+1) {
				t.Errorf("seed %d: %d admitted", seed, admitted)
			}
			used += float64(admitted) / (rate * lasts.Seconds()) / seeds
		})
	}
	if t.Logf("%.3f used", used); used < 0.93 {
		t.Errorf("%.3f used, want 0.93", used)
	}
}

// TestRegionsVerbs: what a lease cannot answer is decided by the home, from any node, and the tables of other regions stay empty.
func TestRegionsVerbs(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 60*time.Millisecond)
		r := request(w.nodes["us1"], "us2", 1, global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 10, Period: time.Hour}))
		do := func(node string, verb bucket.Verb, cost int64) check.Answer {
			q := r
			q.Verb, q.Cost = verb, cost
			return decide(t.Context(), w.nodes[node], q)[0]
		}
		for i, c := range []struct {
			node      string
			verb      bucket.Verb
			cost      int64
			allowed   bool
			remaining int64
		}{
			{"us1", bucket.Check, 1, true, 9}, {"us2", bucket.Read, 1, true, 9}, {"ap1", bucket.Charge, 4, true, 5}, {"ap2", bucket.Refund, 1, true, 6},
			{"eu1", bucket.Read, 1, true, 6}, {"us1", bucket.Reset, 0, true, 10},
		} {
			if a := do(c.node, c.verb, c.cost); a.Err != nil || a.Allowed != c.allowed || a.Remaining != c.remaining || c.node != "eu1" && a.Source != check.Forwarded {
				t.Errorf("%d: %+v; want %+v", i, a, c)
			}
		}
		q := r
		q.Verb, q.Cost, q.Once, q.Reservation = bucket.Reserve, 3, 7, &bucket.Reservation{ID: 5, Least: 3, MaxOpen: 10, For: time.Minute}
		if a := decide(t.Context(), w.nodes["us1"], q)[0]; !a.Allowed || q.Reservation.Reserved.Units != 3 {
			t.Errorf("reserve: %+v, %+v", a, q.Reservation.Reserved)
		}
		s := r
		s.Verb, s.Cost, s.Limits, s.Reservation = bucket.Settle, 2, nil, &bucket.Reservation{ID: 5, Home: "eu"}
		if a := decide(t.Context(), w.nodes["ap2"], s)[0]; a.Err != nil || s.Reservation.Reserved.Units != 2 || s.Reservation.Reserved.Returned != 1 {
			t.Errorf("settle: %+v, %+v", a, s.Reservation.Reserved)
		}
		if a := decideAll(t.Context(), w.nodes["us1"], r, r); !a[0].Allowed || !a[1].Allowed || a[1].Remaining < 5 { // the region may have leased one
			t.Errorf("all or nothing: %+v", a)
		}
		for name, n := range w.nodes {
			if k := n.table.Stats().Entries; name[:2] != "eu" && k != 0 {
				t.Errorf("%s has %d counters", name, k)
			}
		}
	})
}

// TestRegionsAtomic: an atomic batch is charged to what its region has leased, and what it has charged there and to the region's own keys is given
// back if it fails.
func TestRegionsAtomic(t *testing.T) {
	for _, owner := range []string{"us1", "us2"} {
		bubble(t, func(t *testing.T) {
			w := newWorld(t, 60*time.Millisecond)
			us := w.nodes["us1"]
			far := request(us, owner, 2, global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 5000, Period: time.Hour}))
			near := request(us, "us2", 1, limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 100_000, Period: time.Hour}))
			denied := request(us, owner, 3, limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1, Period: time.Hour}))
			denied.Cost = 2
			admitted := int64(0)
			batches := func(n int) {
				for i := range n {
					last := near
					if i%2 == 0 {
						last = denied
					}
					a := decideAll(t.Context(), us, near, far, last)
					if a[0].Err != nil || a[1].Err != nil || a[1].Allowed && i%2 == 0 || !a[1].Allowed && i%2 == 1 {
						t.Fatalf("batch %d: %+v", i, a)
					}
					admitted += int64(i % 2)
					time.Sleep(5 * time.Millisecond)
				}
			}
			batches(200) // it leases
			before, first := w.homeChecks(), admitted
			batches(400)
			if n := w.homeChecks() - before; n > 4 {
				t.Errorf("%s: %d of 400 checks at home", owner, n)
			}
			time.Sleep(5 * time.Second)
			home := w.nodes["eu1"]
			if !home.routing.Load().owns(far.Key) {
				home = w.nodes["eu2"]
			}
			// Charges at home stand: at most one of each batch that was sent there.
			if n := spent(home, far) - admitted; n < 0 || n > int64(w.homeChecks()) || first == admitted {
				t.Errorf("%s: %d more charged than the %d that were admitted, after %d checks at home", owner, n, admitted, w.homeChecks())
			}
			if n := spent(w.nodes["us2"], near); n != 2*admitted {
				t.Errorf("%s: the near key has %d, want %d", owner, n, 2*admitted)
			}
		})
	}
}

// TestRegionsExhausted: of a key that is used up a region asks the home rarely, however many checks come.
func TestRegionsExhausted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 60*time.Millisecond)
		r := request(w.nodes["us1"], "us2", 1, global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 100, Period: time.Hour}))
		flows := map[string]*flow{"us1": {every: time.Millisecond}, "us2": {every: time.Millisecond}}
		w.flows(r, 3*time.Second, flows)
		before := w.messages()
		if n := w.flows(r, 10*time.Second, flows); n != 0 {
			t.Errorf("%d admitted of what is used up", n)
		}
		if n := w.messages() - before; n > 100 {
			t.Errorf("%d messages between regions in 10 s, want 10 a second at most", n)
		}
		if all := flows["us1"].admitted.Load() + flows["us2"].admitted.Load(); all != 100 {
			t.Errorf("%d admitted of 100", all)
		}
	})
}

// TestRegionsCut: a region that is cut off spends its lease until the deadline, and then on_partition decides.
func TestRegionsCut(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 60*time.Millisecond)
		r := request(w.nodes["us1"], "us2", 1, global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 1_000_000, Period: time.Hour}))
		flows := map[string]*flow{"us1": {every: time.Millisecond}, "us2": {every: time.Millisecond}}
		w.flows(r, 3*time.Second, flows)
		w.setCut("eu", true)
		if a := decide(t.Context(), w.nodes["us2"], r)[0]; !a.Allowed || a.Source != check.Leased {
			t.Errorf("just cut: %+v", a)
		}
		time.Sleep(2500 * time.Millisecond)
		for policy, want := range map[rules.OnFailure]check.Source{rules.FailShare: check.Share, rules.FailClosed: check.Closed, rules.FailOpen: check.Open} {
			for _, node := range []string{"us1", "us2"} {
				q := r
				q.OnPartition = policy
				began := time.Now()
				a := decide(t.Context(), w.nodes[node], q)[0]
				wantAnswer(t, policy.String(), a, policy != rules.FailClosed, want, node)
				if d := time.Since(began); d > 100*time.Millisecond {
					t.Errorf("%v after %v", policy, d)
				}
			}
		}
	})
}

// TestRegionsClients: clients lease units of what their region has leased, at any node of it, without a message to the home for each; what they
// spend is never more than the limit, and what they give back is spent by others.
func TestRegionsClients(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, 60*time.Millisecond)
		r := request(w.nodes["us1"], "us2", 1, global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 50_000, Period: time.Hour}))
		var spent, leases, ids atomic.Int64
		client := func(node string, d time.Duration) {
			left, last := int64(0), int64(0)
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
				if last != 0 { // all but five were spent
					s := r
					s.Verb, s.Cost, s.Limits, s.Reservation = bucket.Settle, max(0, left-2), nil, &bucket.Reservation{ID: uint64(last), Home: "eu", Lease: true}
					a, got := decide(t.Context(), w.nodes[node], s)[0], &s.Reservation.Reserved
					if a.Err != nil || !got.Unknown && got.Units < s.Cost {
						t.Errorf("%s settles: %+v, %+v", node, a, got)
					}
					spent.Add(s.Cost)
				}
				q := r
				last = ids.Add(1)
				q.Verb, q.Cost, q.Once, q.Reservation = bucket.Reserve, 30, uint64(last), &bucket.Reservation{ID: uint64(last), Least: 1, MaxOpen: 1000, For: time.Second, Lease: true}
				a := decide(t.Context(), w.nodes[node], q)[0]
				if left = q.Reservation.Reserved.Units; a.Err != nil || a.Allowed != (left > 0) || left > 30 || left > 0 && q.Reservation.Reserved.Expires <= 0 {
					t.Errorf("%s leases: %+v, %+v", node, a, q.Reservation.Reserved)
				}
				if left == 0 {
					last = 0
				} else {
					leases.Add(1)
				}
			}
			spent.Add(left) // it is stopped
		}
		all := func(d time.Duration) {
			var clients sync.WaitGroup
			for _, node := range []string{"us1", "us2", "ap1"} {
				clients.Go(func() { client(node, d) })
			}
			clients.Wait()
		}
		all(3 * time.Second)
		before, away := w.messages(), w.homeChecks()
		leased, had := leases.Load(), spent.Load()
		all(5 * time.Second)
		leased, had = leases.Load()-leased, spent.Load()-had
		t.Logf("%d units of %d leases in 5 s, %d messages between regions, %d of them checks", had, leased, w.messages()-before, w.homeChecks()-away)
		if had < 15_000 || w.messages()-before > 400 || w.homeChecks()-away > 10 {
			t.Error("want nearly 3 * 30 * 5 * 50 units, and few messages")
		}
		all(10 * time.Second)
		time.Sleep(5 * time.Second)
		counter := int64(0)
		for name, n := range w.nodes {
			if name[:2] == "eu" && n.routing.Load().owns(r.Key) {
				counter = 50_000 - n.table.Do(n.cfg.Clock(), &bucket.Request{Key: r.Key, Limits: r.Limits, Verb: bucket.Read, Cost: 1}).Remaining
			}
		}
		t.Logf("%d units spent, %d of %d charged", spent.Load(), counter, 50_000)
		if spent.Load() > counter || counter > 50_000 || spent.Load() < 49_000 {
			t.Errorf("%d units spent, %d charged of 50,000", spent.Load(), counter)
		}
	})
}
