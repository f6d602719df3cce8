package gossip

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/loglimit"
	"github.com/sluicecluster/sluice/internal/member"
)

const (
	// A process of our name that answers none of pingTries pings, one every pingPause, counts as dead. While memberlist still
	// lists it, it is pinged again after askAgain.
	pingTries = 6
	pingPause = 250 * time.Millisecond
	askAgain  = 2 * time.Second
	// conflictAfter is how long another process of our name may keep serving before the names conflict: an orchestrator that
	// replaces a node by force starts the next process some seconds before it tells the last one to leave.
	conflictAfter = 5 * time.Second
	// tellWaitEvery is the interval of log lines about waiting for another process of this node's name.
	tellWaitEvery = 5 * time.Second
)

// errLeavesFirst: a joining node waits until the other process of its name has handed off.
var errLeavesFirst = errors.New("it is leaving: this node joins when it is gone")

// watchName waits until this node may serve under its name, and then watches for other processes of that name.
func (g *Gossip) watchName(ctx context.Context) {
	g.awaitFirst(ctx)
	unanswered := g.awaitName(ctx)
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
		case <-g.registry.nameChanged:
		case <-again:
		case <-g.done:
			return
		case <-ctx.Done():
			return
		}
		_, unanswered = g.checkName(ctx, true)
	}
}

// awaitFirst waits until a join target answered, if there are any, at most for JoinTimeout. An answer from this node itself does
// not count.
func (g *Gossip) awaitFirst(ctx context.Context) {
	if len(g.config.Join) == 0 {
		g.log.Info("no join targets: others have to join this node")
		return
	}
	select {
	case <-g.answered:
		g.publish() // the view of a ready node includes the members that answered
		g.log.Info("joined", "members", len(g.View().Members))
	case <-time.After(g.config.JoinTimeout):
		g.log.Warn("no join target answered: trying further",
			"waited", g.config.JoinTimeout, "targets", g.config.Join, "errors", g.joiner.failures())
	case <-ctx.Done():
	}
}

// awaitName waits as long as another living process of this node's name is leaving, or may be about to: it hands off first. If
// that process dies, this one goes on as after a crash. It reports whether one was found that did not answer.
func (g *Gossip) awaitName(ctx context.Context) bool {
	began, quiet := time.Now(), loglimit.New(tellWaitEvery)
	for {
		waits, unanswered := g.checkName(ctx, time.Since(began) >= conflictAfter)
		if ctx.Err() != nil {
			return unanswered // mu.waits stays
		}
		g.mu.Lock()
		waited := g.mu.waits
		g.mu.waits = waits
		g.mu.Unlock()
		if waits == "" {
			if waited != "" && g.Err() == nil {
				g.log.Info("the other process of this name is gone: joining", "waited", time.Since(began).Round(time.Millisecond))
			}
			return unanswered
		}
		if quiet.Allow(time.Now(), waits) {
			g.log.Warn("not joining yet: another process has this node's name", "waits", waits)
		}
		select {
		case <-g.registry.nameChanged:
		case <-time.After(pingPause): // it may die
		case <-g.done:
		case <-ctx.Done():
		}
	}
}

// checkName checks the other processes of this node's name. If this node has to give way to a living one, that becomes the
// reason to stop, or, before the conflict is certain, what this node waits for. It reports whether one was found that did not
// answer.
func (g *Gossip) checkName(ctx context.Context, certain bool) (waits string, unanswered bool) {
	for _, other := range g.registry.named(g.config.Name) {
		self := g.Self()
		if yields(self, other.Member) == nil {
			continue
		}
		if other.Gossip == self.Gossip && g.answers(ctx, self) {
			continue // this process has its address now: it has ended
		}
		if !g.answers(ctx, other.Member) {
			unanswered = true
			continue
		}
		g.mu.Lock()
		// Our state may have changed meanwhile, and with it the process that has to give way.
		err := yields(g.mu.self, other.Member)
		if err != nil {
			err = fmt.Errorf("the node at %s (boot %s) is called %q too: %w", other.Gossip, other.Boot, other.Name, err)
		}
		switch {
		case err == nil:
		case errors.Is(err, errLeavesFirst):
			waits = err.Error()
		case other.unproven || other.State == member.Serving && !certain:
			waits = err.Error() + ", and this node stops if that one does not leave"
		default:
			g.failLocked(fmt.Errorf("gossip: Name: %w; give each node a name of its own", err))
		}
		g.mu.Unlock()
	}
	return waits, unanswered
}

// WaitsFor returns which other process of this node's name has to end before this one is ready; "" for none.
func (g *Gossip) WaitsFor() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.mu.waits
}

// yields returns why self has to give way to another living process of its name, or nil. Of two at most one gives way: a node
// does so either before it ever served, or after the other served.
func yields(self, other member.Member) error {
	switch {
	case self.State == member.Joining && other.State == member.Leaving:
		return errLeavesFirst
	case self.State == member.Joining && (other.Boot < self.Boot || other.State == member.Serving):
		return ErrDuplicateName
	case self.State == member.Serving && other.Boot > self.Boot && other.State == member.Serving:
		return ErrReplaced
	}
	return nil
}

// answers reports whether the process is alive. The ping has its full name, so another process at its address does not answer.
// One that leaves meanwhile is not waited for.
func (g *Gossip) answers(ctx context.Context, m member.Member) bool {
	name := fullName(m.Name, m.Boot)
	address, err := netip.ParseAddrPort(m.Gossip)
	if err != nil {
		return false
	}
	for range pingTries {
		pause := time.After(pingPause)
		if _, err := g.list.Ping(name, net.UDPAddrFromAddrPort(address)); err == nil {
			return true
		}
		select {
		case <-pause: // the ping may have failed at once
		case <-ctx.Done():
			return false
		}
		if !g.registry.has(name) {
			return false
		}
	}
	return false
}
