package cluster

import (
	"context"
	"slices"
	"sync"

	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/ring"
)

// scene is who is there at a moment: what gossip shows, and who of them lives. It is
// immutable.
type scene struct {
	seq   uint64 // of gossip's view
	nodes []node // sorted by name
	self  int    // place in nodes
}

// placement is who should hold and copy which partition in a scene: the ring of those
// who serve and live, and the same ring without this process, whose owners have its
// copies where zones allow it.
type placement struct {
	scene   *scene
	table   *ring.Table
	without *ring.Table
	view    handoff.View
	built   bool // table is another than before
	err     error
}

// place works out the placement of s. Tables of before are kept where the members are
// the same.
func place(c ring.Config, s *scene, before *placement) *placement {
	p := &placement{scene: s}
	var all, others []string
	for i, n := range s.nodes {
		if !n.lives {
			continue
		}
		p.view.Members, p.view.Serves = append(p.view.Members, n.peer()), append(p.view.Serves, n.state == member.Serving)
		if n.state == member.Serving {
			all = append(all, n.name)
			if i != s.self {
				others = append(others, n.name)
			}
		}
	}
	p.table, p.without = before.table, before.without
	if !slices.Equal(p.table.Members(), all) {
		p.built = true
		if p.table, p.err = ring.Build(c, all); p.err != nil {
			return p
		}
	}
	switch {
	case len(all) == len(others):
		p.without = p.table
	case !slices.Equal(p.without.Members(), others):
		if p.without, p.err = ring.Build(c, others); p.err != nil {
			return p
		}
	}
	p.view.Owner = owners(p.table, p.view.Members)
	p.view.Standby, p.view.Second = replicaNodes(s, owners(p.without, p.view.Members))
	return p
}

// owners lists t's owners by partition, as places in members, which has them all.
func owners(t *ring.Table, members []message.Peer) []int {
	places := make([]int, len(t.Members()))
	for i, name := range t.Members() {
		places[i] = slices.IndexFunc(members, func(p message.Peer) bool { return p.Name == name })
	}
	list := make([]int, t.Partitions())
	for p := range list {
		list[p] = nobody
		if i := t.OwnerIndex(p); i >= 0 {
			list[p] = places[i]
		}
	}
	return list
}

// placer builds placements beside the runner, whose heartbeats must not wait for the
// milliseconds that a ring takes. Of several requests it serves the last.
type placer struct {
	config ring.Config
	retain func(addrs []string)
	last   *placement // of the goroutine
	wake   chan struct{}
	done   chan *placement // to the runner
	mu     struct {
		sync.Mutex
		next *scene
	}
}

func newPlacer(c ring.Config, retain func([]string), first *placement) *placer {
	return &placer{config: c, retain: retain, last: first, wake: make(chan struct{}, 1), done: make(chan *placement)}
}

// ask wants the placement of s; it does not wait.
func (p *placer) ask(s *scene) {
	p.mu.Lock()
	p.mu.next = s
	p.mu.Unlock()
	signal(p.wake)
}

// run builds what is asked for until ctx ends.
func (p *placer) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-p.wake:
		}
		p.mu.Lock()
		s := p.mu.next
		p.mu.Unlock()
		next := place(p.config, s, p.last)
		if next.err == nil {
			p.last = next
			p.retain(next.addrs())
		}
		select {
		case <-ctx.Done():
			return
		case p.done <- next:
		}
	}
}

// addrs returns where the other members are, also those that do not live.
func (p *placement) addrs() []string {
	var addrs []string
	for i, n := range p.scene.nodes {
		if i != p.scene.self && n.addr != "" {
			addrs = append(addrs, n.addr)
		}
	}
	return addrs
}

// signal wakes whoever waits on a channel of capacity 1.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
