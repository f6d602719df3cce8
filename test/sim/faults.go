package sim

import (
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// block cuts or heals the link from a to b.
func (w *simCluster) block(a, b int, cut bool) {
	if w.net.cut[a][b] != cut {
		w.net.cut[a][b] = cut
		w.cutSince[a][b] = w.now
	}
}

// way is the direction of a cut.
type way int

const (
	both way = iota
	outward
	inward
)

// split cuts or heals all links between the names in group and all others.
func (w *simCluster) split(group []int, how way, cut bool) {
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

// part cuts or heals the link between two names; others still reach both.
func (w *simCluster) part(a, b int, how way, cut bool) {
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

func (w *simCluster) called(places []int) (names []string) {
	for _, i := range places {
		names = append(names, w.names[i])
	}
	return names
}

// heal ends every fault of network and gossip, and no new ones begin.
func (w *simCluster) heal() {
	w.mend()
	w.over = true
}

// mend ends every fault of network and gossip.
func (w *simCluster) mend() {
	for a := range places {
		for b := range places {
			w.block(a, b, false)
			w.procsSight(a, b)
		}
	}
	w.net.unwanted, w.net.damage = nil, 0
	w.tell(general, "all is healed")
}

// procsSight ends false information about b in a's gossip.
func (w *simCluster) procsSight(a, b int) {
	if p := w.procs[a]; p != nil {
		p.sights[b].hiddenUntil = 0
	}
}

// hide makes gossip show p as dead to some or all processes for a while.
func (w *simCluster) hide(p *process, d time.Duration) {
	all := w.rng.IntN(2) == 0
	for _, q := range w.procs {
		if q != nil && q != p && q.joined && (all || w.rng.IntN(2) == 0) {
			q.sights[p.place].hiddenUntil = w.now + int64(d)
			w.tell(general, "gossip shows %s no %s for %v", q, p, d)
		}
	}
}

// unwant makes the network lose messages of some types for a while.
func (w *simCluster) unwant(d time.Duration) {
	name, match := w.someTypes()
	w.net.measured = int64(time.Second) // receipts of resent batches are late
	w.net.unwanted, w.net.unwantedShare = match, []int{30, 70, 100}[w.rng.IntN(3)]
	w.tell(general, "for %v the network loses %d%% of all %s", d, w.net.unwantedShare, name)
	w.after(d, func() { w.net.unwanted = nil })
}

// someTypes draws the message types to lose, none that quorum needs.
func (w *simCluster) someTypes() (string, func(message.Body) bool) {
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
		return "owned_partitions", func(b message.Body) bool { _, ok := b.(*message.OwnedPartitions); return ok }
	case 5:
		return "grants", func(b message.Body) bool { _, ok := b.(*message.ClaimResponse); return ok }
	default:
		return "pending_grants", func(b message.Body) bool { _, ok := b.(*message.PendingGrants); return ok }
	}
}

func closes(b message.Body) bool {
	p, ok := b.(*message.TransferBatch)
	return ok && slices.ContainsFunc(p.Parts, func(x message.Part) bool { return x.Kind == message.Close })
}

// wrongClock draws the clock error of a starting process: up to 10 s.
func (w *simCluster) wrongClock() int64 {
	off := w.rng.Int64N(int64(20*time.Second)) - int64(10*time.Second)
	if w.rng.IntN(2) == 0 {
		off /= 200
	}
	return off
}

// keepOrder adjusts the clock of the starting process p so that it starts after earlier processes of its name, unless clocks
// may step back between runs.
func (w *simCluster) keepOrder(p *process) {
	for _, q := range w.every {
		if q.place == p.place && !w.stepsBack {
			p.origin += max(0, q.born+int64(time.Millisecond)-w.clock(p))
		}
	}
	p.born = w.clock(p)
}

// restart crashes p and starts its name again after d.
func (w *simCluster) restart(p *process, d time.Duration) {
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

// victim draws a running process, nil if there is none.
func (w *simCluster) victim() *process { return w.someone() }

// serving returns the running processes that serve.
func (w *simCluster) serving() []*process {
	var up []*process
	for _, p := range w.running() {
		if p.state == member.Serving {
			up = append(up, p)
		}
	}
	return up
}

// vacant draws a name below limit without a process, -1 if there is none.
func (w *simCluster) vacant(limit int) int {
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

// far increases delays up to 200 ms one way for half a minute. No live owner may lose a partition, since timeouts grow with the
// measured round-trip times. In half of the runs packets are lost too, which delays everything behind them in a stream.
func far(w *simCluster) {
	before := w.net
	n := &w.net
	for i := range places {
		for j := range i {
			d := int64(between(w.rng, 20*time.Millisecond, 200*time.Millisecond))
			n.base[i][j], n.base[j][i] = d, d
		}
	}
	n.spread = int64(2 * time.Millisecond)
	n.lose, n.double, n.late, n.fifo = 0, 0, 0, true
	w.pass(10 * time.Second)
	if w.rng.IntN(2) == 0 {
		n.late, n.lateness = 10+w.rng.IntN(90), 600*time.Millisecond
		w.pass(10 * time.Second)
	}
	claims := w.Claims
	w.pass(20 * time.Second)
	if w.Claims > claims {
		w.fail("live owner", general, "%d partitions of live owners were taken over on a slow network", w.Claims-claims)
	}
	if w.Gap > 2*time.Second {
		w.fail("gap", general, "a partition was undecided for %v, on a network that carried everything", w.Gap)
	}
	before.measured = n.roundTrip()
	// In order: each reordering costs a resend, still with the delays of the slow network.
	before.fifo, before.late, before.lateness = true, min(before.late, 1), 150*time.Millisecond
	w.net = before
	w.pass(2 * time.Second)
}

// sleepers stops an owner and another process while the rest of a set of five claims the owner's partitions. The other process
// wakes, two granters leave, and the owner wakes into a set in which few members have granted the claim.
func sleepers(w *simCluster) {
	w.pass(between(w.rng, 100*time.Millisecond, time.Second))
	up := w.running()
	w.rng.Shuffle(len(up), func(i, j int) { up[i], up[j] = up[j], up[i] })
	long := between(w.rng, 6*time.Second, 11*time.Second)
	w.pause(up[0], long)
	w.pass(between(w.rng, time.Millisecond, 300*time.Millisecond))
	w.pause(up[1], between(w.rng, 900*time.Millisecond, 3*time.Second))
	if w.rng.IntN(2) == 0 {
		w.pass(between(w.rng, time.Second, 3*time.Second))
		w.unwant(between(w.rng, 100*time.Millisecond, 3*time.Second))
	}
	w.pass(between(w.rng, time.Second, 3*time.Second))
	if len(up) == 5 {
		w.leave(up[2])
		w.pass(between(w.rng, time.Millisecond, time.Second))
	}
	w.leave(up[3])
	w.pass(between(w.rng, time.Second, 4*time.Second))
	if w.rng.IntN(3) > 0 { // only a process that was not asked to grant the claim can tell the owner of it
		w.part(up[0].place, up[len(up)-1].place, way(w.rng.IntN(3)), true)
	}
	if w.rng.IntN(3) > 0 {
		w.mute(long)
	}
	w.pass(long)
}

// mute makes the network lose most announcements of ownership.
func (w *simCluster) mute(d time.Duration) {
	w.net.unwantedShare = 70 + 10*w.rng.IntN(4)
	w.net.unwanted = func(b message.Body) bool { _, ok := b.(*message.OwnedPartitions); return ok }
	w.tell(general, "for %v the network loses %d%% of all lists of owned partitions", d, w.net.unwantedShare)
	w.after(d, func() { w.net.unwanted = nil })
}

// forgotten stops an owner while another process claims its partitions with the vote of a third. Then the claimer is stopped
// and the third restarted, so that no running process remembers the claim. The first process wakes and has quorum with the
// restarted third. When the claimer wakes, the first is stopped briefly, so that it learns of the claim late.
func forgotten(w *simCluster) {
	w.stops = true
	w.pass(between(w.rng, 100*time.Millisecond, time.Second))
	up := w.running()
	w.rng.Shuffle(len(up), func(i, j int) { up[i], up[j] = up[j], up[i] })
	owner, claimer, voter := up[0], up[1], up[2]
	claims := w.Claims
	w.pause(owner, between(w.rng, 2500*time.Millisecond, 3500*time.Millisecond))
	w.passUntil(2*time.Second, func() bool { return w.Claims > claims && claimer.mask != 0 })
	w.pass(between(w.rng, time.Millisecond, 400*time.Millisecond))
	long := between(w.rng, 5*time.Second, 7*time.Second)
	w.pause(claimer, long)
	w.restart(voter, between(w.rng, 10*time.Millisecond, 100*time.Millisecond))
	moment := between(w.rng, 200*time.Millisecond, 500*time.Millisecond)
	w.pass(long - between(w.rng, time.Millisecond, moment))
	w.pause(owner, moment)
	w.pass(2 * time.Second)
}
