package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/cluster/share"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// The interval between ticks of a process is ticking while work is pending, otherwise up to healthy, or until the next
// heartbeat.
const (
	ticking = 20 * time.Millisecond
	healthy = 100 * time.Millisecond
)

// process is one run of a program under a name: both machines, and the node's behaviour around them.
type process struct {
	place int // in simCluster.names
	self  message.Peer
	state member.State
	// Its clock shows origin at simulated time 0, runs rate ppm too fast, and showed born when the process started.
	origin, rate, born int64
	// started, stopped, resumed and left are simulated times; left is 0 while it runs.
	started, stopped, resumed, left int64
	paused, crashed                 bool
	inbox                           []*controlMessage // while paused

	table   *bucket.Table
	quorum  *quorum.Machine
	handoff *handoff.Machine

	sights  [places]sight // what gossip shows, by place
	joined  bool          // it has asked its join targets
	view    []seen        // last known live members
	shown   handoff.View  // last view given to handoff
	placing bool          // the ring of another view is being built
	storing bool          // a write of the voter set is in progress
	wrote   int64         // last write to disk, where not every version is written
	// handedBy and outBy end the phases of leaving, on its own clock.
	handedBy, outBy int64

	// Observations of the simulated cluster.
	routes      uint64
	mask        uint64  // partitions that it owns
	terms       []*term // of these, by partition
	set         message.Set
	unconfirmed bool
	waiting     []waiting
	// torn are the epochs of states that were received only partly, by partition.
	torn []message.Epoch
	// shares is nil without shared keys. voters is the size of the set in which it last had quorum; pausedFor the length of its
	// last pause; charging the number of deferred charges in flight; spell counts how often it has dropped its shares; among is
	// the number of voters of the current ones.
	shares          *share.Shares
	accounts        []shareAccount // of shared keys
	voters          int
	hadQuorum       bool
	pausedFor       int64
	charging, spell int
	among           int64
	taken           map[message.Peer]uint64 // number of the last transfer batch processed from each
}

// seen is a member of a view.
type seen struct {
	process *process
	state   member.State
}

// clock returns the current time on the process's clock.
func (w *simCluster) clock(p *process) int64 { return p.origin + w.now + w.now*p.rate/1_000_000 }

// runs reports whether p has not ended.
func (p *process) runs() bool { return p.left == 0 }

// start starts a process under the name at place, with clock error off.
func (w *simCluster) start(place int, off int64) *process {
	p := &process{
		place: place, started: w.now, resumed: w.now, terms: make([]*term, w.partitions), torn: make([]message.Epoch, w.partitions), taken: map[message.Peer]uint64{},
	}
	p.rate = w.rng.Int64N(2*maxRate+1) - maxRate
	p.origin = epoch + off
	if w.shared != nil { // windows must be the same on all clocks
		p.origin, p.rate = epoch+off%int64(50*time.Millisecond), p.rate/20
	}
	w.keepOrder(p)
	now := p.born
	p.self = message.Peer{Name: w.names[place], Boot: fmt.Sprintf("%016x-%04x", now, w.rng.IntN(1<<16))}
	table, err := bucket.NewTable(bucket.Config{Shards: w.partitions})
	if err != nil { // the configuration is a constant
		panic(err) // the configuration is a constant
	}
	p.table = table
	counted := quorum.Config{Self: p.self, ForgetAfter: w.forgetAfter, Expect: w.expects(place), Disk: w.disk && !w.without.disk}
	if w.without.expect {
		counted.Expect = 1
	}
	if w.disk {
		counted.Record = w.disks[place]
	}
	p.wrote = w.now - int64(10*time.Second)
	p.quorum = quorum.New(counted, now)
	c := handoff.Config{Self: p.self, Partitions: w.partitions, Table: table, Quorum: p.quorum, Chunk: w.chunk, InitialSyncs: w.initialSyncs, Rest: w.rest, Replicas: w.replicas[place]}
	if w.without.gate {
		c.Gate = time.Hour
	}
	if w.shared != nil {
		w.startShares(p, now)
		c.Dropping = func(part int) { w.dropping(p, part) }
	}
	p.handoff = handoff.New(c, now)
	w.procs[place] = p
	w.every = append(w.every, p)
	w.tell(general, "%s starts, its clock is wrong by %v and runs %d ppm too fast", p, time.Duration(p.origin-epoch), p.rate)
	w.after(between(w.rng, 20*time.Millisecond, 400*time.Millisecond), func() { w.join(p) })
	w.after(time.Duration(w.rng.Int64N(int64(ticking))), func() { w.tick(p) })
	return p
}

// epoch is the correct clock at simulated time 0: ten minutes into an hour, so that no hourly window ends in a run. maxRate is
// the maximum clock rate error in ppm.
const (
	epoch   = int64(1_700_000_000/3600*3600+600) * int64(time.Second)
	maxRate = 20_000
)

func (p *process) String() string { return p.self.Name + "/" + p.self.Boot[10:] }

// tick runs p's periodic work and schedules the next tick.
func (w *simCluster) tick(p *process) {
	if !p.runs() {
		return
	}
	if !p.paused {
		w.work(p)
	}
	next := between(w.rng, ticking, healthy)
	if due := p.quorum.Due() - w.clock(p); due > 0 {
		next = min(next, time.Duration(due))
	}
	w.after(next, func() { w.tick(p) })
}

