package faultnet

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"
)

// maxQueue is how long a packet may wait for a Rule's bandwidth before it is dropped.
const maxQueue = 200 * time.Millisecond

// Rule says which packets a fault meets, and what happens to these. Matchers that are zero match everything.
// Effects of several rules add up.
type Rule struct {
	From, To netip.Addr
	// Both makes the rule one for packets from To to From too.
	Both     bool
	Protocol uint8  // TCP or UDP
	Port     uint16 // at either end

	// Loss and Duplicate are shares of the packets, 0 to 1. A Loss of 1 is a cut.
	Loss, Duplicate float64
	// Delay is one way. Up to Jitter is added at random to each packet, so packets overtake each other.
	Delay, Jitter time.Duration
	// Bandwidth is in bits a second; 0 does not bound it.
	Bandwidth int64
}

func (r *Rule) matches(p packet) bool {
	if r.Protocol != 0 && r.Protocol != p.protocol || r.Port != 0 && r.Port != p.fromPort && r.Port != p.toPort {
		return false
	}
	is := func(from, to netip.Addr) bool {
		return (!r.From.IsValid() || r.From == from) && (!r.To.IsValid() || r.To == to)
	}
	return is(p.from, p.to) || r.Both && is(p.to, p.from)
}

// active is a rule in force.
type active struct {
	Rule
	busy    time.Time // until when the bandwidth is taken
	packets int       // that matched
}

// rules are those in force, with the randomness that they draw from.
type rules struct {
	active []*active
	rng    *rand.Rand
}

// deliveries returns when copies of the packet arrive, in no order; none if it is lost.
func (r *rules) deliveries(p packet, now time.Time) []time.Time {
	copies := []time.Time{now}
	for _, a := range r.active {
		if !a.matches(p) {
			continue
		}
		a.packets++
		if a.Duplicate > 0 && r.rng.Float64() < a.Duplicate {
			copies = append(copies, copies[0])
		}
		copies = slices.DeleteFunc(copies, func(time.Time) bool { return a.Loss > 0 && r.rng.Float64() < a.Loss })
		for i := range copies {
			copies[i] = copies[i].Add(a.Delay)
			if a.Jitter > 0 {
				copies[i] = copies[i].Add(time.Duration(r.rng.Int64N(int64(a.Jitter))))
			}
		}
		if a.Bandwidth > 0 {
			copies = slices.DeleteFunc(copies, func(time.Time) bool { return a.busy.Sub(now) > maxQueue })
			for i := range copies {
				if a.busy.Before(now) {
					a.busy = now
				}
				a.busy = a.busy.Add(time.Duration(int64(p.bytes) * 8 * int64(time.Second) / a.Bandwidth))
				copies[i] = copies[i].Add(a.busy.Sub(now))
			}
		}
		if len(copies) == 0 {
			return nil
		}
	}
	return copies
}
