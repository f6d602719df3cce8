package cluster

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/ring"
	"github.com/sluicecluster/sluice/rules"
)

var (
	keySeeds = flag.Int("key-seeds", 5, "worlds of TestKeyWorlds; make test-long has more")
	keyFrom  = flag.Int("key-from", 0, "the first of them")
)

// keyWorld is three regions of two nodes, which ask for keys with home: auto, mostly in one region, which changes. Meanwhile regions are cut
// off, one way or both, restart as a whole, or are lost for good; messages are lost, late and doubled; nodes crash and hand over; and roles
// are passed on. Nodes have clocks of their own.
type keyWorld struct {
	*testCluster
	far      time.Duration
	lose     float64
	rng      *rand.Rand
	posts    *rand.Rand // of messages between regions, with state.Mutex
	limits   *bucket.Limits
	keys     []*worldKey
	ctx      context.Context
	running  sync.WaitGroup
	ends     map[string]func() // of the nodes that run, by name
	views    map[string]uint64
	boots    int
	crashes  bool   // single nodes do too
	gone     string // the region that is lost for good
	maxIdle  time.Duration
	maxCount int64
	moves    atomic.Uint64
	referee  sync.Mutex // of keys, but for admitted, and of maxIdle
	state    struct {
		sync.Mutex
		all  []*Node
		cut  map[[2]string]time.Time            // since when, by direction
		drop func(*message.RegionMessages) bool // messages between regions
		// changed is when something in the wide area, or a region, changed last.
		changed time.Time
		set     message.Set
		log     []string
		bad     string
	}
}

// worldKey is one key. Its limit may be admitted once more whenever its counter or its record is lost with a region.
type worldKey struct {
	bucket.Key
	directory string
	role      string // its home, as it was decided last
	decided   time.Time
	admitted  atomic.Int64
	lost      int64
	lostAt    time.Time
	who       string // decides it, for the log
}

const worldLimit = 250

var (
	regionNames = []string{"ap", "eu", "us"}
	// bubbleBegan is when the clock of each bubble begins.
	bubbleBegan = time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)
)

// runKeyWorld runs the world of a seed. bad says what was wrong.
func runKeyWorld(t *testing.T, seed uint64) (w *keyWorld, bad string) {
	w = &keyWorld{
		testCluster: &testCluster{t: t, nodes: map[string]*Node{}}, rng: rand.New(rand.NewPCG(seed, 3)), posts: rand.New(rand.NewPCG(seed, 4)),
		ends: map[string]func(){}, views: map[string]uint64{}, crashes: seed%2 == 1,
		limits: roaming(bucket.Limit{Algorithm: bucket.FixedWindow, Count: worldLimit, Period: 12 * time.Hour}),
	}
	w.mu.retained, w.state.cut = map[string][]string{}, map[[2]string]time.Time{}
	w.far, w.lose = w.between(20*time.Millisecond, 150*time.Millisecond), w.rng.Float64()*0.04
	w.delay = func(from, to string) time.Duration {
		if from[:2] == to[:2] {
			return latency
		}
		return w.far
	}
	ctx, stop := context.WithCancel(t.Context())
	w.ctx = ctx
	for _, region := range regionNames {
		w.start(region)
	}
	time.Sleep(10 * time.Second)
	eu := w.node("eu1")
	for i, directory := range []string{regionNames[seed%3], regionNames[(seed+1)%3]} {
		k := &worldKey{directory: directory, decided: time.Now()}
		for x := 1; k.Key == (bucket.Key{}) || eu.directoryOf(k.Key) != directory; x++ {
			k.Key = moveKey(x)
		}
		w.keys = append(w.keys, k)
		w.running.Go(func() { w.ask(k, rand.New(rand.NewPCG(seed, uint64(10+i)))) })
	}
	w.touch()
	w.running.Go(w.watch)
	for end := time.Now().Add(45 * time.Second); time.Now().Before(end) && w.violation() == ""; {
		w.sleep(0, 5*time.Second)
		w.fault()
	}
	w.touch()
	if w.violation() == "" {
		time.Sleep(15 * time.Second)
	}
	w.referee.Lock()
	for _, k := range w.keys {
		if idle := time.Since(k.decided); idle > 5*time.Second {
			w.describe(k)
			w.fail("no region decides the key of %s when all is well again", k.directory)
		}
		w.maxCount = max(w.maxCount, k.admitted.Load())
	}
	w.referee.Unlock()
	stop()
	w.running.Wait()
	for _, n := range w.state.all {
		w.moves.Add(n.directory.moved.Load())
		n.background.Wait()
	}
	w.late.Wait()
	time.Sleep(10 * time.Second) // what is on its way arrives
	return w, w.violation()
}

