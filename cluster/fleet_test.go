package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/snapshot"
	"github.com/sluicecluster/sluice/ring"
)

// fleet is nodes that run, and the network between them, in the time of a bubble.
type fleet struct {
	t       *testing.T
	nodes   map[string]*runningNode
	seq     uint64
	boots   int
	members map[string]member.Member // as gossip shows them
	// disks are the nodes' data directories, nil if they have none.
	disks    map[string]*snapshot.Dir
	dirs     string // the directory with those of the nodes
	onTheWay sync.WaitGroup
	mu       struct {
		sync.Mutex
		// cut reports whether nothing gets from one to the other.
		cut func(from, to string) bool
		// lose reports whether a message is lost.
		lose  func(from, to string, e message.Envelope) bool
		addrs map[string]*runningNode
		// last is closed when the last message from one to another has arrived.
		last map[string]chan struct{}
	}
}

// runningNode is one of a fleet.
type runningNode struct {
	*Node
	fleet  *fleet
	stop   context.CancelFunc
	ended  chan struct{}
	clock  func() int64
	asleep atomic.Int64 // what the clock is ahead of the bubble's
	log    lines
}

// lines is a log that may be read while it is written.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// newFleet returns nodes that have joined each other one by one.
func newFleet(t *testing.T, names ...string) *fleet {
	f := &fleet{t: t, nodes: make(map[string]*runningNode), members: make(map[string]member.Member)}
	f.mu.addrs = make(map[string]*runningNode)
	f.mu.last = make(map[string]chan struct{})
	t.Cleanup(func() {
		for _, n := range f.nodes {
			n.stop()
			<-n.ended
		}
		f.onTheWay.Wait()
	})
	for _, name := range names {
		f.join(name)
	}
	return f
}

// running runs a test in a bubble, with a fleet of nodes with these names.
func running(t *testing.T, names string, f func(t *testing.T, f *fleet)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { f(t, newFleet(t, strings.Fields(names)...)) })
}

// start runs a node that gossip shows as joining.
func (f *fleet) start(name string, changes ...func(*Config)) *runningNode {
	f.t.Helper()
	f.boots++
	n := &runningNode{fleet: f, ended: make(chan struct{})}
	wall := steadyClock()
	n.clock = func() int64 { return wall() + n.asleep.Load() }
	c := Config{
		Name: name, Boot: fmt.Sprintf("%04d-%s", f.boots, name), Ring: ring.Config{Partitions: 31}, Clock: n.clock, Hot: cold,
		Log: slog.New(slog.NewTextHandler(&n.log, nil)),
	}
	c.Peers = post{f, name}
	for _, change := range changes {
		change(&c)
	}
	table := tableOf(f.t, c.Ring.Partitions)
	c.Recorded = f.load(name, table)
	if f.boots == 1 {
		c.Expect = 1
	}
	if f.disks != nil {
		c.Store = func(r message.Record) error { return f.disks[name].PutVoters(name, [16]byte{}, r) }
	}
	var err error
	n.Node, err = New(c, table)
	must(f.t, err)
	ctx, stop := context.WithCancel(context.Background())
	n.stop = stop
	go func() {
		defer close(n.ended)
		if err := n.Run(ctx); err != nil {
			f.t.Error(err)
		}
	}()
	f.nodes[name] = n
	addr := c.Boot + ":7462"
	f.mu.Lock()
	f.mu.addrs[addr] = n
	f.mu.Unlock()
	f.show(member.Member{Name: name, Boot: c.Boot, Peer: addr, State: member.Joining})
	return n
}

// join starts a node and waits until it has its partitions.
func (f *fleet) join(name string, changes ...func(*Config)) *runningNode {
	f.t.Helper()
	n := f.start(name, changes...)
	f.serve(n)
	f.within(30*time.Second, name+" is settled", n.Settled)
	return n
}

// serve does what cmd does between the start of a node and its readiness.
func (f *fleet) serve(n *runningNode) {
	f.t.Helper()
	f.within(time.Second, "it may found", func(ctx context.Context) error { return n.MayFound(ctx, true, true) })
	f.within(30*time.Second, n.cfg.Name+" is counted", n.Join)
	f.state(n.cfg.Name, member.Serving)
}

// within waits for f, at most d.
func (f *fleet) within(d time.Duration, what string, wait func(context.Context) error) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	if err := wait(ctx); err != nil {
		f.t.Fatalf("not within %v: %s: %v", d, what, err)
	}
}

// eventually waits until ok, at most d.
func (f *fleet) eventually(d time.Duration, what string, ok func() bool) {
	f.t.Helper()
	f.within(d, what, func(ctx context.Context) error {
		for !ok() {
			if !pause.For(ctx, time.Millisecond) {
				return ctx.Err()
			}
		}
		return nil
	})
}

// show makes gossip show m to all.
func (f *fleet) show(m member.Member) {
	f.members[m.Name] = m
	f.gossip()
}

// state makes gossip show name in another state.
func (f *fleet) state(name string, s member.State) {
	m := f.members[name]
	m.State = s
	f.show(m)
}

// hide makes gossip show name no more.
func (f *fleet) hide(name string) {
	delete(f.members, name)
	f.gossip()
}

// gossip tells everybody who is there.
func (f *fleet) gossip() { f.gossipTo(slices.Collect(maps.Keys(f.nodes))...) }

// gossipTo tells some.
func (f *fleet) gossipTo(names ...string) {
	f.seq++
	v := member.View{Seq: f.seq}
	for _, name := range slices.Sorted(maps.Keys(f.members)) {
		v.Members = append(v.Members, f.members[name])
	}
	for _, name := range names {
		f.nodes[name].SetView(v)
	}
}

// kill ends a node's process without a word. Gossip does not notice.
func (f *fleet) kill(name string) {
	n := f.nodes[name]
	f.mu.Lock()
	delete(f.mu.addrs, f.members[name].Peer)
	f.mu.Unlock()
	n.stop()
	<-n.ended
	delete(f.nodes, name)
}

// owners counts who holds each partition, and fails the test where that is not one.
func (f *fleet) owners() map[string]int {
	f.t.Helper()
	synctest.Wait()
	count := make(map[string]int)
	for p := range 31 {
		owners := ""
		for name, n := range f.nodes {
			n.runner.do(context.Background(), func(int64) {
				if n.runner.handoff.Owns(p) {
					owners += name
					count[name]++
				}
			})
		}
		if len(owners) != 1 {
			f.t.Errorf("partition %d is held by %q, want one", p, owners)
		}
	}
	return count
}
