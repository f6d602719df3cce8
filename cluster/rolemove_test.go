package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/ring"
	"github.com/sluicecluster/sluice/rules"
)

// playing is a world whose nodes speak for their regions, and play roles.
type playing struct {
	*world
	logs  map[string]*lines
	carry struct {
		sync.Mutex
		rng  *rand.Rand
		lose float64 // of the messages between regions
		// drop reports whether a message from one region to another is lost.
		drop func(from, to string, m *message.RegionMessages) bool
		sent int // counters
	}
	// idle is the longest time that no node decided keys of eu.
	idle atomic.Int64 // of time.Duration
}

// playingRegion is how one region sees the others.
type playingRegion struct {
	regionView
	p *playing
}

func (r playingRegion) Others() []string {
	return slices.DeleteFunc([]string{"ap", "eu", "us"}, func(name string) bool { return name == r.self })
}

func (r playingRegion) Post(region string, m *message.RegionMessages) {
	r.p.carry.Lock()
	defer r.p.carry.Unlock()
	times := 1
	if m.Counters != nil {
		r.p.carry.sent += m.Counters.Batch.Image.Counters
	}
	switch x := r.p.carry.rng.Float64(); {
	case x < r.p.carry.lose || r.p.carry.drop != nil && r.p.carry.drop(r.self, region, m):
		return
	case x > 0.98:
		times = 2
	}
	for range times {
		to := r.p.nodes[region+string(rune('1'+r.p.carry.rng.IntN(2)))]
		time.AfterFunc(r.p.far+time.Duration(r.p.carry.rng.Int64N(int64(10*time.Millisecond))), func() { to.Deliver(message.Envelope{Body: m}) })
	}
}

// playingWire delivers messages inside a region.
type playingWire struct{ wire }

func (w playingWire) Post(addr string, e message.Envelope) {
	to := w.nodes[strings.TrimSuffix(addr, ":7462")]
	time.AfterFunc(latency, func() { to.Deliver(e) })
}