func (w *keyWorld) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rng.Int64N(int64(most-least)))
}

func (w *keyWorld) sleep(least, most time.Duration) { time.Sleep(w.between(least, most)) }

func (w *keyWorld) node(name string) *Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodes[name]
}

// note keeps what happened, for a report.
func (w *keyWorld) note(format string, args ...any) {
	w.state.Lock()
	defer w.state.Unlock()
	w.state.log = append(w.state.log, fmt.Sprintf("%.3f ", time.Since(bubbleBegan).Seconds())+fmt.Sprintf(format, args...))
}

func (w *keyWorld) fail(format string, args ...any) {
	w.state.Lock()
	defer w.state.Unlock()
	if w.state.bad == "" {
		w.state.bad = fmt.Sprintf("%.3f ", time.Since(bubbleBegan).Seconds()) + fmt.Sprintf(format, args...)
	}
}

func (w *keyWorld) violation() string {
	w.state.Lock()
	defer w.state.Unlock()
	return w.state.bad
}

// touch notes that what happens now may make keys undecidable for a while.
func (w *keyWorld) touch() {
	w.state.Lock()
	defer w.state.Unlock()
	w.state.changed = time.Now()
}

// start starts the nodes of region that do not run, and lets both own its partitions.
func (w *keyWorld) start(region string) {
	for _, name := range []string{region + "1", region + "2"} {
		if w.node(name) != nil {
			continue
		}
		w.boots++
		boot, speed := fmt.Sprintf("%s-%d", name, w.boots), 0.99+0.02*w.rng.Float64()
		ctx, stop := context.WithCancel(w.ctx)
		w.mu.Lock()
		n := w.add(name, func(c *Config) {
			c.Boot, c.Hot, c.Peers = boot, 0, keyWire{wire{w.testCluster, name}, w, ctx}
			c.Regions = keyRegion{regionView{self: region}, w}
			c.Clock = func() int64 {
				return bubbleBegan.UnixNano() + int64(float64(time.Since(bubbleBegan))*speed)
			}
		})
		w.mu.Unlock()
		w.state.Lock()
		w.state.all = append(w.state.all, n)
		w.state.Unlock()
		w.ends[name] = stop
		w.running.Go(func() { n.maintainLeases(ctx) })
		w.running.Go(func() { n.runRoles(ctx) })
	}
	w.own(region, nil, region+"1", region+"2")
}

// crash ends a node.
func (w *keyWorld) crash(name string) *Node {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[name]
	delete(w.nodes, name)
	n.quorumUntil.Store(0)
	w.ends[name]()
	return n
}

