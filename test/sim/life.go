package sim

import (
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// join asks p's join targets, which are all other names, and lets p take part in founding a set when one has answered or none
// will.
func (w *simCluster) join(p *process) {
	if !p.runs() {
		return
	}
	if p.paused {
		w.after(20*time.Millisecond, func() { w.join(p) })
		return
	}
	answered, all := w.answers(p)
	if answered == 0 && !all && w.now-p.started < int64(5*time.Second) {
		w.after(100*time.Millisecond, func() { w.join(p) })
		return
	}
	p.joined = true
	for place := range w.names {
		if place != p.place {
			p.sights[place].hiddenUntil = 0 // a process that has answered is visible
			w.reveal(p, &p.sights[place], w.truth(p, place))
		}
	}
	now := w.clock(p)
	w.tell(general, "%s has joined", p)
	p.quorum.SetView(now, p.peers(w))
	p.quorum.MayFound(now, true, all)
	p.quorum.Wish(now, message.Join)
	w.work(p)
	w.joinAgain(p)
}

// joinAgain asks p's join targets again while p has a set of one from disk that is not proven.
func (w *simCluster) joinAgain(p *process) {
	w.after(200*time.Millisecond, func() {
		if !p.runs() || !p.quorum.Unproven() {
			return
		}
		if !p.paused {
			_, all := w.answers(p)
			p.quorum.MayFound(w.clock(p), true, all)
			w.work(p)
		}
		w.joinAgain(p)
	})
}

// answers returns how many of p's join targets answer, and whether all do. As in DNS, a process that
// has left, or one that was added and has not started yet, is no target, and one that has crashed is.
func (w *simCluster) answers(p *process) (answered int, all bool) {
	if w.first(p) {
		return 0, true
	}
	gone := make([]bool, len(w.procs))
	for place := range gone {
		gone[place] = place >= w.began
	}
	for _, q := range w.every {
		gone[q.place] = !q.runs() && !q.crashed
	}
	all = true
	for place, q := range w.procs {
		switch {
		case q == p || gone[place]:
		case q != nil && !q.paused && w.net.reaches(p.place, place):
			answered++
		default:
			all = false
		}
	}
	return answered, all
}

// first reports whether p has no join targets: the first process of some clusters.
func (w *simCluster) first(p *process) bool { return w.lone && p == w.every[0] }

// expects returns the Expect of the process at place.
func (w *simCluster) expects(place int) int {
	switch {
	case place >= w.began:
		return 0 // it only joins
	case !w.apart:
		return w.expect
	}
	n := 0
	for i := range w.began {
		if w.left[i] == w.left[place] {
			n++
		}
	}
	return n
}

// live advances p's life cycle: a voter serves; a leaving process hands off, leaves the set and ends.
func (w *simCluster) live(p *process, now int64) {
	switch {
	case p.state == member.Joining && p.quorum.In() && (p.quorum.Promises(now) || p.quorum.NoneDecides(now)):
		p.state = member.Serving
		w.tell(general, "%s serves", p)
	case p.state != member.Leaving:
	case p.outBy == 0 && (p.handoff.OnlyHere() == 0 && p.handoff.Needed() == 0 || now > p.handedBy):
		if owned := p.handoff.OnlyHere(); owned > 0 {
			w.Unfinished++
			w.tell(general, "%s gives up handing off, it still has %d", p, owned)
		}
		p.quorum.Wish(now, message.Leave)
		p.outBy = now + int64(3*time.Second)
	case p.outBy != 0 && (!p.quorum.In() && p.handoff.OnlyHere() == 0 || now > p.outBy):
		// Processes that still see it as serving may have handed something back meanwhile.
		w.tell(general, "%s has left", p)
		w.end(p)
	}
}

// leave begins p's orderly end.
func (w *simCluster) leave(p *process) {
	if !p.runs() || p.state == member.Leaving {
		return
	}
	w.tell(general, "%s leaves", p)
	p.state = member.Leaving
	p.handedBy = w.clock(p) + int64(10*time.Second)
}

// end stops p for good, at once.
func (w *simCluster) end(p *process) {
	p.left = max(w.now, 1)
	p.waiting, p.inbox = nil, nil
	if w.procs[p.place] == p {
		w.procs[p.place] = nil
	}
}

// crash ends p without notice.
func (w *simCluster) crash(p *process) {
	if p.runs() {
		w.tell(general, "%s crashes", p)
		p.crashed = true
		w.end(p)
	}
}

// pause stops p for d: it handles nothing.
func (w *simCluster) pause(p *process, d time.Duration) {
	if !p.runs() || p.paused {
		return
	}
	w.tell(general, "%s is paused for %v", p, d)
	p.paused, p.stopped = true, w.now
	w.after(d, func() {
		if !p.runs() {
			return
		}
		w.tell(general, "%s goes on, %d control messages wait", p, len(p.inbox))
		p.paused, p.resumed, p.pausedFor = false, w.now, int64(d)
		// The first thing to run after a pause may be a check, a tick or a control message.
		for range w.rng.IntN(4) {
			w.ask(p, w.someKey())
		}
		inbox := p.inbox
		p.inbox = nil
		w.stepAll(p, inbox)
		if w.rng.IntN(2) == 0 {
			w.work(p)
		}
	})
}

// stepAll handles p's inbox, several messages per turn.
func (w *simCluster) stepAll(p *process, inbox []*controlMessage) {
	for len(inbox) > 0 {
		now := w.clock(p)
		for n := 1 + w.rng.IntN(64); n > 0 && len(inbox) > 0; n-- {
			l := inbox[0]
			inbox = inbox[1:]
			if l.hop != nil {
				w.hopped(p, l)
				continue
			}
			w.step(p, now, l)
		}
		w.turn(p, now)
	}
}

// unquiet pauses, isolates and restarts processes that are about to found a set. Without disks none is restarted: it would be
// another process that starts without a set, more than Expect allows for.
func unquiet(w *simCluster) {
	for range 3 + w.rng.IntN(8) {
		w.pass(between(w.rng, 10*time.Millisecond, 500*time.Millisecond))
		p := w.victim()
		if p == nil {
			continue
		}
		d := between(w.rng, 20*time.Millisecond, 4*time.Second)
		switch w.rng.IntN(8) {
		case 0, 1, 6, 7:
			if w.disk {
				w.restart(p, d/8)
			}
		case 2:
			w.pause(p, d)
		case 3, 4:
			how, group := way(w.rng.IntN(3)), w.someGroup()
			w.split(group, how, true)
			w.after(d, func() { w.split(group, how, false) })
		case 5:
			if q := w.victim(); q != p {
				how := way(w.rng.IntN(3))
				w.part(p.place, q.place, how, true)
				w.after(d, func() { w.part(p.place, q.place, how, false) })
			}
		}
	}
	w.pass(5 * time.Second)
	w.mend()
}

// founded continues unquiet: processes restart in isolated minorities, or one starts with a set on disk whose other members no
// longer exist.
func founded(w *simCluster) {
	if w.disk && w.rng.IntN(2) == 0 {
		if place := w.vacant(7); place >= 0 {
			w.disks[place] = message.Record{Set: staleSet(w, place)}
			w.start(place, w.wrongClock())
		}
		w.pass(8 * time.Second)
		return
	}
	var group []int
	up := w.running()
	for _, p := range up[:(len(up)-1)/2] {
		group = append(group, p.place)
	}
	if len(group) == 0 {
		return
	}
	w.split(group, both, true)
	w.pass(between(w.rng, 100*time.Millisecond, 2*time.Second))
	for _, place := range group {
		w.lose(w.procs[place])
		w.restart(w.procs[place], between(w.rng, 10*time.Millisecond, 500*time.Millisecond))
	}
	w.pass(between(w.rng, time.Second, 12*time.Second))
	w.split(group, both, false)
}

const staleID = "zz-stale"

// staleSet returns a set with the name at place that is larger than any other of the run.
func staleSet(w *simCluster, place int) message.Set {
	s := message.Set{ID: staleID, Version: 9, Members: []string{w.names[place]}}
	for i := range places + 1 {
		s.Members = append(s.Members, "x"+strings.Repeat("x", i))
	}
	return s
}

// sight is one name as gossip shows it to a process.
type sight struct {
	seen
	// since is the simulated time of the last change of process, shown that on the observer's clock.
	since, shown int64
	// due is when a pending change becomes visible; 0 if none.
	due int64
	// hiddenUntil: gossip falsely shows no process.
	hiddenUntil int64
}

// truth is what perfect gossip would show p of place.
func (w *simCluster) truth(p *process, place int) seen {
	q := w.procs[place]
	if q == nil || q.paused || !q.joined || p.sights[place].hiddenUntil > w.now || !w.hears(p, q) {
		return seen{}
	}
	return seen{q, q.state}
}

// hears reports whether probes between p and q arrive, possibly through a third process.
func (w *simCluster) hears(p, q *process) bool {
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

// gossip moves p's view towards the truth with delay, and reports whether anything changed.
func (w *simCluster) gossip(p *process) (changed bool) {
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

// reveal updates p's view of one name.
func (w *simCluster) reveal(p *process, s *sight, want seen) {
	if want.process != s.process {
		s.since, s.shown = w.now, w.clock(p)
	}
	s.seen, s.due = want, 0
}

// lateness draws the delay of a change in gossip.
func (w *simCluster) lateness(s *sight, want seen) time.Duration {
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

// peers returns the processes that gossip shows p.
func (p *process) peers(w *simCluster) []message.Peer {
	var peers []message.Peer
	for place := range w.names {
		if q := p.sights[place].process; q != nil {
			peers = append(peers, q.self)
		}
	}
	return peers
}

// informed reports whether gossip shows every process the truth.
func (w *simCluster) informed() bool {
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
