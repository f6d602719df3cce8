package cluster

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/ring"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// latency is how long a message takes one way. Time is that of a synctest bubble.
const latency = 100 * time.Microsecond

// fate is what becomes of one call.
type fate int

const (
	delivered   fate = iota
	unsent           // nothing leaves
	requestLost      // the call is not served and looks ambiguous
	replyLost        // the call is served and looks ambiguous
	hung             // nothing comes back until the caller's context ends; not served
	late             // as hung, and served a second later
	full             // the queue is full
	halfFull         // the first half is answered, then the queue is full
)

// testCluster is nodes and the network between them, in memory.
type testCluster struct {
	t     *testing.T
	nodes map[string]*Node // by name
	mu    struct {
		sync.Mutex
		// fate decides about each call; nil delivers all.
		fate  func(from, to string, records []check.Record) fate
		calls []call
		// retained is what each node retained last.
		retained map[string][]string
	}
	late sync.WaitGroup
	// delay is how long a message takes one way; nil is latency for all.
	delay func(from, to string) time.Duration
}

func (w *testCluster) takes(from, to string) time.Duration {
	if w.delay == nil {
		return latency
	}
	return w.delay(from, to)
}

// call is one that was made, whatever became of it.
type call struct {
	from, to string
	records  []check.Record
	at       time.Time
}

// newTestCluster returns nodes of these names that all serve and all know it. They do not run:
// where each stands is posed, so that deciding and forwarding can be looked at alone. A
// fleet has nodes that run.
func newTestCluster(t *testing.T, names ...string) *testCluster {
	w := &testCluster{t: t, nodes: make(map[string]*Node)}
	w.mu.retained = make(map[string][]string)
	for _, name := range names {
		w.add(name, nil)
	}
	w.agree(1)
	t.Cleanup(w.late.Wait)
	return w
}

func bootOf(name string) string { return name + "-boot" }

// cold makes no key hot: most tests are about checks that are asked one by one.
const cold = math.MaxInt

// add makes a node without a view.
func (w *testCluster) add(name string, change func(*Config)) *Node {
	c := Config{Name: name, Boot: bootOf(name), Peers: wire{w, name}, Ring: ring.Config{Partitions: 31}, Hot: cold}
	if change != nil {
		change(&c)
	}
	n, err := New(c, tableOf(w.t, c.Ring.Partitions))
	must(w.t, err)
	w.nodes[name] = n
	return n
}

// must ends the test at an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func tableOf(t testing.TB, shards int) *bucket.Table {
	t.Helper()
	table, err := bucket.NewTable(bucket.Config{Shards: shards})
	must(t, err)
	return table
}

// agree gives every node a view in which all nodes serve.
func (w *testCluster) agree(seq uint64) {
	var names []string
	for name := range w.nodes {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, n := range w.nodes {
		pose(n, viewOf(seq, names...))
	}
}

// pose makes n a node with quorum, that sees v, and in whose eyes all members
// live and hold what the ring gives them.
func pose(n *Node, v member.View) {
	nodes, self := nodesOf(v, n.runner.self)
	for i := range nodes {
		nodes[i].lives = true
	}
	p := assign(n.cfg.Ring, &liveMembers{v.Seq, nodes, self}, n.runner.assignment)
	if p.err != nil {
		panic(p.err)
	}
	before, after := n.routing.Load(), newRouting(nodes, self, p.table)
	after.setOwners(func(int) message.Peer { return message.Peer{} })
	for i := range after.owners {
		had, has := int(before.owners[i]) == before.self, int(after.owners[i]) == after.self
		if has && !had {
			n.table.Open(i, 0)
		} else if had && !has {
			n.table.Seal(i)
		}
	}
	n.quorumUntil.Store(math.MaxInt64)
	n.shares.When.Start(math.MaxInt64, 0, 0) // there is no runner to take turns
	n.shares.When.NoteSettled(math.MinInt64, true)
	n.reroute(after)
}

// viewOf returns a view in which these members serve.
func viewOf(seq uint64, names ...string) member.View {
	v := member.View{Seq: seq}
	for _, name := range names {
		v.Members = append(v.Members, member.Member{Name: name, Boot: bootOf(name), Peer: name + ":7462", State: member.Serving})
	}
	return v
}

// decides says what becomes of calls from now on.
func (w *testCluster) decides(f func(from, to string, records []check.Record) fate) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.fate = f
}

// always is for decides.
func always(f fate) func(from, to string, records []check.Record) fate {
	return func(string, string, []check.Record) fate { return f }
}

// callsSoFar returns the calls that were made so far.
func (w *testCluster) callsSoFar() []call {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.mu.calls)
}

// wire is how one node reaches the others.
type wire struct {
	*testCluster
	from string
}

func (wire) HangUp(string) {}

func (w wire) Retain(addrs []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mu.retained[w.from] = addrs
}

// Post loses everything: nodes that are posed have nothing to say.
func (w wire) Post(string, message.Envelope) {}

