package cluster

import (
	"log/slog"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/internal/member"
)

// unprotectedAfter is how long partitions may lack replicas before a warning. After a change of members some lack them briefly.
const unprotectedAfter = int64(5 * time.Second)

// stateLog logs changes of this node's state once they are stable, so that an operator gets few lines.
type stateLog struct {
	started       bool
	last          State
	logged        handoff.Stats // of the lines so far
	unprotectedAt int64         // since when there are partitions without a replica; 0 if none
	warned        bool
	quorumLostAt  int64
	clock         member.Clocks // of the lines so far
	unheard       []string
	unheardAt     int64 // of the last line on unheard, 0 for never
	fallback      fallbackPeriod
}

// nodeState is the state that stateLog compares with that of the last call.
type nodeState struct {
	State
	now        int64
	leaving    bool
	reason     string   // why it has no quorum
	others     int      // living members besides this process
	partitions int      // in all
	unheard    []string // members that gossip shows and that are not heard
	fallback   fallbackCounts
}

func (c *stateLog) logChanges(log *slog.Logger, m nodeState) {
	if m.Set.ID != c.last.Set.ID || m.Set.Version != c.last.Set.Version {
		log.Info("voter set", "version", m.Set.Version, "members", m.Set.Members)
	}
	if m.Dissolved != c.last.Dissolved {
		log.Warn("this node's set was dissolved into a larger one, its counters go there", "members", m.Set.Members)
	}
	if !m.leaving { // it is no voter any more, and needs no quorum
		c.logQuorum(log, m)
	}
	c.logUnheard(log, m)
	c.logPartitions(log, m)
	c.logReplicas(log, m)
	c.logClock(log, m.Clock)
	c.fallback.logChanges(log, m)
	c.last = m.State
}

// logClock logs when windows begin to follow another clock, and when the voters' clocks begin or cease to agree.
func (c *stateLog) logClock(log *slog.Logger, clock member.Clocks) {
	switch {
	case !clock.Known:
		return
	case !clock.Agree && (c.clock.Agree || !c.clock.Known):
		log.Error("no majority of the voters' clocks agrees within --max-clock-skew: new windows follow this node's clock; " +
			"synchronize the clocks, then restart the nodes that were off one by one")
	case clock.Agree && clock.Correction != 0 && clock.Correction != c.clock.Correction:
		log.Warn("this node's clock is off: new windows follow the median of the voters' clocks; synchronize it, "+
			"then restart this node", "ahead", clock.Ahead, "correction", clock.Correction)
	case clock.Agree && (c.clock.Correction != 0 && clock.Correction == 0 || c.clock.Known && !c.clock.Agree):
		log.Info("this node's clock agrees with a majority of the voters'", "ahead", clock.Ahead)
	}
	c.clock = clock
}

func (c *stateLog) logQuorum(log *slog.Logger, m nodeState) {
	switch {
	case m.HasQuorum == c.last.HasQuorum:
	case !m.HasQuorum:
		c.quorumLostAt = m.now
		log.Warn("quorum lost, on_partition answers", "reason", m.reason)
	case !c.started:
		c.started = true
		log.Info("quorum", "voters", len(m.Set.Members))
	default:
		log.Info("quorum regained", "after", time.Duration(m.now-c.quorumLostAt))
	}
}

// unheardEvery is how often the log has a line about members that are not heard.
const unheardEvery = 10 * time.Second

func (c *stateLog) logUnheard(log *slog.Logger, m nodeState) {
	switch {
	case slices.Equal(m.unheard, c.unheard):
		return
	case len(m.unheard) > 0:
		// Without a keyring, gossip shows unauthenticated members, and these may change often.
		if c.unheardAt != 0 && m.now-c.unheardAt < int64(unheardEvery) {
			return
		}
		c.unheardAt = m.now
		log.Warn("members that gossip shows are not heard over the peer port", "members", m.unheard)
	default:
		log.Info("all members that gossip shows are heard over the peer port again")
	}
	c.unheard = m.unheard
}

