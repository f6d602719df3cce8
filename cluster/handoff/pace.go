package handoff

import (
	"math"
	"slices"
)

// pace keeps Fills beside the checks: nobody waits for them, and there may be millions of
// counters to send. A process has one parcel with portions of Fills under way at a
// time, whoever it is for, and the longer its receipt took, because nodes are busy, the
// longer the next one stays away. What a claim has asked for is not held up.
type pace struct {
	// parcel is the one under way, and last is whom it, or the one before it, was for.
	parcel *parcel
	last   *channel
	rest   int64 // none before
	hurry  bool
}

// longestRest is the longest time between two parcels.
const longestRest = int64(200e6)

// may reports whether a parcel may take portions of Fills now.
func (p *pace) may(now int64) bool { return p.hurry || p.parcel == nil && now >= p.rest }

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
	if m.pace.parcel == nil && m.pace.rest > m.now && slices.ContainsFunc(m.channels, (*channel).fillable) {
		return m.pace.rest
	}
	return math.MaxInt64
}

func (ch *channel) fillable() bool { return !ch.unfit && len(ch.active)+len(ch.waiting) > 0 }