// newPlaying returns nodes that play roles, when they have agreed.
func newPlaying(t *testing.T, lose float64, change func(name string, c *Config)) *playing {
	w := &world{&testCluster{t: t, nodes: make(map[string]*Node)}, 60 * time.Millisecond, nil, map[string]bool{}}
	w.mu.retained = make(map[string][]string)
	w.delay = func(from, to string) time.Duration {
		if from[:2] == to[:2] {
			return latency
		}
		return w.far
	}
	p := &playing{world: w, logs: map[string]*lines{}}
	p.carry.rng, p.carry.lose = rand.New(rand.NewPCG(7, 7)), lose
	for _, region := range []string{"ap", "eu", "us"} {
		for _, name := range []string{region + "1", region + "2"} {
			p.logs[name] = new(lines)
			w.add(name, func(c *Config) {
				c.Regions, c.Hot, c.Peers = playingRegion{regionView{w, region}, p}, 0, playingWire{wire{w.testCluster, name}}
				c.Log = slog.New(slog.NewTextHandler(p.logs[name], nil))
				if change != nil {
					change(name, c)
				}
			})
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for name, n := range w.nodes {
		pose(n, viewOf(1, name[:2]+"1", name[:2]+"2"))
		all.Go(func() { n.maintainLeases(ctx) })
		all.Go(func() { n.runRoles(ctx) })
	}
	all.Go(func() { p.watch(ctx) })
	t.Cleanup(func() {
		stop()
		all.Wait()
		for _, n := range w.nodes {
			n.background.Wait()
		}
		w.late.Wait()
		time.Sleep(time.Second) // what is on its way arrives
	})
	for range 60 { // messages between regions may be lost
		if time.Sleep(time.Second); p.decides("eu1", "eu") && p.decides("eu2", "eu") {
			break
		}
	}
	p.plays("eu", "eu")
	p.idle.Store(0)
	return p
}

func (p *playing) undecided() time.Duration { return time.Duration(p.idle.Load()) }

// watch measures how long no node decides keys of eu.
func (p *playing) watch(ctx context.Context) {
	since := time.Now()
	for ctx.Err() == nil {
		for _, n := range p.nodes {
			if _, ok := n.mayPlay(n.cfg.Clock(), "eu"); ok && n.roles.plays("eu") == n.cfg.Regions.Self() {
				since = time.Now()
			}
		}
		p.idle.Store(max(p.idle.Load(), int64(time.Since(since))))
		time.Sleep(20 * time.Millisecond)
	}
}

// plays checks that both nodes of that region decide keys of a home, with the counters, and no others do.
func (p *playing) plays(region, home string) {
	p.t.Helper()
	for name, n := range p.nodes {
		got, ok := n.mayPlay(n.cfg.Clock(), home)
		if ok != (name[:2] == region) || got.since != 0 {
			p.t.Errorf("%s decides keys of %s: %v, since %d", name, home, ok, got.since)
		}
	}
}

// decides reports whether a node decides keys of a home.
func (p *playing) decides(name, home string) bool {
	n := p.nodes[name]
	_, ok := n.mayPlay(n.cfg.Clock(), home)
	return ok
}

// pass lets a region pass on the role of eu.
func (p *playing) pass(from, to string) error {
	n := p.nodes[p.nodes[from+"1"].Speaker()]
	return n.PassRole(p.t.Context(), "eu", to, false)
}

// ask asks all nodes for many keys until d has passed, and adds what was admitted of each.
func (p *playing) ask(admitted []int64, limits *bucket.Limits, every, d time.Duration) {
	var all sync.WaitGroup
	var mu sync.Mutex
	for i, name := range slices.Sorted(maps.Keys(p.nodes)) {
		n, rng := p.nodes[name], rand.New(rand.NewPCG(1, uint64(i)))
		all.Go(func() {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(every) {
				i := rng.IntN(len(admitted))
				all.Go(func() {
					r := check.Request{
						Request:     bucket.Request{Key: moveKey(i), Limits: limits, Cost: 1},
						OnPartition: rules.FailClosed, OnFailure: rules.FailClosed, // shares have a bound of their own
					}
					if a := decide(p.t.Context(), n, r)[0]; a.Allowed {
						mu.Lock()
						admitted[i]++
						mu.Unlock()
						if a.Source > check.Forwarded && a.Source != check.Leased {
							p.t.Errorf("%s: admitted by %+v", n.cfg.Name, a)
						}
					}
				})
			}
		})
	}
	all.Wait()
}

func moveKey(i int) bucket.Key { return bucket.Key{Hi: uint64(i) * 0x9e3779b97f4a7c15, Lo: uint64(i)} }

// TestRoleMoves: counters follow a role that is passed on, there and back, also when a tenth of the messages are lost: nothing is admitted
// twice, nothing is forgotten, and no key is undecidable for long.
func TestRoleMoves(t *testing.T) {
	for name, limit := range map[string]bucket.Limit{
		"window":  {Algorithm: bucket.FixedWindow, Count: 100, Period: time.Hour},
		"counter": {Algorithm: bucket.SlidingCounter, Count: 100, Period: 24 * time.Hour},
		"bucket":  {Algorithm: bucket.TokenBucket, Count: 1, Period: 24 * time.Hour, Burst: 100},
		"log":     {Algorithm: bucket.SlidingLog, Count: 100, Period: time.Hour},
	} {
		for _, lose := range []float64{0, 0.1} {
			t.Run(fmt.Sprint(name, " ", lose), func(t *testing.T) {
				bubble(t, func(t *testing.T) {
					p := newPlaying(t, lose, nil)
					admitted := make([]int64, 20)
					var asking sync.WaitGroup
					every, d := 75*time.Millisecond, 60*time.Second
					if lose > 0 { // roles are passed on again and again
						every, d = 2*every, 2*d
					}
					asking.Go(func() { p.ask(admitted, global(limit), every, d) })
					for _, move := range [][2]string{{"eu", "us"}, {"us", "ap"}, {"ap", "eu"}} {
						time.Sleep(3 * time.Second)
						if err := p.pass(move[0], move[1]); err != nil {
							t.Error(err)
						}
						for range 3 { // where messages are lost, the rest may not arrive in time
							if time.Sleep(15 * time.Second); lose > 0 && p.pass(move[0], move[1]) == nil {
								continue
							}
							break
						}
						p.plays(move[1], "eu")
					}
					asking.Wait()
					least, most := slices.Min(admitted), slices.Max(admitted)
					t.Logf("%d to %d admitted of each key, undecidable for at most %v, %d counters sent", least, most, p.undecided(), p.carry.sent)
					if most > 100 {
						t.Errorf("%d admitted of a key, want 100 at most", most)
					}
					if least < 97 {
						t.Errorf("%d admitted of a key, want nearly 100", least)
					}
					if p.undecided() > 6*time.Second+time.Duration(lose*float64(time.Minute)) {
						t.Errorf("undecidable for %v", p.undecided())
					}
				})
			})
		}
	}
}

// TestRoleMoveFails: if the other region does not take the counters, this one decides again, and has lost nothing.
func TestRoleMoveFails(t *testing.T) {
	limits := global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 100, Period: time.Hour})
	for name, c := range map[string]struct {
		from    time.Duration // after the move has begun, until when no counters arrive
		ring    int
		problem string
	}{
		"copy":       {0, 0, "not all counters have arrived there in time"},
		"rest":       {3 * time.Second, 0, "this region decides again"},
		"partitions": {0, 32, "regions with different --partitions"},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				p := newPlaying(t, 0, func(node string, cfg *Config) {
					if c.ring != 0 && node[:2] == "us" {
						cfg.Ring = ring.Config{Partitions: c.ring}
					}
				})
				admitted := make([]int64, 20)
				var asking sync.WaitGroup
				asking.Go(func() { p.ask(admitted, limits, 80*time.Millisecond, 80*time.Second) })
				time.Sleep(3 * time.Second)
				began := time.Now()
				p.carry.Lock()
				p.carry.drop = func(_, _ string, m *message.RegionMessages) bool {
					return m.Counters != nil && c.ring == 0 && time.Since(began) >= c.from
				}
				p.carry.Unlock()
				if err := p.pass("eu", "us"); err != nil {
					t.Fatal(err)
				}
				if err := p.pass("eu", "ap"); err != errMoving {
					t.Errorf("%v; want %v", err, errMoving)
				}
				asking.Wait()
				p.plays("eu", "eu")
				if log := p.logs[p.nodes["eu1"].Speaker()].String(); !strings.Contains(log, c.problem) {
					t.Errorf("the log lacks %q: %s", c.problem, log)
				}
				speaker := p.nodes[p.nodes["eu1"].Speaker()]
				if _, _, got := speaker.Roles(); !strings.HasPrefix(got, "keys with the home eu were not passed on to region us: ") || !strings.Contains(got, c.problem) {
					t.Errorf("the speaker says %q", got)
				}
				if most := slices.Max(admitted); most > 100 || slices.Min(admitted) < 90 {
					t.Errorf("%v admitted, want 100 of each", admitted)
				}
				if p.undecided() > 9*time.Second {
					t.Errorf("undecidable for %v", p.undecided())
				}
				p.carry.Lock()
				p.carry.drop = nil
				p.carry.Unlock()
				if c.ring == 0 {
					if err := p.pass("eu", "us"); err != nil {
						t.Fatal(err)
					}
					time.Sleep(12 * time.Second)
					p.plays("us", "eu")
					if _, _, got := speaker.Roles(); got != "" {
						t.Errorf("after it went well the speaker says %q", got)
					}
				}
			})
		})
	}
}