// work is the work of a tick.
func (w *simCluster) work(p *process) {
	now := w.clock(p)
	if w.gossip(p) {
		p.quorum.SetView(now, p.peers(w))
	}
	w.live(p, now)
	if p.runs() {
		w.turn(p, now)
	}
}

// receive processes a control message at p.
func (w *simCluster) receive(p *process, l *controlMessage) {
	if l.hop != nil {
		w.hopped(p, l)
		return
	}
	now := w.clock(p)
	w.step(p, now, l)
	w.turn(p, now)
}

// step passes a message to both machines. Checks may come before the following turn.
func (w *simCluster) step(p *process, now int64, l *controlMessage) {
	w.tellControlMessage(p, l)
	if h, ok := l.envelope.Body.(*message.Heartbeat); ok && w.without.proof {
		proven := *h
		proven.NoQuorum = false
		l.envelope.Body = &proven
	}
	p.quorum.Step(now, l.envelope)
	p.handoff.Step(now, l.envelope)
	w.notePortions(p, l.envelope)
	w.noteLearned(p, l.envelope)
	w.watch(p)
}

// turn completes every step of a process: it runs what is due and sends the resulting messages.
func (w *simCluster) turn(p *process, now int64) {
	w.look(p, now)
	w.turnShares(p, now)
	p.quorum.Tick(now)
	p.handoff.Tick(now)
	w.post(p, p.quorum.Take())
	w.post(p, p.handoff.Take())
	w.store(p)
	w.watch(p)
	for part, t := range p.terms {
		if t != nil && p.handoff.Gate(part) == 0 {
			t.unconfirmed = nil // no replica: the initial sync of the next one includes everything
		}
	}
}

// store starts writing p's voter set record if it has changed. A crash before the end leaves the old one.
func (w *simCluster) store(p *process) {
	if s := p.quorum.Set(); w.without.disk && w.disk && !s.Zero() && w.now-p.wrote >= int64(10*time.Second) {
		w.disks[p.place], p.wrote = message.Record{Set: s}, w.now // as a periodic snapshot would
	}
	record, ok := p.quorum.Unstored()
	if !ok || p.storing {
		return
	}
	p.storing = true
	var stored func()
	stored = func() {
		switch {
		case !p.runs():
			return
		case p.paused:
			w.after(ticking, stored) // the write ends meanwhile; its completion waits
			return
		}
		p.storing = false
		w.disks[p.place] = record
		now := w.clock(p)
		p.quorum.Stored(now, record)
		w.turn(p, now)
	}
	w.after(between(w.rng, 100*time.Microsecond, w.fsync), stored)
}

func (w *simCluster) post(p *process, out []message.Envelope) {
	for _, e := range out {
		to := slices.Index(w.names, e.To.Name)
		if to < 0 {
			w.fail("protocol", general, "%s sends %T to %q, who is nobody", p, e.Body, e.To.Name)
			return
		}
		w.note(p, e)
		w.send(&controlMessage{from: p.place, to: to, envelope: e})
	}
}

// dead is the silence after which a member counts as lost, and the time that a new member has to be heard.
const dead = 700 * time.Millisecond

// look determines the live members, and starts rebuilding the ring after a change, which takes a few milliseconds.
func (w *simCluster) look(p *process, now int64) {
	var live [places]seen
	view := live[:0]
	for place := range w.names {
		if place == p.place {
			view = append(view, seen{p, p.state})
			continue
		}
		if s := &p.sights[place]; s.process != nil && (now < s.shown+int64(dead) || p.quorum.Lives(now, s.process.self)) {
			view = append(view, s.seen)
		}
	}
	if slices.Equal(view, p.view) {
		return
	}
	p.view = append(p.view[:0], view...)
	if !p.placing {
		p.placing = true
		w.after(between(w.rng, 100*time.Microsecond, 15*time.Millisecond), func() { w.show(p) })
	}
}

// show gives handoff the new view.
func (w *simCluster) show(p *process) {
	switch {
	case !p.runs():
		return
	case p.paused:
		w.after(ticking, func() { w.show(p) })
		return
	}
	p.placing = false
	v := handoff.View{Owner: make([]int, w.partitions), Replica: make([]int, w.partitions), Second: make([]int, w.partitions)}
	for _, s := range p.view {
		v.Members, v.Serves = append(v.Members, s.process.self), append(v.Serves, s.state == member.Serving)
	}
	for part := range w.partitions {
		v.Owner[part] = w.owner(p.view, part)
		v.Replica[part] = w.owner(p.view, part, p)
		if i := v.Replica[part]; i >= 0 {
			v.Second[part] = w.owner(p.view, part, p, p.view[i].process)
		} else {
			v.Second[part] = -1
		}
	}
	p.shown = v
	w.tell(general, "%s sees %v", p, p.view)
	now := w.clock(p)
	p.handoff.SetView(now, v)
	w.turn(p, now)
}

func (s seen) String() string { return s.process.String() + " " + s.state.String() }

// owner returns the index in view of part's assigned owner, skipping without, or -1. Rendezvous hashing replaces the ring.
func (w *simCluster) owner(view []seen, part int, without ...*process) int {
	best := -1
	for i, s := range view {
		if s.state != member.Serving || slices.Contains(without, s.process) {
			continue
		}
		if best < 0 || w.weight[s.process.place][part] > w.weight[view[best].process.place][part] {
			best = i
		}
	}
	return best
}
