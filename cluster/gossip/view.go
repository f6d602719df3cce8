package gossip

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/loglimit"
	"github.com/sluice-project/sluice/internal/member"
)

// watch is the viewer: it builds a view whenever the registry changed, logs who was
// refused, and repeats what this node last said about itself.
func (g *Gossip) watch(ctx context.Context) {
	quiet := loglimit.New(time.Minute)
	repeat := time.NewTimer(time.Hour)
	repeat.Stop()
	defer repeat.Stop()
	for {
		select {
		case <-g.registry.changed:
		case <-g.repeat:
			repeat.Reset(repeatAfter * g.config.Timing.GossipInterval)
		case <-repeat.C:
			g.repeatState()
		case <-ctx.Done():
			return
		}
		for _, r := range g.registry.takeRejected() {
			if quiet.Allow(time.Now(), r.address+" "+r.reason.Error()) {
				g.log.Warn("rejected a peer", "address", r.address, "reason", r.reason.Error())
			}
		}
		g.publish()
	}
}

// publish makes what is known now the view, if it differs from the last.
func (g *Gossip) publish() {
	g.publishing.Lock()
	defer g.publishing.Unlock()
	next := &member.View{Self: g.config.Name, Members: choose(g.registry.members(), g.Self()), Seq: 1}
	if last := g.view.Load(); last != nil {
		if slices.Equal(last.Members, next.Members) {
			return
		}
		next.Seq = last.Seq + 1
		g.logChanges(last, next)
	}
	g.view.Store(next)
	signal(g.changes)
}

// choose returns one member per name, sorted by name: the newest process that
// carries it, except that one still joining does not replace an older one that
// serves or hands over. Under its own name a node always shows itself.
func choose(others []member.Member, self member.Member) []member.Member {
	all := append(others, self)
	slices.SortFunc(all, func(a, b member.Member) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Boot, b.Boot))
	})
	chosen := all[:0]
	for _, m := range all {
		last := len(chosen) - 1
		switch {
		case last < 0 || chosen[last].Name != m.Name:
			chosen = append(chosen, m)
		case chosen[last].Boot == self.Boot && m.Name == self.Name:
			// Ourselves already.
		case m.Boot == self.Boot && m.Name == self.Name:
			chosen[last] = m
		case m.State == member.Joining && chosen[last].State != member.Joining:
			// The older one goes on until it is gone or the newcomer serves.
		default:
			chosen[last] = m
		}
	}
	return slices.Clip(chosen)
}

// logChanges tells who came, changed and went.
func (g *Gossip) logChanges(last, next *member.View) {
	for _, m := range next.Members {
		was, ok := last.Lookup(m.Name)
		switch {
		case m.Name == g.config.Name:
		case !ok:
			g.log.Info("member appeared", "member", m.Name, "state", m.State.String(), "address", m.Gossip)
		case was.Boot != m.Boot:
			g.log.Info("member restarted", "member", m.Name, "state", m.State.String(), "address", m.Gossip)
		case was.State != m.State:
			g.log.Info("member changed state", "member", m.Name, "state", m.State.String())
		}
	}
	for _, m := range last.Members {
		if _, ok := next.Lookup(m.Name); !ok {
			g.log.Info("member is gone", "member", m.Name, "last_state", m.State.String(), "address", m.Gossip)
		}
	}
}
