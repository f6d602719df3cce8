package cluster

import (
	"log/slog"
	"time"
)

// spellEnds is how long no check is answered without its owner before a spell of such answers is over. It bounds the lines: two for
// each spell.
const spellEnds = int64(5 * time.Second)

// fallbackCounts is how many checks were answered without their owners, by policy, since the start, and why the last one was.
type fallbackCounts struct {
	share, closed, open uint64
	cause               error
}

func (c fallbackCounts) sum() uint64 { return c.share + c.closed + c.open }

// fallbackSpell logs when checks begin to be answered without their owners, and when they no longer are.
type fallbackSpell struct {
	before      fallbackCounts // the spell, or what there was until now
	seen        uint64
	began, last int64 // of the spell; began is 0 outside
}

func (s *fallbackSpell) tell(log *slog.Logger, m moment) {
	c := &m.fallback
	news := c.sum() != s.seen
	s.seen = c.sum()
	switch {
	case news && s.began == 0:
		s.began, s.last = m.now, m.now
		log.Warn("checks are answered without their owners, by on_failure or on_partition", "share", c.share-s.before.share,
			"closed", c.closed-s.before.closed, "open", c.open-s.before.open, "cause", c.cause)
	case news:
		s.last = m.now
	case s.began != 0 && m.now-s.last >= spellEnds:
		log.Info("checks are answered by their owners again", "after", time.Duration(s.last-s.began), "share", c.share-s.before.share,
			"closed", c.closed-s.before.closed, "open", c.open-s.before.open)
		s.before, s.began = *c, 0
	}
}

// fallbacks returns the counts until now.
func (n *Node) fallbacks() (c fallbackCounts) {
	for _, a := range []*answers{&n.stats.failure, &n.stats.minority} {
		c.share += a.share.Load()
		c.closed += a.closed.Load()
		c.open += a.open.Load()
	}
	if cause := n.stats.cause.Load(); cause != nil {
		c.cause = *cause
	}
	return c
}
