package handoff

import (
	"maps"
	"slices"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/guard"
	"github.com/sluice-project/sluice/internal/message"
)

// partition is what this process knows of one partition, and has of it.
type partition struct {
	number int
	phase  phase // changed by enter only

	known knowledge
	state state
	// rejected is the highest generation of a close that was rejected.
	rejected uint64
	// promised is the epoch that was last granted, told the number of the pending grants that it
	// was part of.
	promised message.Epoch
	told     uint64
	// owned is the highest epoch at which a process has said that it owns the partition, formerly the highest of those before the claim
	// that owned came from.
	owned, formerly message.Epoch
	// own and before are the last two epochs at which this process has owned it.
	own, before message.Epoch
	// granted are later epochs that were granted to others than the last, one of each: they may have owned the partition unheard.
	granted []message.Epoch

	hold  hold
	claim *claim
}

// knowledge is the highest epoch that this process knows of, and by whom.
type knowledge struct {
	epoch message.Epoch
	owner message.Peer
	basis basis
	since int64 // when the epoch was learned
	// nextOwner is to whom the owner hands it over, and inherits since when that is known; start is where its history begins. All only
	// if it was announced.
	nextOwner message.Peer
	inherits  int64
	start     message.Mark
	// replicated: it said that it has as many complete replicas as it wants.
	replicated bool
}

// basis is what this process knows the owner at an epoch by.
type basis uint8

const (
	granted   basis = iota // the epoch was granted to it
	announced              // the owner itself says that it owns the partition
	released               // and now says so no longer
)

// state is what is in the partition's shard while this process does not hold it.
type state struct {
	mark, start message.Mark
	// passed: a close was on its way when it was given up, so that another process may have gone on from it.
	passed bool
	// loss is what it lacks.
	loss loss
	// from, initial sync and sum tell whose copy it is, and how far.
	from        message.Peer
	initialSync uint64
	sum         uint64
	// merging is the way of a divergent copy to the owner, answers are those to claimers.
	merging *target
	answers []*target
}

// hold is what an owner knows about its partition.
type hold struct {
	epoch   message.Epoch
	start   message.Mark
	targets []*target
	// spans are changes that were drained and not confirmed yet, the oldest first.
	spans []changes
	// journal and gate are what the table was told.
	journal bucket.Recording
	gate    time.Duration
	// replicated: it has had a complete replica, or was taken over, see awaitsReplica.
	replicated bool
	// former are nodes that have a complete state of before the takeover that this term began with, and surplus says
	// that there are targets that are not wanted any more, see plan.
	former  []message.Peer
	surplus bool
	// orphaned is since when the last complete copy is lost, see there.
	orphaned int64
	// giver has handed it over here, at the time since. It does not get it back at once,
	// should the two see different members.
	giver message.Peer
	since int64
	later bool
	// shunned has rejected a part, and is not tried again for a while.
	shunned      message.Peer
	shunnedUntil int64

	// loss is what the shard lacks, merging are divergent copies that are coming, one of a process.
	loss    loss
	merging []merging

	// While closing.
	next      message.Epoch
	nextOwner *target
	seq       uint64
	frozen    int64 // since when
}

// changes are those up to the one numbered seq; the oldest is of the time since.
type changes struct {
	seq   uint64
	since int64
}

// release ends the ways of s to others, because it ends or changes.
func (s *state) release() {
	if s.merging != nil {
		s.merging.gone = true
	}
	for _, t := range s.answers {
		t.gone = true
	}
	s.merging, s.answers = nil, nil
}

// within reports whether the history that an owner whose epoch began with start goes
// on from contains the state of p, so that nothing is lost when that is forgotten.
func (p *partition) within(start message.Mark) bool {
	s := &p.state
	if p.uprooted() {
		return false
	}
	if s.mark.Epoch == start.Epoch {
		return s.mark.Seq <= start.Seq
	}
	// A copy of an older epoch was a part of what its owner had.
	return p.phase != divergent && s.mark.Epoch.Less(start.Epoch)
}

// markOf returns the point that an owner's shard is at.
func (m *Machine) markOf(p *partition) message.Mark {
	if p.phase == handingOver {
		return message.Mark{Epoch: p.hold.epoch, Seq: p.hold.seq}
	}
	return message.Mark{Epoch: p.hold.epoch, Seq: m.drain(p)}
}