// TestRoleCountersMerge: when a home is back that was cut off, the region that decides meanwhile gets its counters, and they go back with
// the role, with what was admitted meanwhile.
func TestRoleCountersMerge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		p := newPlaying(t, 0.02, nil)
		limits := global(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 100, Period: time.Hour})
		ask := func(region string, i int) (admitted int) {
			for range 150 {
				r := check.Request{Request: bucket.Request{Key: moveKey(i), Limits: limits, Cost: 1}, OnPartition: rules.FailClosed, OnFailure: rules.FailClosed}
				if decide(t.Context(), p.nodes[region+"1"], r)[0].Allowed {
					admitted++
				}
				time.Sleep(time.Millisecond)
			}
			return admitted
		}
		if n := ask("eu", 0); n != 100 {
			t.Errorf("%d admitted at home", n)
		}
		cut := func(is bool) {
			p.mu.Lock()
			p.cut["eu"] = is
			p.mu.Unlock()
			p.carry.Lock()
			p.carry.drop = func(from, to string, _ *message.RegionMessages) bool { return is && (from == "eu" || to == "eu") }
			p.carry.Unlock()
		}
		cut(true)
		time.Sleep(12 * time.Second)
		at := p.nodes["us1"].roles.plays("eu")
		if x, ok := p.nodes[at+"1"].mayPlay(p.nodes[at+"1"].cfg.Clock(), "eu"); at == "eu" || !ok || x.since == 0 || p.undecided() > 10*time.Second {
			t.Fatalf("%s has the role of eu: %v, since %d; undecidable for %v", at, ok, x.since, p.undecided())
		}
		if n := ask(at, 1); n != 100 {
			t.Errorf("%d admitted by the region that was elected", n)
		}
		cut(false)
		time.Sleep(10 * time.Second)
		if n := ask(at, 0); n != 0 {
			t.Errorf("%d admitted of what eu has spent", n)
		}
		if err := p.pass(at, "eu"); err != nil {
			t.Fatal(err)
		}
		time.Sleep(12 * time.Second)
		p.plays("eu", "eu")
		for i := range 2 {
			if n := ask("eu", i); n != 0 {
				t.Errorf("key %d: %d admitted of what was spent elsewhere", i, n)
			}
		}
		n := ask("ap", 2) // the rest is leased, and comes back
		time.Sleep(3 * time.Second)
		if n += ask("ap", 2); n < 95 || n > 100 {
			t.Errorf("%d admitted of a new key", n)
		}
	})
}
