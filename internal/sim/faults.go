package sim

import (
	"slices"
	"time"

	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/message"
)

// block cuts the link from a to b, or heals it.
func (w *world) block(a, b int, cut bool) {
	if w.net.cut[a][b] != cut {
		w.net.cut[a][b] = cut
		w.cutSince[a][b] = w.now
	}
}

// way says in which directions a cut works.
type way int

const (
	both way = iota
	outward
	inward
)

// split cuts everything between the names in a group and all others, or heals it.
func (w *world) split(group []int, how way, cut bool) {
	for a := range places {
		for b := range places {
			if !slices.Contains(group, a) || slices.Contains(group, b) {
				continue
			}
			if how != inward {
				w.block(a, b, cut)
			}
			if how != outward {
				w.block(b, a, cut)
			}
		}
	}
	w.tell(general, "%s between %v and the others, %s", cutting(cut), w.called(group), how)
}

// part cuts between two names, which a third sees both sides of, or heals it.
func (w *world) part(a, b int, how way, cut bool) {
	if how != inward {
		w.block(a, b, cut)
	}
	if how != outward {
		w.block(b, a, cut)
	}
	w.tell(general, "%s from %s to %s, %s", cutting(cut), w.names[a], w.names[b], how)
}

func cutting(cut bool) string {
	if cut {
		return "cut"
	}
	return "healed"
}

func (h way) String() string { return [...]string{"both ways", "outward", "inward"}[h] }

func (w *world) called(places []int) (names []string) {
	for _, i := range places {
		names = append(names, w.names[i])
	}
	return names
}

// heal ends every fault of network and gossip, for good.
func (w *world) heal() {
	w.mend()
	w.over = true
}

// mend ends every fault of network and gossip.
func (w *world) mend() {
	for a := range places {
		for b := range places {
			w.block(a, b, false)
			w.procsSight(a, b)
		}
	}
	w.net.unwanted, w.net.damage = nil, 0
	w.tell(general, "all is healed")
}

// procsSight ends what gossip falsely shows a of b.
func (w *world) procsSight(a, b int) {
	if p := w.procs[a]; p != nil {
		p.sights[b].hiddenUntil = 0
	}
}

// hide has gossip show p dead to some or all for a while, though it lives.
func (w *world) hide(p *process, d time.Duration) {
	all := w.rng.IntN(2) == 0
	for _, q := range w.procs {
		if q != nil && q != p && q.joined && (all || w.rng.IntN(2) == 0) {
			q.sights[p.place].hiddenUntil = w.now + int64(d)
			w.tell(general, "gossip shows %s no %s for %v", q, p, d)
		}
	}
}

// unwant has the network lose messages of some types for a while.
func (w *world) unwant(d time.Duration) {
	name, match := w.someTypes()
	w.net.measured = int64(time.Second) // receipts of what is sent again are late
	w.net.unwanted, w.net.unwantedShare = match, []int{30, 70, 100}[w.rng.IntN(3)]
	w.tell(general, "for %v the network loses %d%% of all %s", d, w.net.unwantedShare, name)
	w.after(d, func() { w.net.unwanted = nil })
}

// someTypes draws what to lose. Nothing of it is what the right needs.
func (w *world) someTypes() (string, func(message.Body) bool) {
	switch w.rng.IntN(7) {
	case 0:
		return "closes", closes
	case 1:
		return "receipts", func(b message.Body) bool { _, ok := b.(*message.Receipt); return ok }
	case 2:
		return "closes and receipts", func(b message.Body) bool {
			_, ok := b.(*message.Receipt)
			return ok || closes(b)
		}
	case 3:
		return "transfer batches", func(b message.Body) bool { _, ok := b.(*message.TransferBatch); return ok }
	case 4:
		return "holdings", func(b message.Body) bool { _, ok := b.(*message.Holdings); return ok }
	case 5:
		return "grants", func(b message.Body) bool { _, ok := b.(*message.Grant); return ok }
	default:
		return "news", func(b message.Body) bool { _, ok := b.(*message.News); return ok }
	}
}

func closes(b message.Body) bool {
	p, ok := b.(*message.TransferBatch)
	return ok && slices.ContainsFunc(p.Parts, func(x message.Part) bool { return x.Kind == message.Close })
}

// wrongClock draws how wrong the clock of a process is that starts: up to 10 s.
func (w *world) wrongClock() int64 {
	off := w.rng.Int64N(int64(20*time.Second)) - int64(10*time.Second)
	if w.rng.IntN(2) == 0 {
		off /= 200
	}
	return off
}

// keepOrder moves the clock of p, which starts, so that it is not behind the start of a process that
// ran under its name before, unless clocks may step back between two runs.
func (w *world) keepOrder(p *process) {
	for _, q := range w.every {
		if q.place == p.place && !w.stepsBack {
			p.origin += max(0, q.born+int64(time.Millisecond)-w.clock(p))
		}
	}
	p.born = w.clock(p)
}

// restart crashes p and starts its name again after a while.
func (w *world) restart(p *process, d time.Duration) {
	place := p.place
	w.crash(p)
	w.coming++
	w.after(d, func() {
		w.coming--
		if w.procs[place] == nil {
			w.start(place, w.wrongClock())
		}
	})
}

// victim draws a process that runs, nil if none does.
func (w *world) victim() *process { return w.someone() }

// serving returns the processes that run and serve.
func (w *world) serving() []*process {
	var up []*process
	for _, p := range w.running() {
		if p.state == member.Serving {
			up = append(up, p)
		}
	}
	return up
}

// vacant draws a name that nobody runs under, -1 if there is none below limit.
func (w *world) vacant(limit int) int {
	var free []int
	for i, p := range w.procs[:limit] {
		if p == nil {
			free = append(free, i)
		}
	}
	if len(free) == 0 {
		return -1
	}
	return free[w.rng.IntN(len(free))]
}
