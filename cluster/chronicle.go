package cluster

import (
	"log/slog"
	"slices"
	"time"

	"github.com/sluice-project/sluice/cluster/handoff"
	"github.com/sluice-project/sluice/internal/message"
)

// patience is how long partitions may be without a copy before it is worth a line:
// after every change of members some are, for a moment.
const patience = int64(5 * time.Second)

// chronicle logs what an operator wants to know about this node's standing: few lines,
// each when something has changed and come to rest.
type chronicle struct {
	started     bool
	right       bool
	set         message.Set
	dissolved   uint64
	counted     handoff.Stats // what the lines so far have told
	last        handoff.Stats
	uncopied    int64 // since when there are partitions without a copy; 0 if none
	warned      bool
	rightLostAt int64
	clock       ClockStats // that the lines so far have told
	unheard     []string
	unheardAt   int64 // when the log had that last, 0 for never
	fallback    fallbackSpell
}

// moment is what the chronicle looks at.
type moment struct {
	now       int64
	leaving   bool
	right     bool
	reason    string // why it has no right
	others    int    // living members besides this process
	set       message.Set
	dissolved uint64
	stats     handoff.Stats
	// partitions is how many there are in all.
	partitions int
	clock      ClockStats
	unheard    []string // members that gossip shows and that are not heard
	fallback   fallbackCounts
}

func (c *chronicle) tell(log *slog.Logger, m moment) {
	if m.set.ID != c.set.ID || m.set.Version != c.set.Version {
		log.Info("voter set", "version", m.set.Version, "members", m.set.Members)
		c.set = m.set
	}
	if m.dissolved != c.dissolved {
		log.Warn("this node's set was dissolved into a larger one, its counters go there", "members", m.set.Members)
		c.dissolved = m.dissolved
	}
	if !m.leaving { // who is not counted any more has no need of quorum
		c.tellRight(log, m)
	}
	c.tellUnheard(log, m)
	c.tellPartitions(log, m)
	c.tellCopies(log, m)
	c.tellClock(log, m.clock)
	c.fallback.tell(log, m)
	c.last = m.stats
}

// tellClock tells when windows begin to follow another clock, or the voters' clocks to agree or not to.
func (c *chronicle) tellClock(log *slog.Logger, clock ClockStats) {
	switch {
	case !clock.Known:
		return
	case !clock.Agree && (c.clock.Agree || !c.clock.Known):
		log.Error("no majority of the voters' clocks agrees within --max-clock-skew: new windows follow this node's clock; synchronize the clocks, then restart the nodes that were off one by one")
	case clock.Agree && clock.Correction != 0 && clock.Correction != c.clock.Correction:
		log.Warn("this node's clock is off: new windows follow the median of the voters' clocks; synchronize it, then restart this node",
			"ahead", clock.Ahead, "correction", clock.Correction)
	case clock.Agree && (c.clock.Correction != 0 && clock.Correction == 0 || c.clock.Known && !c.clock.Agree):
		log.Info("this node's clock agrees with a majority of the voters'", "ahead", clock.Ahead)
	}
	c.clock = clock
}

func (c *chronicle) tellRight(log *slog.Logger, m moment) {
	switch {
	case m.right == c.right:
	case !m.right:
		c.rightLostAt = m.now
		log.Warn("right to decide lost, on_partition answers", "reason", m.reason)
	case !c.started:
		c.started = true
		log.Info("right to decide", "counted", len(m.set.Members))
	default:
		log.Info("right to decide regained", "after", time.Duration(m.now-c.rightLostAt))
	}
	c.right = m.right
}

// unheardEvery is how often the log has a line about members that are not heard.
const unheardEvery = 10 * time.Second

func (c *chronicle) tellUnheard(log *slog.Logger, m moment) {
	switch {
	case slices.Equal(m.unheard, c.unheard):
		return
	case len(m.unheard) > 0:
		// Gossip without a keyring shows what anybody says, as often as that changes.
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

// tellPartitions tells of claims and losses when they have come to rest.
func (c *chronicle) tellPartitions(log *slog.Logger, m moment) {
	s, told := &m.stats, &c.counted
	if s.Claims != told.Claims && s.Claims == c.last.Claims && s.Claiming == 0 {
		log.Info("partitions claimed", "count", s.Claims-told.Claims, "without_state", s.Fresh-told.Fresh, "holding", s.Holding)
		told.Claims, told.Fresh = s.Claims, s.Fresh
	}
	if s.Losses != told.Losses && s.Losses == c.last.Losses && s.Claiming == 0 {
		log.Warn("partitions were taken over without their counters, how many is not known: rules with on_lost_state: deny take all for spent that may have been, until "+
			"the old owner or replica is back, or `sluice members accept-loss`",
			"count", s.Losses-told.Losses, "of", m.partitions, "holding", s.Holding)
		told.Losses = s.Losses
	}
	if told.Lost = max(told.Lost, s.Lost); s.Lost == 0 && told.Lost > 0 {
		log.Info("no counters of this node's partitions are lost any more", "state_came_back", s.LossesBack-told.LossesBack)
		told.Lost, told.LossesBack = 0, s.LossesBack
	}
	if s.SteppedDown != told.SteppedDown && s.SteppedDown == c.last.SteppedDown {
		log.Warn("partitions lost to a later owner", "count", s.SteppedDown-told.SteppedDown, "holding", s.Holding)
		told.SteppedDown = s.SteppedDown
	}
}

func (c *chronicle) tellCopies(log *slog.Logger, m moment) {
	switch {
	case m.stats.Unprotected == 0 || m.others == 0:
		if c.warned {
			log.Info("all partitions have copies again")
		}
		c.uncopied, c.warned = 0, false
	case c.uncopied == 0:
		c.uncopied = m.now
	case !c.warned && m.now-c.uncopied >= patience:
		c.warned = true
		log.Warn("partitions without a copy: a crash of this node would lose their counters", "count", m.stats.Unprotected)
	}
}

// spellEnds is how long no check must get a fallback before a spell of them is over. It bounds the lines: two for each spell.
const spellEnds = int64(5 * time.Second)

// fallbackCounts is how many checks were answered without their owners since the start, by policy, and the cause of the last.
type fallbackCounts struct {
	share, closed, open uint64
	cause               error
}

func (c fallbackCounts) sum() uint64 { return c.share + c.closed + c.open }

// fallbackSpell logs when checks begin to be answered without their owners, and when that ends.
type fallbackSpell struct {
	before      fallbackCounts // the spell
	seen        uint64
	began, last int64 // of the spell; began is 0 outside
}

func (s *fallbackSpell) tell(log *slog.Logger, m moment) {
	c := &m.fallback
	more := c.sum() != s.seen
	s.seen = c.sum()
	counts := slog.Group("", "share", c.share-s.before.share, "closed", c.closed-s.before.closed, "open", c.open-s.before.open)
	switch {
	case more && s.began == 0:
		s.began, s.last = m.now, m.now
		log.Warn("checks are answered without their owners, by on_failure or on_partition", counts, "cause", c.cause)
	case more:
		s.last = m.now
	case s.began != 0 && m.now-s.last >= spellEnds:
		log.Info("checks are answered by their owners again", "after", time.Duration(s.last-s.began), counts)
		s.before, s.began = *c, 0
	}
}

// fallbacks returns the current counts.
func (n *Node) fallbacks() (c fallbackCounts) {
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
