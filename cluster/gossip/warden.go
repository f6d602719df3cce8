package gossip

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/sluice-project/sluice/internal/member"
)

const (
	// A process of our name that answers none of pingTries pings, one every
	// pingPause, is taken for dead. While memberlist still lists it, it is asked
	// again after askAgain.
	pingTries = 6
	pingPause = 250 * time.Millisecond
	askAgain  = 2 * time.Second
)

// guard is the warden: it applies the rule for the first start, and then watches
// for other processes that carry this node's name.
func (g *Gossip) guard(ctx context.Context) {
	g.awaitFirst(ctx)
	unanswered := g.contest(ctx)
	g.mu.Lock()
	if ok := g.mu.err == nil && ctx.Err() == nil; ok {
		g.mu.ready = true
		close(g.ready)
	}
	g.mu.Unlock()
	for {
		var again <-chan time.Time
		if unanswered {
			again = time.After(askAgain)
		}
		select {
		case <-g.roster.rivals:
		case <-again:
		case <-g.done:
			return
		case <-ctx.Done():
			return
		}
		unanswered = g.contest(ctx)
	}
}

// awaitFirst waits until a join target answered, if there are any, and no longer
// than JoinTimeout. An answer from this node itself does not count.
func (g *Gossip) awaitFirst(ctx context.Context) {
	if len(g.config.Join) == 0 {
		g.log.Info("no join targets: others have to join this node")
		return
	}
	timer := time.NewTimer(g.config.Timing.JoinTimeout)
	defer timer.Stop()
	select {
	case <-g.answered:
		g.publish() // who is ready knows whom it has met
		g.log.Info("joined", "members", len(g.View().Members))
	case <-timer.C:
		g.log.Warn("no join target answered: trying further",
			"waited", g.config.Timing.JoinTimeout, "targets", g.config.Join, "errors", g.joiner.failures())
	case <-ctx.Done():
	}
}

// contest looks at the other processes of this node's name. If one is alive that
// this node has to give way to, it makes that the reason to stop. It reports
// whether one was found that did not answer.
func (g *Gossip) contest(ctx context.Context) (unanswered bool) {
	for _, other := range g.roster.carriers(g.config.Name) {
		if yields(g.Self(), other) == nil {
			continue
		}
		if !g.answers(ctx, other) {
			unanswered = true
			continue
		}
		g.mu.Lock()
		// Our state may have changed meanwhile, and with it who has to give way.
		if err := yields(g.mu.self, other); err != nil {
			g.failLocked(fmt.Errorf("gossip: Name: the node at %s (boot %s) is called %q too: %w; give each node a name of its own",
				other.Gossip, other.Boot, other.Name, err))
		}
		g.mu.Unlock()
	}
	return unanswered
}

// yields returns why self has to give way to another living process of its name,
// or nil if it has not. Of two at most one gives way: a node does so either
// before it ever served, or after the other served.
func yields(self, other member.Member) error {
	switch {
	case self.State == member.Joining && (other.Boot < self.Boot || other.State == member.Serving):
		return ErrDuplicateName
	case self.State == member.Serving && other.Boot > self.Boot && other.State == member.Serving:
		return ErrReplaced
	}
	return nil
}

// answers reports whether the process is alive. It is asked by its full name, so
// whoever took over its address does not answer for it.
func (g *Gossip) answers(ctx context.Context, m member.Member) bool {
	address, err := netip.ParseAddrPort(m.Gossip)
	if err != nil {
		return false
	}
	for range pingTries {
		timer := time.NewTimer(pingPause)
		if _, err := g.list.Ping(fullName(m.Name, m.Boot), net.UDPAddrFromAddrPort(address)); err == nil {
			timer.Stop()
			return true
		}
		select {
		case <-timer.C: // it may have failed at once
		case <-ctx.Done():
			timer.Stop()
			return false
		}
	}
	return false
}
