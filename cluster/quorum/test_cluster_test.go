package quorum_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/message"
)

const ms = int64(time.Millisecond)

// testCluster is a cluster of machines and the network between them, in one goroutine.
// Its time is a number; equal seeds give equal histories.
type testCluster struct {
	t    testing.TB
	rng  *rand.Rand
	now  int64
	all  map[string]*process // the last run of each name
	flow []event             // by time

	// The network: what is lost or doubled (out of 1), how long messages take, how
	// many take up to late instead, and which ways are cut, since when.
	loss, double, slow float64
	delay, late        int64
	cuts               map[way]int64
	// lost, if set, picks messages that get lost.
	lost func(message.Envelope) bool

	config quorum.Config
	law    law
	// disks has the disk of each name; a name without an entry has no disk. Writing takes fsync, and fails while full.
	disks map[string]*message.Record
	fsync int64
	full  map[string]bool
}

type way struct{ from, to string }

// event is something that happens to a process: a message comes in, or time passes.
type event struct {
	at  int64
	p   *process
	e   *message.Envelope
	put *message.Record // is on p's disk now
}

func newTestCluster(t testing.TB, seed uint64) *testCluster {
	w := &testCluster{
		t: t, rng: rand.New(rand.NewPCG(seed, 1)), all: map[string]*process{}, cuts: map[way]int64{},
		delay: ms, disks: map[string]*message.Record{}, fsync: 3 * ms, full: map[string]bool{},
	}
	w.law = law{sets: map[string]message.Set{}}
	return w
}

func (w *testCluster) failf(format string, args ...any) {
	w.t.Helper()
	var b strings.Builder
	for _, p := range w.running() {
		fmt.Fprintf(&b, "\n  %s: %s, right for %v", p.id.Boot, show(p.m.Set()), time.Duration(p.m.QuorumUntil()-p.clock()))
	}
	w.t.Fatalf("after %v: %s%s", time.Duration(w.now), fmt.Sprintf(format, args...), b.String())
}

func show(s message.Set) string {
	if s.Zero() {
		return "no set"
	}
	return fmt.Sprintf("%d: %s", s.Version, strings.Join(s.Members, " "))
}

// boot starts name, with the set of a snapshot if it has one. It may found a set after wait.
func (w *testCluster) boot(name string, wait int64, snapshot message.Set) *process {
	p := &process{
		w: w, id: message.Peer{Name: name, Boot: fmt.Sprintf("%08d-%s", w.now/ms, name)},
		born: w.now, start: 1e15, rate: 1, foundAt: w.now + wait,
		told: map[message.Peer]int64{}, acked: map[string]int64{}, shown: map[string]message.Set{},
	}
	if w.slow > 0 {
		p.start, p.rate = w.rng.Int64N(1e15), 1+0.09*w.rng.Float64()
	}
	c := w.config
	c.Self, c.Record.Set = p.id, snapshot
	if d := w.disks[name]; d != nil {
		c.Disk, c.Record, p.fromDisk = true, *d, d.Set
	}
	p.m = quorum.New(c, p.clock())
	w.all[name] = p
	w.law.watch(p)
	w.post(event{at: w.now, p: p})
	return p
}

// start boots names that found a set together at once, if none did before.
func (w *testCluster) start(names ...string) {
	if w.config.Expect == 0 {
		w.config.Expect = len(names)
	}
	for _, name := range names {
		w.boot(name, 100*ms, message.Set{})
	}
}

func (w *testCluster) crash(name string) { w.all[name].down = true }

func (w *testCluster) cut(from, to string) {
	if _, ok := w.cuts[way{from, to}]; !ok {
		w.cuts[way{from, to}] = w.now
	}
}

// split cuts every way between the two groups.
func (w *testCluster) split(a, b string) {
	for _, x := range strings.Fields(a) {
		for _, y := range strings.Fields(b) {
			w.cut(x, y)
			w.cut(y, x)
		}
	}
}

func (w *testCluster) heal() { clear(w.cuts) }

// post has e happen after all that happens by then.
func (w *testCluster) post(e event) {
	i := sort.Search(len(w.flow), func(i int) bool { return w.flow[i].at > e.at })
	w.flow = slices.Insert(w.flow, i, e)
}

func (w *testCluster) run(d time.Duration) {
	end := w.now + int64(d)
	for len(w.flow) > 0 && w.flow[0].at <= end {
		e := w.flow[0]
		w.flow = w.flow[1:]
		w.now = e.at
		switch p := e.p; {
		case p.down:
		case p.asleep > w.now:
			e.at = p.asleep
			w.post(e) // after what came in before: order within a sleep is kept
		case e.put != nil:
			p.put(*e.put)
			p.flush()
		case e.e != nil:
			p.take(*e.e)
			p.flush()
		default:
			p.live()
			p.flush()
			w.post(event{at: w.now + 25*ms, p: p})
		}
	}
	w.now = end
}

// until runs until ok holds, and fails if it does not within d.
func (w *testCluster) until(d time.Duration, what string, ok func() bool) time.Duration {
	w.t.Helper()
	from := w.now
	for !ok() {
		if w.now-from >= int64(d) {
			w.failf("not within %v: %s", d, what)
		}
		w.run(10 * time.Millisecond)
	}
	return time.Duration(w.now - from)
}

func (w *testCluster) running() []*process {
	var ps []*process
	for _, name := range slices.Sorted(maps.Keys(w.all)) {
		if p := w.all[name]; !p.down {
			ps = append(ps, p)
		}
	}
	return ps
}

// counted reports whether all running processes know the set of these members.
func (w *testCluster) counted(members string) func() bool {
	return func() bool {
		for _, p := range w.running() {
			if strings.Join(p.m.Set().Members, " ") != members {
				return false
			}
		}
		return w.agreed()
	}
}

// agreed reports whether all running processes know the same set.
func (w *testCluster) agreed() bool {
	ps := w.running()
	for _, p := range ps {
		if p.m.Set().Zero() || key(p.m.Set()) != key(ps[0].m.Set()) {
			return false
		}
	}
	return true
}

// withQuorum reports whether all named processes have quorum, or all processes if none is named.
func (w *testCluster) withQuorum(names ...string) func() bool {
	return func() bool {
		for _, p := range w.running() {
			if (len(names) == 0 || slices.Contains(names, p.id.Name)) && !p.has() {
				return false
			}
		}
		return true
	}
}

// apart reports whether gossip has noticed that p and q do not reach each other.
func (w *testCluster) apart(p, q *process) bool {
	for _, c := range []way{{p.id.Name, q.id.Name}, {q.id.Name, p.id.Name}} {
		if since, ok := w.cuts[c]; ok && w.now-since >= 1000*ms {
			return true
		}
	}
	return false
}
