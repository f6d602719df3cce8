package handoff

import (
	"math"
	"slices"
)

// pace keeps Fills beside the checks: nobody waits for them, and there may be millions of
// counters to send. A process has one transfer batch with portions of Fills under way at a
// time, whoever it is for, and the longer its receipt took, because nodes are busy, the
// longer the next one stays away. What a claim has asked for is not held up.
type pace struct {
	// transfer batch is the one under way, and last is whom it, or the one before it, was for.
	transferBatch *transferBatch
	last          *channel
	rest          int64 // none before
	hurry         bool
}

// longestRest is the longest time between two transfer batches.
const longestRest = int64(200e6)

// may reports whether a transfer batch may take portions of Fills now.
func (p *pace) may(now int64) bool { return p.hurry || p.transferBatch == nil && now >= p.rest }

// inTurn calls f for all channels, those first that others were filled before.
func (m *Machine) inTurn(f func(ch *channel)) {
	from := slices.Index(m.channels, m.pace.last) + 1
	for _, ch := range m.channels[from:] {
		f(ch)
	}
	for _, ch := range m.channels[:from] {
		f(ch)
	}
}

// Hurry makes fillings go on without rests from now on: this process wants to be gone.
func (m *Machine) Hurry() { m.pace.hurry = true }

// Due returns when fillings that rest go on, math.MaxInt64 if none rests: Tick is wanted
// then.
func (m *Machine) Due() int64 {
	if m.pace.transferBatch == nil && m.pace.rest > m.now && slices.ContainsFunc(m.channels, (*channel).fillable) {
		return m.pace.rest
	}
	return math.MaxInt64
}

func (ch *channel) fillable() bool { return !ch.unfit && len(ch.active)+len(ch.waiting) > 0 }