// open makes this process the owner of p at epoch, going on from start in the shard.
func (m *Machine) open(p *partition, epoch message.Epoch, start message.Mark, targets ...*target) {
	p.state.release()
	replicated := p.hold.replicated || p.claim != nil && m.several
	var former []message.Peer
	if p.claim != nil {
		for _, x := range p.claim.states {
			if x.has == message.Complete && x.peer != m.c.Self {
				former = append(former, x.peer)
			}
		}
	}
	lost := *m.lossOf(p)
	p.enter(owning)
	p.state, p.claim = state{}, nil
	p.hold = hold{epoch: epoch, start: start, targets: targets, replicated: replicated, former: former}
	p.known = knowledge{epoch: epoch, owner: m.c.Self, basis: announced, start: start, since: m.now}
	p.noteOwned(epoch)
	p.own, p.before = epoch, p.own
	m.terms[p.number].Add(1)
	m.setLoss(p, lost)
	m.confirmed[p.number].Store(start.Seq)
	m.confirm(p) // the journal is on before the first decision
	m.c.Table.Open(p.number, start.Seq)
	m.plan(p)
	m.announce(p)
}

// keep seals p, which this process has owned, and makes what is in its shard a replica or divergent. A claim may find it.
func (m *Machine) keep(p *partition, as phase) {
	m.c.Table.Seal(p.number)
	mark := m.markOf(p)
	for _, t := range p.hold.targets {
		t.gone = true
	}
	m.c.Table.Record(p.number, 0, 0)
	p.state = state{
		mark: mark, start: p.hold.start, passed: p.phase == handingOver, loss: p.hold.loss,
	}
	p.enter(as)
	p.hold = hold{}
	m.routes++
}

// stepDown gives p up to a higher epoch of generation gen. One that follows from a claim
// may know nothing of the last changes here; one of the same claim as a close under way
// follows from that close.
func (m *Machine) stepDown(p *partition, gen uint64) {
	as := replica
	if p.phase == owning || gen>>message.Handoffs != p.hold.next.Gen>>message.Handoffs {
		as = divergent
	}
	m.stats.SteppedDown++
	m.terms[p.number].Add(1) // whoever waits for a change to be confirmed waits in vain
	m.keep(p, as)
}

// forget empties p's shard.
func (m *Machine) forget(p *partition) {
	p.state.release()
	if m.c.Dropping != nil {
		m.c.Dropping(p.number)
	}
	m.c.Table.DropShard(p.number)
	p.enter(absent)
	p.state = state{}
}

// noteOwned notes that a process has said that it owns p at epoch.
func (p *partition) noteOwned(epoch message.Epoch) {
	if p.owned.Less(epoch) {
		if p.owned.Claims() < epoch.Claims() {
			p.formerly = p.owned
		}
		p.owned = epoch
	}
}

// noteGranted notes that a process which was granted p at epoch may have owned it unheard.
func (p *partition) noteGranted(epoch message.Epoch) {
	p.granted = slices.DeleteFunc(p.granted, func(e message.Epoch) bool { return !p.owned.Less(e) || e.Boot == epoch.Boot && e.Less(epoch) })
	if p.owned.Less(epoch) && !slices.ContainsFunc(p.granted, func(e message.Epoch) bool { return e.Boot == epoch.Boot }) {
		p.granted = append(p.granted, epoch)
	}
}

// learn takes in that owner has p at epoch. It reports whether that is not out of date.
func (m *Machine) learn(p *partition, epoch message.Epoch, owner message.Peer) bool {
	if !epoch.Sane() {
		return false
	}
	if c := p.claim; c != nil && (c.gen < epoch.Gen || c.gen == epoch.Gen && epoch.Boot != m.c.Self.Boot) {
		p.claim = nil // also where a voter has forgotten that it had granted one of the two, and this one is the higher
	}
	switch c := epoch.Compare(p.known.epoch); {
	case c < 0:
		if p.isOwned() && p.contested(epoch) && guard.On(guard.Memory) {
			m.stepDown(p, epoch.Gen)
		}
		return false
	case c == 0:
		return true
	}
	if p.isOwned() && guard.On(guard.EpochCheck) {
		m.stepDown(p, epoch.Gen)
	}
	if epoch.Claims() > p.known.epoch.Claims() && guard.On(guard.Inheritance) {
		m.makePendingGrants(p)
	}
	if p.known.epoch.Boot != epoch.Boot {
		p.noteGranted(p.known.epoch)
	}
	p.known = knowledge{epoch: epoch, owner: owner, since: m.now}
	m.routes++
	return true
}

