package gossip

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-project/sluice/internal/member"
)

const (
	// leaveTimeout bounds each of the two announcements of Leave.
	leaveTimeout = time.Second
	// repeatAfter is when a state is told once more, in gossip intervals: when the
	// first message is through, or lost.
	repeatAfter = 5
)

// turn is a mutex of capacity 1. Holders wait for time to pass, which a
// testing/synctest bubble sees in a channel but not in a sync.Mutex.
type turn chan struct{}

func (t turn) take() { t <- struct{}{} }

func (t turn) tryTake() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

func (t turn) give() { <-t }

// SetState tells the others what this node is doing now: joining, which it
// starts with, then serving, then leaving. States only go forward, and serving is
// refused before Ready. It returns without waiting for the news to spread, which
// takes about two gossip intervals.
func (g *Gossip) SetState(s member.State) error {
	g.announce.take()
	defer g.announce.give()
	// UpdateNode takes no wait of zero; the news is under way when it returns.
	return g.announceLocked(s, time.Nanosecond)
}

// announceLocked sets the state and waits at most so long until the news is out.
// It requires that g.announce is held.
func (g *Gossip) announceLocked(s member.State, wait time.Duration) error {
	changed, err := g.change(s)
	if err != nil || !changed {
		return err
	}
	// The only error is that the wait was too short. The news goes out all the same.
	_ = g.list.UpdateNode(wait)
	g.publish()
	signal(g.repeat)
	g.log.Info("state changed", "state", s.String())
	return nil
}

// repeatState tells the others once more what this node is doing. memberlist's
// queue of news loses a message now and then: whenever it is empty for a moment,
// also while messages are taken out to be put back, its numbering starts afresh,
// and messages of the same length then take each other's place. Only the origin
// can make that good before the next whole exchange of state.
func (g *Gossip) repeatState() {
	if !g.announce.tryTake() {
		signal(g.repeat) // something is being told now; come back
		return
	}
	defer g.announce.give()
	if !g.left && g.Err() == nil {
		_ = g.list.UpdateNode(time.Nanosecond)
	}
}

// change sets the state and the metadata.
func (g *Gossip) change(s member.State) (changed bool, err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.mu.self.State
	switch {
	case g.mu.closed:
		return false, fmt.Errorf("gossip: set state %s: %w", s, ErrClosed)
	case s == now:
		return false, nil
	case s == member.Leaving && (errors.Is(g.mu.err, ErrDuplicateName) || g.mu.waits != ""):
		return false, nil // the name is another's, and the news would be taken for its
	case s < now || s > member.Leaving:
		return false, fmt.Errorf("gossip: set state %s: it is %s already, and states only go forward", s, now)
	case s == member.Serving && g.mu.err != nil:
		return false, g.mu.err
	case s == member.Serving && !g.mu.ready:
		return false, fmt.Errorf("gossip: set state %s: call Ready first", s)
	}
	next := g.mu.self
	next.State = s
	meta, err := g.encode(next)
	if err != nil {
		return false, err
	}
	g.mu.self = next
	g.meta.Store(&meta)
	return true, nil
}

// Leave tells the others that this node is gone: they drop it from their views at
// once. It waits until the news is out, at most 2 s or as long as ctx allows.
// Announce the state Leaving earlier, when others should stop sending work. Close
// must still be called. Calling Leave again does nothing.
func (g *Gossip) Leave(ctx context.Context) error {
	g.announce.take()
	defer g.announce.give()
	if g.left {
		return nil
	}
	// Those who never hear of the state Leaving would take this node for lost.
	if err := g.announceLocked(member.Leaving, timeLeft(ctx)); err != nil {
		return err
	}
	g.stopJoining()
	g.left = true
	// Where all leave at once, those who were to hear it may be gone by now.
	if err := g.list.Leave(timeLeft(ctx)); err != nil && !g.registry.alone() {
		return fmt.Errorf("gossip: leave: %w", err)
	}
	return nil
}

// timeLeft returns how long one announcement may take.
func timeLeft(ctx context.Context) time.Duration {
	wait := leaveTimeout
	if deadline, ok := ctx.Deadline(); ok {
		wait = min(wait, time.Until(deadline))
	}
	if ctx.Err() != nil {
		wait = 0
	}
	return max(wait, time.Nanosecond) // memberlist takes 0 for no limit
}
