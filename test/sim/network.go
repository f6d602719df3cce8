package sim

import (
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// places is the maximum number of names in a simulated cluster.
const places = 10

// controlMessage is a message in flight: a machine's envelope, or a forwarded check.
type controlMessage struct {
	from, to int // places in simCluster.names
	envelope message.Envelope
	hop      *hop
}

// network carries control messages between names.
type network struct {
	// base is the minimum delay of each link, spread the mean of the random addition.
	base   [places][places]int64
	spread int64
	// fifo: links preserve order. Otherwise most messages keep it.
	fifo bool
	last [places][places]int64
	// In ‰: messages that are lost, arrive twice, or take up to lateness longer.
	lose, double, late int
	lateness           time.Duration
	// measured is the longest round trip of an earlier, slower network, which nodes may still assume.
	measured int64
	// cut links carry nothing.
	cut [places][places]bool
	// unwanted, if not nil, selects bodies of which unwantedShare percent are lost.
	unwanted      func(message.Body) bool
	unwantedShare int
	// damage is how many ‰ of the transfer batches carry outdated counters.
	damage int
	stale  map[portion][]byte
}

// portion identifies the content of a part, as far as its size tells.
type portion struct{ partition, counters, bytes int }

// damaged returns b with the counters of one part replaced by those of an earlier transfer batch.
func (n *network) damaged(b *message.TransferBatch) *message.TransferBatch {
	from := 0
	for i := range b.Parts {
		p := &b.Parts[i]
		name, data := portion{p.Partition, p.Counters, p.Bytes}, b.Image.Data[from:from+p.Bytes]
		from += p.Bytes
		if p.Bytes == 0 {
			continue
		}
		old, ok := n.stale[name]
		if !ok {
			n.stale[name] = slices.Clone(data)
		}
		if !ok || slices.Equal(old, data) {
			continue
		}
		c := *b
		c.Image.Data = slices.Clone(b.Image.Data)
		copy(c.Image.Data[from-p.Bytes:], old)
		return &c
	}
	return b
}

// newNetwork draws the quality of the network.
func newNetwork(r *rand.Rand) network {
	n := network{stale: map[portion][]byte{}, fifo: r.IntN(4) > 0}
	slowest := []time.Duration{300 * time.Microsecond, 2 * time.Millisecond, 8 * time.Millisecond}[r.IntN(3)]
	for i := range places {
		for j := range places {
			n.base[i][j] = int64(50*time.Microsecond) + r.Int64N(int64(slowest))
		}
	}
	n.spread = int64(slowest) / 2
	if r.IntN(2) == 0 {
		n.lose, n.double, n.late = r.IntN(15), r.IntN(15), r.IntN(6)
		n.lateness = 400 * time.Millisecond
		if n.fifo { // everything behind it waits too
			n.late, n.lateness = min(n.late, 1), 150*time.Millisecond
		}
	}
	return n
}

// roundTrip returns the longest possible minimum of several round trips, in steps of 10 ms.
func (n *network) roundTrip() (longest int64) {
	longest = n.measured
	for i := range places {
		for j := range i {
			longest = max(longest, n.base[i][j]+n.base[j][i])
		}
	}
	if n.late > 0 { // including what waits behind a late message
		longest += 2 * int64(n.lateness)
	}
	if longest += 12 * n.spread; longest < int64(25*time.Millisecond) {
		return 0
	}
	return longest + int64(10*time.Millisecond)
}

// longestWait is how long a patient control message may wait for another, as in transport/peer.
const longestWait = 120 * time.Millisecond

// delay draws the delay of a control message sent now. Others may overtake a patient one.
func (n *network) delay(r *rand.Rand, now int64, from, to int, patient bool) int64 {
	d := n.base[from][to] + int64(r.ExpFloat64()*float64(n.spread))
	if patient {
		return d + r.Int64N(int64(longestWait))
	}
	late := n.late > 0 && r.IntN(1000) < n.late
	if late {
		d += r.Int64N(int64(n.lateness))
	}
	if n.fifo || !late && r.IntN(20) > 0 {
		d = max(d, n.last[from][to]-now)
		n.last[from][to] = now + d
	}
	return d
}

// reaches reports whether control messages pass in both directions.
func (n *network) reaches(a, b int) bool { return !n.cut[a][b] && !n.cut[b][a] }

// send sends l, or loses it; with Copy it sends a second one.
func (w *simCluster) send(l *controlMessage) {
	n := &w.net
	if l.envelope.Copy {
		c := *l
		if !n.cut[l.from][l.to] && l.from != l.to && (n.lose == 0 || w.rng.IntN(1000) >= n.lose) {
			w.queue.push(event{at: w.now + n.base[l.from][l.to] + int64(w.rng.ExpFloat64()*float64(n.spread)), transferBatch: &c})
		}
	}
	switch {
	case n.cut[l.from][l.to]:
		return
	case l.from == l.to:
		w.queue.push(event{at: w.now, transferBatch: l})
		return
	case n.lose > 0 && w.rng.IntN(1000) < n.lose:
		w.tellLost(l)
		return
	case n.unwanted != nil && l.hop == nil && n.unwanted(l.envelope.Body) && w.rng.IntN(100) < n.unwantedShare:
		w.tellLost(l)
		return
	}
	if b, ok := l.envelope.Body.(*message.TransferBatch); ok && n.damage > 0 && w.rng.IntN(1000) < n.damage {
		l.envelope.Body = n.damaged(b)
	}
	w.queue.push(event{at: w.now + n.delay(w.rng, w.now, l.from, l.to, l.envelope.Patient), transferBatch: l})
	if l.hop != nil && l.hop.ask.charge != nil {
		return // a stream duplicates nothing, and a duplicate would be noticed
	}
	if n.double > 0 && w.rng.IntN(1000) < n.double {
		w.queue.push(event{at: w.now + n.delay(w.rng, w.now, l.from, l.to, l.envelope.Patient), transferBatch: l})
	}
}

// deliver delivers l to the current process of the name. Half of the messages in flight when a cut began are lost; the others
// were in a buffer beyond it.
func (w *simCluster) deliver(l *controlMessage) {
	if w.net.cut[l.from][l.to] && w.rng.IntN(2) == 0 {
		return
	}
	p := w.procs[l.to]
	switch {
	case p == nil:
	case p.paused:
		if len(p.inbox) < maxInbox {
			p.inbox = append(p.inbox, l)
		}
	default:
		w.receive(p, l)
	}
}

// maxInbox is the number of control messages that wait for a paused process; more are lost.
const maxInbox = 2000

// mostGap is the maximum time in which a partition may have no decider after links are cut, if a majority remains whose members
// all reach each other.
const mostGap = 2 * time.Second

// bridge cuts an owner off from all others but one, which all reach each other. In some runs the cut works in one direction
// only, and in some it flaps before it stays.
func bridge(w *simCluster) {
	w.net.lose = 0 // a lost fetch would be resent only after 0.5 s
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	up := w.running()
	w.rng.Shuffle(len(up), func(i, j int) { up[i], up[j] = up[j], up[i] })
	owner, others := up[0], up[2:]
	if len(up) == 5 && w.rng.IntN(4) == 0 {
		w.chain(up)
		return
	}
	how := both
	if w.rng.IntN(3) == 0 {
		how = way(w.rng.IntN(3))
	}
	cut := func(on bool) {
		for _, q := range others {
			w.part(owner.place, q.place, how, on)
		}
	}
	w.lose(owner)
	if w.rng.IntN(4) == 0 {
		w.tell(general, "the cut comes and goes")
		claims := w.Claims
		for range 1 + w.rng.IntN(4) {
			cut(true)
			w.pass(between(w.rng, 20*time.Millisecond, 300*time.Millisecond))
			cut(false)
			w.pass(between(w.rng, 500*time.Millisecond, time.Second))
		}
		if w.Claims > claims && how == both {
			w.fail("live owner", general, "%d partitions were taken over from an owner that was cut off for 0.3 s at most", w.Claims-claims)
		}
	}
	cut(true)
	w.pass(mostGap + between(w.rng, time.Second, 6*time.Second))
	w.judgeGap(up[1:])
	cut(false)
	w.pass(between(w.rng, 10*time.Millisecond, 3*time.Second))
	w.judgeGap(nil)
}

// chain leaves each process only the links to its neighbours. Those at the ends have no quorum, and the others must take over
// their partitions, some with the vote of an end. No majority is fully connected, so two processes may claim the same partition
// forever.
func (w *simCluster) chain(up []*process) {
	w.lose(up[0])
	w.lose(up[len(up)-1])
	w.neighbours = true
	cut := func(on bool) {
		for i := 2; i < len(up); i++ {
			for _, q := range up[:i-1] {
				w.part(up[i].place, q.place, both, on)
			}
		}
	}
	cut(true)
	w.pass(between(w.rng, time.Second, 8*time.Second))
	cut(false)
	w.pass(between(w.rng, 10*time.Millisecond, 3*time.Second))
}

// links cuts links such that each process still reaches a majority: no process is lost, and every partition keeps a decider.
func links(w *simCluster) {
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	up := w.running()
	w.rng.Shuffle(len(up), func(i, j int) { up[i], up[j] = up[j], up[i] })
	spare := make([]int, len(up)) // links that each can lose
	for i := range spare {
		spare[i] = (len(up) - 1) / 2
	}
	var cuts [][2]*process
	for i := range up {
		for j := range i {
			if spare[i] > 0 && spare[j] > 0 {
				spare[i]--
				spare[j]--
				cuts = append(cuts, [2]*process{up[i], up[j]})
			}
		}
	}
	for _, on := range []bool{true, false} {
		for _, c := range cuts {
			w.part(c[0].place, c[1].place, both, on)
			w.pass(time.Duration(w.rng.Int64N(int64(200 * time.Millisecond))))
		}
		w.pass(between(w.rng, time.Second, 5*time.Second))
	}
	w.judgeGap(nil)
}

// linkwise cuts a group off from the others link by link, in any order and within 10 s, and heals
// it in the same way, as a switch does that fails port by port.
func linkwise(w *simCluster) {
	w.pass(between(w.rng, 100*time.Millisecond, 1500*time.Millisecond))
	for range 1 + w.rng.IntN(2) {
		group := w.someGroup()
		var cuts [][2]*process
		for _, p := range w.running() {
			for _, q := range w.running() {
				if slices.Contains(group, p.place) && !slices.Contains(group, q.place) {
					cuts = append(cuts, [2]*process{p, q})
				}
			}
		}
		for _, on := range []bool{true, false} {
			w.rng.Shuffle(len(cuts), func(i, j int) { cuts[i], cuts[j] = cuts[j], cuts[i] })
			longest := between(w.rng, 0, 10*time.Second) / time.Duration(len(cuts))
			for _, c := range cuts {
				w.part(c[0].place, c[1].place, both, on)
				w.pass(between(w.rng, 0, 1+longest))
			}
			w.pass(between(w.rng, 10*time.Millisecond, 4*time.Second))
		}
	}
}

// judgeGap requires that no partition had no decider for long, and that all processes of the group know the owner that can
// decide.
func (w *simCluster) judgeGap(group []*process) {
	if w.Gap > mostGap {
		w.fail("gap", general, "a partition was undecided for %v, though the nodes of a majority reach each other", w.Gap)
	}
	for part := range w.partitions {
		for _, p := range group {
			knows := p.handoff.Owner(part)
			if !slices.ContainsFunc(w.procs, func(q *process) bool { return q != nil && q.self == knows && w.could(q, part) }) {
				w.fail("owner", part, "%s takes %s for the owner of p%d, which cannot decide it", p, short(knows), part)
			}
		}
	}
}
