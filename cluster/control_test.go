package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// cut lets messages pass only between nodes of the same group. Nothing ends it.
func (f *fleet) cut(groups ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.cut = nil
	if len(groups) > 0 {
		f.mu.cut = func(from, to string) bool {
			return !slices.ContainsFunc(groups, func(g string) bool { return strings.Contains(g, from) && strings.Contains(g, to) })
		}
	}
}

// loses makes messages get lost.
func (f *fleet) loses(lost func(from, to string, e message.Envelope) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.lose = lost
}

// losing is for loses: messages with a body of type B get lost.
func losing[B message.Body](_, _ string, e message.Envelope) bool {
	_, ok := e.Body.(B)
	return ok
}

// crash ends nodes' processes, and gossip notices.
func (f *fleet) crash(names ...string) {
	for _, name := range names {
		f.kill(name)
		f.hide(name)
	}
}

// leave has a node hand off what it owns, leave the voters and end.
func (f *fleet) leave(name string) {
	f.t.Helper()
	f.handOff(name)
	f.crash(name)
}

// handOff is leave for a node that does not end.
func (f *fleet) handOff(name string) {
	f.t.Helper()
	n := f.nodes[name]
	f.state(name, member.Leaving)
	f.within(20*time.Second, name+" has handed off", func(ctx context.Context) error {
		_, left, err := n.HandOff(ctx)
		if left != 0 {
			f.t.Errorf("%s has %d left", name, left)
		}
		return err
	})
	f.within(10*time.Second, name+" is no voter", n.LeaveSet)
}

// sum adds up what nodes count, or all nodes if none is named.
func (f *fleet) sum(of func(Stats) int, names ...string) (n int) {
	for name, node := range f.nodes {
		if len(names) == 0 || slices.Contains(names, name) {
			n += of(node.Stats())
		}
	}
	return n
}

// owned returns how many partitions nodes own, or all nodes if none is named.
func (f *fleet) owned(names ...string) int {
	return f.sum(func(s Stats) int { return s.Partitions.Owned }, names...)
}

// protected waits until each partition has its replica.
func (f *fleet) protected() {
	f.t.Helper()
	f.eventually(5*time.Second, "replicas are complete", func() bool {
		return f.sum(func(s Stats) int { return s.Partitions.Unprotected }) == 0
	})
}

// way returns the node at addr, if from gets there.
func (f *fleet) way(from, addr string) *runningNode {
	f.mu.Lock()
	defer f.mu.Unlock()
	n := f.mu.addrs[addr]
	if n == nil || f.mu.cut != nil && f.mu.cut(from, n.cfg.Name) {
		return nil
	}
	return n
}

// post is how one node reaches the others.
type post struct {
	*fleet
	from string
}

func (post) HangUp(string) {}

func (p post) Retain([]string) {}

func (p post) Post(addr string, e message.Envelope) {
	n := p.way(p.from, addr)
	if n == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mu.lose != nil && p.mu.lose(p.from, n.cfg.Name, e) {
		return
	}
	before, arrived := p.mu.last[p.from+addr], make(chan struct{})
	p.mu.last[p.from+addr] = arrived
	p.onTheWay.Go(func() {
		time.Sleep(latency)
		if before != nil {
			<-before // a stream keeps the order
		}
		n.Deliver(e)
		close(arrived)
	})
}

func (p post) Call(ctx context.Context, addr string, records []check.Record, replies []check.Reply) error {
	clear(replies)
	if !pause.For(ctx, latency) {
		return fmt.Errorf("%s: %w: %w", addr, check.ErrUnsent, ctx.Err())
	}
	n := p.way(p.from, addr)
	if n == nil {
		return fmt.Errorf("%s: %w", addr, check.ErrUnsent)
	}
	sent, out, served := slices.Clone(records), make([]check.Reply, len(records)), make(chan struct{})
	p.onTheWay.Go(func() {
		n.Serve("boot of "+p.from, sent, out)
		close(served)
	})
	select {
	case <-ctx.Done():
	case <-served:
	}
	if !pause.For(ctx, latency) || p.way(p.from, addr) == nil {
		return fmt.Errorf("%s: %w", addr, check.ErrAmbiguous)
	}
	copy(replies, out)
	return nil
}
