package sim

import (
	"time"

	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
)

// join asks p's join targets, which are all other names, and lets it take part in founding a set when one has
// answered or none will.
func (w *world) join(p *process) {
	if !p.runs() {
		return
	}
	if p.paused {
		w.after(20*time.Millisecond, func() { w.join(p) })
		return
	}
	found := false
	for _, q := range w.procs {
		found = found || q != nil && q != p && !q.paused && w.net.reaches(p.place, q.place)
	}
	if !found && w.now-p.started < int64(5*time.Second) && !w.first(p) {
		w.after(100*time.Millisecond, func() { w.join(p) })
		return
	}
	p.joined = true
	for place := range w.names {
		if place != p.place {
			p.sights[place].hiddenUntil = 0 // whoever has answered is seen
			w.reveal(p, &p.sights[place], w.truth(p, place))
		}
	}
	now := w.clock(p)
	w.tell(general, "%s has joined", p)
	p.quorum.SetView(now, p.peers(w))
	p.quorum.MayFound(now, true)
	p.quorum.Wish(now, message.Join)
	w.work(p)
}

// first reports whether p has no join targets: the first process of worlds that begin so.
func (w *world) first(p *process) bool { return w.lone && p == w.every[0] }

// expects returns with how many processes the one at place founds a set.
func (w *world) expects(place int) int {
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

// live moves p through its life: counted, it serves; leaving, it hands off, leaves the set, ends.
func (w *world) live(p *process, now int64) {
	switch {
	case p.state == member.Joining && p.quorum.In() && (p.quorum.Promises(now) || p.quorum.NoneDecides(now)):
		p.state = member.Serving
		w.tell(general, "%s serves", p)
	case p.state != member.Leaving:
	case p.outBy == 0 && (p.handoff.Held() == 0 && p.handoff.Needed() == 0 || now > p.handedBy):
		if held := p.handoff.Held(); held > 0 {
			w.Unfinished++
			w.tell(general, "%s gives up handing off, it still holds %d", p, held)
		}
		p.quorum.Wish(now, message.Leave)
		p.outBy = now + int64(3*time.Second)
	case p.outBy != 0 && (!p.quorum.In() && p.handoff.Held() == 0 || now > p.outBy):
		// Who sees it serve still may have handed something back meanwhile.
		w.tell(general, "%s has left", p)
		w.end(p)
	}
}

// leave begins p's ordered end.
func (w *world) leave(p *process) {
	if !p.runs() || p.state == member.Leaving {
		return
	}
	w.tell(general, "%s leaves", p)
	p.state = member.Leaving
	p.handedBy = w.clock(p) + int64(10*time.Second)
}

// end stops p for good, at once.
func (w *world) end(p *process) {
	p.left = max(w.now, 1)
	p.waiting, p.inbox = nil, nil
	if w.procs[p.place] == p {
		w.procs[p.place] = nil
	}
}

// crash ends p without a word.
func (w *world) crash(p *process) {
	if p.runs() {
		w.tell(general, "%s crashes", p)
		p.crashed = true
		w.end(p)
	}
}

// pause stops p for a while: nothing is handled and no time passes for it.
func (w *world) pause(p *process, d time.Duration) {
	if !p.runs() || p.paused {
		return
	}
	w.tell(general, "%s is paused for %v", p, d)
	p.paused, p.stopped = true, w.now
	w.after(d, func() {
		if !p.runs() {
			return
		}
		w.tell(general, "%s goes on, %d letters wait", p, len(p.inbox))
		p.paused, p.resumed, p.pausedFor = false, w.now, int64(d)
		// Whatever runs first after such a stop may be a check, a tick or a letter.
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

// stepAll has p handle what waits, some of it before its next turn.
func (w *world) stepAll(p *process, inbox []*letter) {
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