// contested reports whether epoch, which is lower than that of this owner, is of another claim of the same generation: voters had forgotten
// what they granted to this process, or to the one that handed p over to it, and the other process may decide too.
func (p *partition) contested(epoch message.Epoch) bool {
	other := func(of message.Epoch) bool { return epoch.Gen == of.Gen && epoch.Boot != of.Boot }
	return other(p.hold.epoch) || other(p.hold.start.Epoch) && epoch.Claims() == p.hold.epoch.Claims()
}

// lost reports whether p has no owner that lives, as far as known.
func (m *Machine) lost(p *partition) bool {
	k := &p.known
	if k.basis == granted && m.now-k.since > 2*int64(m.c.Digest)+3*m.c.Quorum.RTT(k.owner) {
		return true // it was granted, and nothing has come of it
	}
	return k.basis == released || k.owner == m.c.Self || !m.lives(k.owner) || m.stranded(k)
}

// stranded reports whether the owner waits for the word of a next owner that is gone, and
// will wait for ever: it never takes back by itself. The next owner may also be new, and not in
// this process's view yet.
func (m *Machine) stranded(k *knowledge) bool {
	return k.basis == announced && k.nextOwner != (message.Peer{}) && !m.lives(k.nextOwner) && m.now-k.inherits > int64(m.c.Digest)
}

// forgetGone forgets what is remembered of runs of a name of which a later run lives: they never come
// back, and over the years there are many of them.
func (m *Machine) forgetGone() {
	latest := make(map[string]string, len(m.view.Members))
	for _, p := range m.view.Members {
		latest[p.Name] = p.Boot
	}
	gone := func(p message.Peer) bool {
		boot, lives := latest[p.Name]
		return lives && boot != p.Boot && !m.c.Quorum.Listens(m.now, p) // gossip may still show the run before this one
	}
	maps.DeleteFunc(m.heard, func(p message.Peer, _ *list) bool { return gone(p) })
	maps.DeleteFunc(m.pendingGrantsSent, func(p message.Peer, _ sentPendingGrants) bool { return gone(p) })
	m.channels = slices.DeleteFunc(m.channels, func(ch *channel) bool { return gone(ch.peer) })
}

// lapse has this process claim anew what it owns when it has quorum again after so long that voters may have forgotten that they
// granted it: they were restarted, and have acknowledged the owner of before since. The same goes for claims under way. It keeps the
// counters, which are the best state there is unless another process has decided meanwhile.
func (m *Machine) lapse() {
	n := m.c.Quorum.Lapses()
	if n == m.lapses || !guard.On(guard.Memory) {
		return
	}
	m.lapses = n
	for i := range m.parts {
		p := &m.parts[i]
		p.claim = nil
		if p.isOwned() {
			m.terms[i].Add(1) // whoever waits for a change to be confirmed waits in vain
			m.keep(p, divergent)
		}
	}
	m.asking = nil
	m.digested, m.patrolled = m.now-int64(m.c.Digest), m.now-patrol // the others are told that it owns nothing, and it claims
}

// dropLeftover forgets a state that nobody keeps up to date and nobody will ask to drop: the replica of a former owner, when the owner
// has as many replicas as it wants; and the state of a snapshot, or of an owner that has stepped down. A claim may still
// want the latter until the partition has had its next owner for so long that others have replicas, of whom there are none in a
// cluster of two.
func (m *Machine) dropLeftover(p *partition) {
	s, k := &p.state, &p.known
	if p.phase != syncing && p.phase != replica || p.claim != nil {
		return
	}
	settled := k.basis == announced && k.nextOwner == (message.Peer{}) && m.lives(k.owner)
	replicated := k.replicated
	if s.from == (message.Peer{}) {
		replicated = len(m.view.Members) >= 3 && m.now-k.since >= int64(m.c.Gather)
	}
	if settled && replicated && s.mark.Epoch.Less(k.epoch) {
		m.forget(p)
	}
}
