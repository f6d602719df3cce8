package sim

import (
	"time"

	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
)

// sight is what gossip shows a process of one name.
type sight struct {
	seen
	// since is when the world showed this first, shown when that was by the clock of
	// who sees it; a change of state alone is not counted.
	since, shown int64
	// due is when a change that is on its way will show; 0 if none is.
	due int64
	// hiddenUntil: gossip falsely shows nobody.
	hiddenUntil int64
}

// truth is what gossip would show p of place if it knew everything.
func (w *world) truth(p *process, place int) seen {
	q := w.procs[place]
	if q == nil || q.paused || !q.joined || p.sights[place].hiddenUntil > w.now || !w.hears(p, q) {
		return seen{}
	}
	return seen{q, q.state}
}

// hears reports whether probes between p and q arrive, by way of a third if need be.
func (w *world) hears(p, q *process) bool {
	if w.net.reaches(p.place, q.place) {
		return true
	}
	for _, r := range w.procs {
		if r != nil && !r.paused && w.net.reaches(p.place, r.place) && w.net.reaches(r.place, q.place) {
			return true
		}
	}
	return false
}

// gossip moves what p sees towards the truth, late, and reports whether anything changed.
func (w *world) gossip(p *process) (changed bool) {
	if !p.joined {
		return false
	}
	for place := range w.names {
		if place == p.place {
			continue
		}
		s, want := &p.sights[place], w.truth(p, place)
		switch {
		case s.seen == want:
			s.due = 0
		case s.due == 0:
			s.due = w.now + int64(w.lateness(s, want))
		case w.now >= s.due:
			w.reveal(p, s, want)
			changed = true
		}
	}
	return changed
}

// reveal shows p what it is to see.
func (w *world) reveal(p *process, s *sight, want seen) {
	if want.process != s.process {
		s.since, s.shown = w.now, w.clock(p)
	}
	s.seen, s.due = want, 0
}

// lateness draws how long gossip takes to tell of a change.
func (w *world) lateness(s *sight, want seen) time.Duration {
	switch {
	case s.hiddenUntil > w.now:
		return 0
	case want.process == nil && s.process.state == member.Leaving && !s.process.runs():
		return between(w.rng, 10*time.Millisecond, 400*time.Millisecond)
	case want.process == nil:
		return between(w.rng, 500*time.Millisecond, 3*time.Second)
	}
	return between(w.rng, 10*time.Millisecond, 400*time.Millisecond)
}

// peers returns whom gossip shows p.
func (p *process) peers(w *world) []message.Peer {
	var peers []message.Peer
	for place := range w.names {
		if q := p.sights[place].process; q != nil {
			peers = append(peers, q.self)
		}
	}
	return peers
}

// informed reports whether gossip shows every process the truth.
func (w *world) informed() bool {
	for _, p := range w.procs {
		if p == nil {
			continue
		}
		for place := range w.names {
			if place != p.place && p.sights[place].seen != w.truth(p, place) {
				return false
			}
		}
	}
	return true
}