// Call clears replies as the real one does: those that do not come have no Status.
func (w wire) Call(ctx context.Context, addr string, records []check.Record, replies []check.Reply) error {
	to := addr[:len(addr)-len(":7462")]
	// What travels is a copy; the caller's slices are the caller's.
	sent := slices.Clone(records)
	clear(replies)
	w.mu.Lock()
	w.mu.calls = append(w.mu.calls, call{w.from, to, sent, time.Now()})
	f := delivered
	if w.mu.fate != nil {
		f = w.mu.fate(w.from, to, sent)
	}
	target, boot := w.nodes[to], bootOf(w.from)
	if n := w.nodes[w.from]; n != nil {
		boot = n.cfg.Boot
	}
	w.mu.Unlock()
	if target == nil {
		f = unsent
	}
	if f == halfFull {
		sent = sent[:len(sent)/2]
	}
	serve := func() []check.Reply {
		out := make([]check.Reply, len(sent))
		target.Serve(boot, sent, out)
		return out
	}
	switch f {
	case unsent:
		return fmt.Errorf("%s: %w", addr, check.ErrUnsent)
	case full:
		return fmt.Errorf("%s: %w", addr, check.ErrOverloaded)
	case requestLost, hung, late:
		if f == late {
			w.late.Go(func() {
				time.Sleep(time.Second)
				serve()
			})
		}
		if f == requestLost {
			return fmt.Errorf("%s: %w", addr, check.ErrAmbiguous)
		}
		<-ctx.Done()
		return fmt.Errorf("%s: %w: %w", addr, check.ErrAmbiguous, ctx.Err())
	}
	if !pause.For(ctx, w.takes(w.from, to)) {
		return fmt.Errorf("%s: %w: %w", addr, check.ErrUnsent, ctx.Err())
	}
	out := serve()
	if f == replyLost {
		return fmt.Errorf("%s: %w", addr, check.ErrAmbiguous)
	}
	if !pause.For(ctx, w.takes(w.from, to)) {
		return fmt.Errorf("%s: %w: %w", addr, check.ErrAmbiguous, ctx.Err())
	}
	copy(replies, out)
	if f == halfFull {
		return fmt.Errorf("%s: %w", addr, check.ErrOverloaded)
	}
	return nil
}

// bubble runs a test in a synctest bubble.
func bubble(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	synctest.Test(t, f)
}

// bubbleAs is bubble for a subtest.
func bubbleAs(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// posed runs a test in a bubble, with a test cluster of nodes with these names.
func posed(t *testing.T, names string, f func(t *testing.T, w *testCluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newTestCluster(t, strings.Fields(names)...)) })
}

// posedAs is posed for a subtest.
func posedAs(t *testing.T, name, names string, f func(t *testing.T, w *testCluster)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { posed(t, names, f) })
}

// hourly is n an hour; aligned windows, and the bubble's clock starts at midnight.
func hourly(n int64) *bucket.Limits {
	return limitsOf(bucket.Limit{Algorithm: bucket.FixedWindow, Count: n, Period: time.Hour})
}

func limitsOf(list ...bucket.Limit) *bucket.Limits {
	l, err := bucket.NewLimits(list...)
	if err != nil {
		panic(err)
	}
	return l
}

// key returns the i-th key that a ring gives to a member.
func key(table *ring.Table, owner string, i int) bucket.Key {
	for lo := uint64(i); ; lo++ {
		k := bucket.Key{Hi: uint64(i), Lo: lo}
		if table.Owner(k.Shard(table.Partitions())) == owner {
			return k
		}
		if lo > 1<<20 {
			panic("the ring gives nothing to " + owner)
		}
	}
}

// request is a check of cost 1 of the i-th key that n's ring gives to owner.
func request(n *Node, owner string, i int, limits *bucket.Limits) check.Request {
	return check.Request{Request: bucket.Request{Key: key(n.Ring(), owner, i), Limits: limits, Cost: 1}}
}

// decide answers requests on n.
func decide(ctx context.Context, n *Node, requests ...check.Request) []check.Answer {
	b := &check.Batch{Requests: requests, Answers: make([]check.Answer, len(requests))}
	n.Decide(ctx, b)
	return b.Answers
}

// decideAll is decide, all or nothing.
func decideAll(ctx context.Context, n *Node, requests ...check.Request) []check.Answer {
	b := &check.Batch{Requests: requests, Answers: make([]check.Answer, len(requests)), AllOrNothing: true}
	n.Decide(ctx, b)
	return b.Answers
}

// spent returns what r's counter has spent, asked of its owner's table.
func spent(n *Node, r check.Request) int64 {
	r.Verb, r.Cost = bucket.Read, 1
	d := n.table.Do(n.cfg.Clock(), &r.Request)
	return d.Limit - d.Remaining
}

// wantAnswer compares what matters of an answer.
func wantAnswer(t *testing.T, what string, a check.Answer, allowed bool, s check.Source, owner string) {
	t.Helper()
	if a.Err != nil || a.Allowed != allowed || a.Source != s || a.Owner != owner {
		t.Errorf("%s: %+v; want allowed=%v, source %d, by %s", what, a, allowed, s, owner)
	}
}

func wantSpent(t *testing.T, what string, n *Node, r check.Request, want int64) {
	t.Helper()
	if got := spent(n, r); got != want {
		t.Errorf("%s: %d spent, want %d", what, got, want)
	}
}

func wantErr(t *testing.T, what string, a check.Answer, err error) {
	t.Helper()
	if !errors.Is(a.Err, err) || a.Decision != (bucket.Decision{}) {
		t.Errorf("%s: %+v; want the error %q and no decision", what, a, err)
	}
}
