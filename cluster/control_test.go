package cluster

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/pause"
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