// own makes these nodes the owners in their region, with the state of those before. dead is one of them, whose state a replica has.
func (w *keyWorld) own(region string, dead *Node, names ...string) {
	w.views[region]++
	v := member.View{Seq: w.views[region]}
	var nodes []*Node
	for _, name := range []string{region + "1", region + "2"} {
		n, state := w.node(name), member.Serving
		if n == nil {
			continue
		}
		if !slices.Contains(names, name) {
			state = member.Leaving
		}
		nodes = append(nodes, n)
		v.Members = append(v.Members, member.Member{Name: name, Boot: n.cfg.Boot, Peer: name + ":7462", State: state})
	}
	table, err := ring.Build(nodes[0].cfg.Ring, names)
	if err != nil {
		w.t.Fatal(err)
	}
	from := nodes
	if dead != nil {
		from = append(slices.Clone(nodes), dead)
	}
	for _, old := range from {
		r := old.routing.Load()
		for shard := range table.Partitions() {
			to := w.node(table.Owner(shard))
			if int(r.owners[shard]) != r.self || to == old {
				continue
			}
			var im bucket.Image
			old.table.Seal(shard)
			old.table.Export(old.cfg.Clock(), shard, old.table.Keys(shard, nil), &im)
			if err := to.table.Import(to.cfg.Clock(), shard, &im, im.Data, im.Counters, false); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	for _, n := range nodes {
		pose(n, v)
	}
}

// keyRegion is how a region sees the others in a keyWorld.
type keyRegion struct {
	regionView
	w *keyWorld
}

func (r keyRegion) Others() []string {
	return slices.DeleteFunc(slices.Clone(regionNames), func(name string) bool { return name == r.self })
}

func (r keyRegion) RTT(string) time.Duration { return 2 * r.w.far }

// Addr knows after 2 s that a region is not reached.
func (r keyRegion) Addr(region string, try int) string {
	r.w.state.Lock()
	defer r.w.state.Unlock()
	for _, way := range [][2]string{{r.self, region}, {region, r.self}} {
		if at, ok := r.w.state.cut[way]; ok && time.Since(at) > 2*time.Second {
			return ""
		}
	}
	return region + string(rune('1'+try%2)) + ":7462"
}

func (r keyRegion) Post(region string, m *message.RegionMessages) {
	w := r.w
	w.state.Lock()
	defer w.state.Unlock()
	if x := w.posts.Float64(); x < w.lose || w.state.drop != nil && w.state.drop(m) {
		return
	}
	for range 1 + w.posts.IntN(50)/49 {
		d, name := w.far+time.Duration(w.posts.Int64N(int64(10*time.Millisecond))), region+string(rune('1'+w.posts.IntN(2)))
		if w.posts.IntN(100) == 0 {
			d += time.Duration(w.posts.Int64N(int64(4 * time.Second)))
		}
		time.AfterFunc(d, func() {
			if n := w.node(name); n != nil && !w.isCut(r.self, region) {
				n.Deliver(message.Envelope{Body: m})
			}
		})
	}
}

func (w *keyWorld) isCut(from, to string) bool {
	w.state.Lock()
	defer w.state.Unlock()
	_, ok := w.state.cut[[2]string{from, to}]
	return ok
}

// cutOff makes messages of one region to another get lost, or ends that.
func (w *keyWorld) cutOff(is bool, ways ...[2]string) {
	w.touch()
	w.state.Lock()
	defer w.state.Unlock()
	for _, way := range ways {
		if is {
			w.state.cut[way] = time.Now()
		} else {
			delete(w.state.cut, way)
		}
	}
}

// keyWire reaches other nodes until the node has crashed.
type keyWire struct {
	wire
	w   *keyWorld
	ctx context.Context
}

func (x keyWire) Call(ctx context.Context, addr string, records []check.Record, replies []check.Reply) error {
	clear(replies)
	lost := func(from, to string) bool {
		x.w.state.Lock()
		_, cut := x.w.state.cut[[2]string{from[:2], to[:2]}]
		cut = cut || from[:2] != to[:2] && x.w.posts.Float64() < x.w.lose/4
		x.w.state.Unlock()
		if cut {
			<-ctx.Done()
		}
		return cut
	}
	switch {
	case x.ctx.Err() != nil:
		return check.ErrUnsent
	case lost(x.from, addr):
		return check.ErrAmbiguous
	}
	err := x.wire.Call(ctx, addr, records, replies)
	if lost(addr, x.from) {
		clear(replies)
		return check.ErrAmbiguous
	}
	return err
}

func (x keyWire) Post(addr string, e message.Envelope) {
	if x.ctx.Err() == nil {
		time.AfterFunc(latency, func() {
			if n := x.w.node(strings.TrimSuffix(addr, ":7462")); n != nil {
				n.Deliver(e)
			}
		})
	}
}

// ask asks for k, mostly in one region.
func (w *keyWorld) ask(k *worldKey, rng *rand.Rand) {
	often, until := 0, time.Now()
	for w.ctx.Err() == nil {
		if time.Now().After(until) {
			often, until = rng.IntN(3), time.Now().Add(time.Duration(rng.Int64N(int64(20*time.Second))))
		}
		region := regionNames[often]
		if rng.IntN(12) == 0 {
			region = regionNames[rng.IntN(3)]
		}
		if n := w.node(region + string(rune('1'+rng.IntN(2)))); n != nil {
			w.running.Go(func() {
				r := check.Request{Request: bucket.Request{Key: k.Key, Limits: w.limits, Cost: 1}, OnPartition: rules.FailClosed, OnFailure: rules.FailClosed}
				if a := decide(w.t.Context(), n, r)[0]; a.Allowed {
					if a.Source > check.Forwarded && a.Source != check.Leased {
						w.fail("%s: admitted by %+v", n.cfg.Name, a)
					}
					k.admitted.Add(1)
				}
			})
		}
		time.Sleep(time.Duration(rng.ExpFloat64() * float64(60*time.Millisecond)))
	}
}

// deciders returns the regions that decide k now.
func (w *keyWorld) deciders(k *worldKey) (list []string) {
	for _, region := range regionNames {
		for _, name := range []string{region + "1", region + "2"} {
			n := w.node(name)
			if n == nil || !n.routing.Load().owns(k.Key) || !n.mayDecide(n.cfg.Clock()) {
				continue
			}
			now := n.cfg.Clock()
			role, sure := n.place(now, k.Key)
			if _, may := n.mayPlay(now, role); sure && may && n.roles.plays(role) == region {
				list, k.role = append(list, region), role
			}
		}
	}
	return list
}

// watch is the referee.
func (w *keyWorld) watch() {
	for w.ctx.Err() == nil && w.violation() == "" {
		w.look()
		time.Sleep(50 * time.Millisecond)
	}
}

func (w *keyWorld) look() {
	w.referee.Lock()
	defer w.referee.Unlock()
	w.watchRoles()
	for _, k := range w.keys {
		who := w.deciders(k)
		// Until the directory has got the records again, it may be the home too.
		if len(who) > 1 && (k.lost == 0 || w.idleFor(k.lostAt) > 8*time.Second) {
			w.describe(k)
			w.fail("%v decide the key of %s", who, k.directory)
		}
		if s := fmt.Sprint(who); s != k.who {
			k.who = s
			w.note("the key of %s: %v, role %s, %d admitted; %s", k.directory, who, k.role, k.admitted.Load(), w.counters(k))
		}
		w.state.Lock()
		if len(who) > 0 || !w.crashes && k.decided.Before(w.state.changed) {
			k.decided = time.Now()
		}
		w.state.Unlock()
		if idle := time.Since(k.decided); !w.crashes {
			if w.maxIdle = max(w.maxIdle, idle); idle > 10*time.Second {
				w.describe(k)
				w.fail("no region has decided the key of %s for %v", k.directory, idle)
			}
		}
		if n := k.admitted.Load(); n > worldLimit*(1+k.lost) {
			w.describe(k)
			w.fail("%d admitted of the key of %s, %d times lost", n, k.directory, k.lost)
		}
	}
}

// idleFor is how long no message is lost by a cut since that time.
func (w *keyWorld) idleFor(since time.Time) time.Duration {
	w.state.Lock()
	defer w.state.Unlock()
	if w.state.changed.After(since) {
		since = w.state.changed
	}
	if len(w.state.cut) > 0 || w.state.drop != nil {
		return 0
	}
	return time.Since(since)
}

// watchRoles notes elections.
func (w *keyWorld) watchRoles() {
	for _, region := range regionNames {
		for _, name := range []string{region + "1", region + "2"} {
			n := w.node(name)
			if n == nil {
				continue
			}
			v := n.roles.view.Load()
			if v == nil || v.set.Zero() || v.set.ID == w.state.set.ID && v.set.Version <= w.state.set.Version {
				continue
			}
			old := w.state.set
			w.state.set = v.set
			w.note("set %+v", v.set)
			for _, of := range regionNames {
				if r, _ := v.set.Role(of); !old.Zero() && r.By == "" && old.Plays(of) != r.At {
					w.loses(of)
				}
			}
		}
	}
}

// describe notes what each owner knows of k.
func (w *keyWorld) describe(k *worldKey) {
	for _, region := range regionNames {
		for _, name := range []string{region + "1", region + "2"} {
			if n := w.node(name); n != nil {
				now := n.cfg.Clock()
				role, sure := n.place(now, k.Key)
				r, value, ok := n.record(now, k.Key)
				_, may := n.mayPlay(now, role)
				n.directory.mu.Lock()
				f, _ := n.directory.mu.found.Peek(k.Key)
				n.directory.mu.Unlock()
				if v := n.roles.view.Load(); v != nil {
					w.note("%s: version %d, plays %v for %v, pass %+v, speaker %s", name, v.set.Version, v.plays, time.Duration(v.until-now), v.pass, n.Speaker())
				}
				w.note("%s: home %s (%v, may play it: %v, played by %s), record %+v (%d, %v), found %+v", name, role, sure, may, n.roles.plays(role), r, value, ok, f)
			}
		}
	}
}

// everyNode returns all nodes there ever were.
func (w *keyWorld) everyNode() []*Node {
	w.state.Lock()
	defer w.state.Unlock()
	return slices.Clone(w.state.all)
}

// counters returns what owners have of k.
func (w *keyWorld) counters(k *worldKey) (s string) {
	for _, n := range w.everyNode() {
		if r, _, ok := n.record(n.cfg.Clock(), k.Key); ok && n.routing.Load().owns(k.Key) {
			d := n.table.Do(n.cfg.Clock(), &bucket.Request{Key: k.Key, Limits: w.limits, Verb: bucket.Read, Cost: 1})
			s += fmt.Sprintf("%s %d, record %s %d %v; ", n.cfg.Boot, d.Limit-d.Remaining, r.home, r.epoch, r.settled)
		}
	}
	return s
}

// latest returns the home by the latest record of k, which may not be told yet.
func (w *keyWorld) latest(k *worldKey) (home string) {
	most := int64(0)
	for _, n := range w.everyNode() {
		if r, value, ok := n.record(n.cfg.Clock(), k.Key); ok && value > most {
			most, home = value, r.home
		}
	}
	return home
}

// loses notes that counters of keys of a home are lost, and their records. w.referee must be held.
func (w *keyWorld) loses(of string) {
	for _, k := range w.keys {
		if k.directory == of || k.role == of || w.latest(k) == of {
			k.lost++
			k.lostAt = time.Now()
			w.note("the key of %s is lost with %s, %d admitted", k.directory, of, k.admitted.Load())
		}
	}
}

// whole reports whether all regions that run know a set with all of them.
func (w *keyWorld) whole() bool {
	for _, region := range regionNames {
		if n := w.node(region + "1"); n != nil {
			v := n.roles.view.Load()
			for _, other := range regionNames {
				if v == nil || other != w.gone && !v.set.Has(other) {
					return false
				}
			}
		}
	}
	return true
}

// fault lets something bad happen.
func (w *keyWorld) fault() {
	at := w.rng.IntN(3)
	region, other := regionNames[at], regionNames[(at+1+w.rng.IntN(2))%3]
	kind := w.rng.IntN(7)
	if w.crashes {
		kind = w.rng.IntN(10)
	}
	if region == w.gone || w.gone != "" && kind < 5 {
		return
	}
	for began := time.Now(); !w.whole() && w.violation() == ""; time.Sleep(50 * time.Millisecond) {
		if time.Since(began) > 15*time.Second {
			w.fail("not all regions are in the set")
		}
	}
	w.note("fault %d of %s and %s", kind, region, other)
	switch kind {
	case 0, 1, 2: // cut off, for good or flapping, or one way
		ways := [][2]string{{region, other}}
		if kind != 1 {
			ways = nil
			for _, name := range regionNames {
				ways = append(ways, [2]string{region, name}, [2]string{name, region})
			}
		}
		for i := range 4 {
			w.cutOff(true, ways...)
			if kind != 2 {
				w.sleep(0, 15*time.Second)
				w.cutOff(false, ways...)
				return
			}
			time.Sleep(1500 * time.Millisecond)
			if w.cutOff(false, ways...); i < 3 {
				time.Sleep(1500 * time.Millisecond)
			}
		}
	case 3: // a role is passed on
		if n := w.node(w.node(region + "1").Speaker()); n != nil {
			ctx, cancel := context.WithTimeout(w.ctx, time.Second)
			defer cancel()
			for _, of := range regionNames {
				if n.roles.plays(of) == region {
					w.note("passes %s on: %v", of, n.PassRole(ctx, of, other, false))
				}
			}
			w.sleep(0, 12*time.Second)
			w.touch()
		}
	case 4: // the region starts anew as a whole, or does not
		w.touch()
		for _, of := range regionNames {
			if w.node(region+"1").roles.plays(of) == region {
				w.referee.Lock()
				w.loses(of)
				w.referee.Unlock()
			}
		}
		w.crash(region + "1")
		w.crash(region + "2")
		if w.rng.IntN(5) == 0 {
			w.gone = region
			return
		}
		w.sleep(300*time.Millisecond, 12*time.Second)
		w.touch()
		w.start(region)
	case 5, 6: // messages of one kind are lost
		drop := []func(*message.RegionMessages) bool{
			func(m *message.RegionMessages) bool { return m.Counters != nil },
			func(m *message.RegionMessages) bool { return m.Taken != nil },
			func(m *message.RegionMessages) bool { return m.Homes != nil && m.Homes[0].Told },
			func(m *message.RegionMessages) bool { return m.Homes != nil && !m.Homes[0].Told },
		}[w.rng.IntN(4)]
		for _, f := range []func(*message.RegionMessages) bool{drop, nil} {
			w.touch()
			w.state.Lock()
			w.state.drop = f
			w.state.Unlock()
			if f != nil {
				w.sleep(0, 4*time.Second)
			}
		}
	case 7, 8: // a node crashes, and comes back
		name, alive := region+"1", region+"2"
		if w.rng.IntN(2) == 0 {
			name, alive = alive, name
		}
		dead := w.crash(name)
		w.sleep(0, 2500*time.Millisecond)
		w.own(region, dead, alive)
		w.sleep(0, 5*time.Second)
		w.start(region)
	case 9: // a handoff, and back
		w.own(region, nil, region+string(rune('1'+w.rng.IntN(2))))
		w.sleep(0, 3*time.Second)
		w.own(region, nil, region+"1", region+"2")
	}
}

// TestKeyWorlds: whatever happens, no two regions decide a key at a time, none is admitted beyond its bound, and while two regions are whole
// and linked none stays undecided for longer than 10 s.
func TestKeyWorlds(t *testing.T) {
	moves, most, idle := uint64(0), int64(0), time.Duration(0)
	seeds := []uint64{3164} // the directory does not reach the next home, but others do
	for i := range *keySeeds {
		seeds = append(seeds, uint64(*keyFrom+i))
	}
	for _, seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w, bad := runKeyWorld(t, seed)
				if moves, most, idle = moves+w.moves.Load(), max(most, w.maxCount), max(idle, w.maxIdle); bad != "" {
					t.Errorf("%s\n%s", bad, strings.Join(w.state.log, "\n"))
				}
			})
		})
	}
	t.Logf("%d moves, %d of %d admitted at most, undecided for %v at most", moves, most, worldLimit, idle)
}