// logPartitions logs claims and losses when their counts no longer change.
func (c *stateLog) logPartitions(log *slog.Logger, m nodeState) {
	s, logged := &m.Partitions, &c.logged
	if s.Takeovers != logged.Takeovers && s.Takeovers == c.last.Partitions.Takeovers && s.TakingOver == 0 {
		log.Info("partitions taken over", "count", s.Takeovers-logged.Takeovers, "without_state", s.WithoutState-logged.WithoutState, "owned", s.Owned)
		logged.Takeovers, logged.WithoutState = s.Takeovers, s.WithoutState
	}
	if s.Losses != logged.Losses && s.Losses == c.last.Partitions.Losses && s.TakingOver == 0 {
		log.Warn("partitions were taken over without their counters, how many is not known: rules with on_lost_state: deny "+
			"treat all as spent that may have been, until the old owner or replica is back, or `sluice members accept-loss`",
			"count", s.Losses-logged.Losses, "of", m.partitions, "owned", s.Owned)
		logged.Losses = s.Losses
	}
	if logged.Lost = max(logged.Lost, s.Lost); s.Lost == 0 && logged.Lost > 0 {
		log.Info("no counters of this node's partitions are lost any more", "state_came_back", s.LossesBack-logged.LossesBack)
		logged.Lost, logged.LossesBack = 0, s.LossesBack
	}
	if s.SteppedDown != logged.SteppedDown && s.SteppedDown == c.last.Partitions.SteppedDown {
		log.Warn("partitions lost to a later owner", "count", s.SteppedDown-logged.SteppedDown, "owned", s.Owned)
		logged.SteppedDown = s.SteppedDown
	}
}

func (c *stateLog) logReplicas(log *slog.Logger, m nodeState) {
	switch {
	case m.Partitions.Unprotected == 0 || m.others == 0:
		if c.warned {
			log.Info("all partitions have replicas again")
		}
		c.unprotectedAt, c.warned = 0, false
	case c.unprotectedAt == 0:
		c.unprotectedAt = m.now
	case !c.warned && m.now-c.unprotectedAt >= unprotectedAfter:
		c.warned = true
		log.Warn("partitions without a replica: a crash of this node would lose their counters", "count", m.Partitions.Unprotected)
	}
}

// fallbackEnds is the time without a fallback that ends a fallbackPeriod. It bounds the log lines: two for each period.
const fallbackEnds = int64(5 * time.Second)

// fallbackCounts counts the fallbacks since the start by policy. cause is that of the last one.
type fallbackCounts struct {
	share, closed, open uint64
	early               uint64 // of these, and of answers with an error
	cause               error
}

func (c fallbackCounts) sum() uint64 { return c.share + c.closed + c.open }

// fallbackPeriod logs the begin and the end of a period in which fallbacks answer checks.
type fallbackPeriod struct {
	before      fallbackCounts // counts at its begin
	seen        uint64
	began, last int64 // times of its first and last fallback; began is 0 outside a period
}

func (s *fallbackPeriod) logChanges(log *slog.Logger, m nodeState) {
	c := &m.fallback
	more := c.sum() != s.seen
	s.seen = c.sum()
	counts := slog.Group("", "share", c.share-s.before.share, "closed", c.closed-s.before.closed, "open", c.open-s.before.open, "before_deadline", c.early-s.before.early)
	switch {
	case more && s.began == 0:
		s.began, s.last = m.now, m.now
		log.Warn("checks are answered without their owners, by on_failure or on_partition", counts, "cause", c.cause)
	case more:
		s.last = m.now
	case s.began != 0 && m.now-s.last >= fallbackEnds:
		log.Info("checks are answered by their owners again", "after", time.Duration(s.last-s.began), counts)
		s.before, s.began = *c, 0
	}
}

// early returns how many checks of a period were answered before their deadlines, 0 outside one.
func (s *fallbackPeriod) early(c fallbackCounts) uint64 {
	if s.began == 0 {
		return 0
	}
	return c.early - s.before.early
}

func (n *Node) fallbacks() (c fallbackCounts) {
	c.early = n.stats.early.Load()
	for _, a := range []*fallbackStats{&n.stats.failure, &n.stats.minority} {
		c.share += a.share.Load()
		c.closed += a.closed.Load()
		c.open += a.open.Load()
	}
	if cause := n.stats.cause.Load(); cause != nil {
		c.cause = *cause
	}
	return c
}
