package handoff

import (
	"maps"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// partition is the state of one partition at this process.
type partition struct {
	number int
	phase  phase // changed only by enter

	known knowledge
	state state
	// rejected is the highest generation of a rejected close.
	rejected uint64
	// promised is the last granted epoch, grantsSeq the number of the pending grants that include it.
	promised  message.Epoch
	grantsSeq uint64
	// lastOwned is the highest epoch at which a process has announced ownership, ownedBefore the highest before the claim
	// that lastOwned derives from.
	lastOwned, ownedBefore message.Epoch
	// inSync are the in-sync replicas of epoch lastOwned, as far as known here.
	inSync message.InSync
	// ownEpochs are the last epochs at which this process was owner, oldest first.
	ownEpochs []message.Epoch
	// maybeOwned are epochs after lastOwned that were granted to other processes, one per process: they may have owned the
	// partition without this process having noticed.
	maybeOwned []message.Epoch

	ownership ownership
	handedOff handedOff
	claim     *claim
	importing bool // it is in Machine.imports
}

// maxOwnEpochs is how many epochs a process remembers at which it was owner of a partition. Of
// earlier ones it does not report that it was not.
const maxOwnEpochs = 16

// knowledge is the highest known epoch and its owner.
type knowledge struct {
	epoch  message.Epoch
	owner  message.Peer
	status ownerStatus
	since  int64 // when this epoch was learned
	// Only if ownerAnnounced: nextOwner is the target of the owner's handoff, known since nextOwnerSince; start is where the owner's
	// history begins.
	nextOwner      message.Peer
	nextOwnerSince int64
	start          message.Mark
	// replicated: the owner has as many complete replicas as it wants.
	replicated bool
}

// ownerStatus is what the process that owns the highest known epoch has said about it.
type ownerStatus uint8

const (
	ownerGranted   ownerStatus = iota // the epoch was granted to it
	ownerAnnounced                    // the owner itself announces the partition
	ownerReleased                     // the owner no longer announces it
)

// state describes the partition's shard while this process is not the owner.
type state struct {
	mark, start message.Mark
	// closeAbandoned: a close was in flight when it was given up, so another process may continue from it.
	closeAbandoned bool
	// loss is what the state lacks. endsLoss: the owner lacks what this state may have.
	loss     loss
	endsLoss bool
	// from and initialSync identify the sync that the copy comes from, sum its checksum so far.
	from        message.Peer
	initialSync uint64
	sum         uint64
	// sync is 1 more than the number of the initial sync by which the owner at mark.Epoch made this
	// replica: 1 for the one that a handoff has left. 0: it is no replica.
	sync uint64
	// merging sends a divergent copy to the owner; answers send the state to claimers.
	merging *target
	answers []*target
}

// ownership is the owner's state of its partition.
type ownership struct {
	epoch   message.Epoch
	start   message.Mark
	targets []*target
	// spans are drained changes that are not confirmed yet, oldest first.
	spans []changes
	// journal and gate are the current settings of the table.
	journal bucket.Recording
	gate    time.Duration
	// replicated: it has had a complete replica or was taken over; see awaitsReplica.
	replicated bool
	// former are nodes with a complete state from before this term's takeover. surplus: there are targets that are no
	// longer wanted; see plan.
	former  []message.Peer
	surplus bool
	// left are copies that abandoned targets have, which are to be dropped.
	left []leftCopy
	// inSyncNumber is the number of the last change of the in-sync replicas, untold that of the
	// last one for which p waits until a majority knows it, 0 if there is none; see insync.go.
	inSyncNumber, untold uint64
	// confirmed is the last change that in-sync replicas have confirmed.
	confirmed uint64
	// previousOwner gave the partition to this process by a handoff, at since. It does not get it back at once, in case the
	// two have different views.
	previousOwner message.Peer
	since         int64
	closeLater    bool
	// skipped has rejected a part and is skipped until skippedUntil.
	skipped      message.Peer
	skippedUntil int64

	// loss is what the shard lacks; merging are divergent copies being received, one per process.
	loss    loss
	merging []merging

	// In a handoff.
	next      message.Epoch
	nextOwner *target
	seq       uint64
	frozen    int64 // since when
}

// leftCopy is what the initial sync to peer has left there.
type leftCopy struct {
	peer        message.Peer
	initialSync uint64
	complete    bool
}

// changes are the changes up to number seq; the oldest was made at since.
type changes struct {
	seq   uint64
	since int64
}

// release cancels sending s to other processes, because s ends or changes.
func (s *state) release() {
	if s.merging != nil {
		s.merging.gone = true
	}
	for _, t := range s.answers {
		t.gone = true
	}
	s.merging, s.answers = nil, nil
}

// containedIn reports whether the history of an owner whose epoch began with start contains p's
// state, so that forgetting p loses nothing. A state that ends a loss is not: the owner does not
// know yet that it has all of it.
func (p *partition) containedIn(start message.Mark) bool {
	s := &p.state
	if p.foreign() || s.endsLoss && guard.On(guard.LossEnds) {
		return false
	}
	if s.mark.Epoch == start.Epoch {
		return s.mark.Seq <= start.Seq
	}
	// A replica of an older epoch was part of its owner's state.
	return p.phase != divergent && s.mark.Epoch.Less(start.Epoch)
}

// markOf returns the current mark of an owned shard.
func (m *Machine) markOf(p *partition) message.Mark {
	if p.phase == inHandoff {
		return message.Mark{Epoch: p.ownership.epoch, Seq: p.ownership.seq}
	}
	return message.Mark{Epoch: p.ownership.epoch, Seq: m.drain(p)}
}

// becomeOwner makes this process owner of p at epoch, continuing from start.
func (m *Machine) becomeOwner(p *partition, epoch message.Epoch, start message.Mark, targets ...*target) {
	p.state.release()
	replicated := p.ownership.replicated || p.claim != nil && m.otherVoters
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
	p.ownership = ownership{epoch: epoch, start: start, targets: targets, replicated: replicated, former: former}
	if epoch.Gen&(1<<message.Handoffs-1) != 0 {
		m.leaveOut(p) // only a claim tells a majority of its epoch
	}
	p.known = knowledge{epoch: epoch, owner: m.c.Self, status: ownerAnnounced, start: start, since: m.now}
	p.noteOwned(epoch)
	if len(p.ownEpochs) == maxOwnEpochs {
		p.ownEpochs = slices.Delete(p.ownEpochs, 0, 1)
	}
	p.ownEpochs = append(p.ownEpochs, epoch)
	p.handedOff = handedOff{}
	m.localTerms[p.number].Add(1)
	m.setLoss(p, lost)
	m.confirmed[p.number].Store(start.Seq)
	m.confirm(p) // the journal must be on before the first decision
	m.c.Table.Open(p.number, start.Seq)
	m.plan(p)
	m.announce(p)
}

// sealAs ends the ownership of p: it seals the shard and keeps its state as a replica or divergent copy, which a claim may find.
func (m *Machine) sealAs(p *partition, as phase) {
	m.c.Table.Seal(p.number)
	mark := m.markOf(p)
	for _, t := range p.ownership.targets {
		t.gone = true
	}
	m.c.Table.Record(p.number, 0, 0)
	p.state = state{
		mark: mark, start: p.ownership.start, closeAbandoned: p.phase == inHandoff, loss: p.ownership.loss,
	}
	p.enter(as)
	p.ownership = ownership{}
	m.routes++
}

// stepDown gives p up for a higher epoch of generation gen. An epoch of another claim may lack the last changes here, so
// the state becomes divergent; one of the same claim as a close in flight continues from that close.
func (m *Machine) stepDown(p *partition, gen uint64) {
	as := replica
	if p.phase == owning || gen>>message.Handoffs != p.ownership.next.Gen>>message.Handoffs {
		as = divergent
	}
	m.stats.SteppedDown++
	m.localTerms[p.number].Add(1) // wakes waiters for changes that cannot be confirmed any more
	m.sealAs(p, as)
}

func (m *Machine) dropState(p *partition) {
	p.state.release()
	if m.c.Dropping != nil {
		m.c.Dropping(p.number)
	}
	m.c.Table.DropShard(p.number)
	p.enter(absent)
	p.state = state{}
}

// noteOwned notes that a process has announced ownership of p at epoch.
func (p *partition) noteOwned(epoch message.Epoch) {
	if p.lastOwned.Less(epoch) {
		if p.lastOwned.Claims() < epoch.Claims() {
			p.ownedBefore = p.lastOwned
		}
		p.lastOwned, p.inSync = epoch, message.InSync{}
	}
}

// noteMaybeOwned notes that a process may have owned p unnoticed at a granted epoch.
func (p *partition) noteMaybeOwned(epoch message.Epoch) {
	p.maybeOwned = slices.DeleteFunc(p.maybeOwned, func(e message.Epoch) bool { return !p.lastOwned.Less(e) || e.Boot == epoch.Boot && e.Less(epoch) })
	if p.lastOwned.Less(epoch) && !slices.ContainsFunc(p.maybeOwned, func(e message.Epoch) bool { return e.Boot == epoch.Boot }) {
		p.maybeOwned = append(p.maybeOwned, epoch)
	}
}

// learn processes the information that owner has p at epoch. It reports whether that is up to date.
func (m *Machine) learn(p *partition, epoch message.Epoch, owner message.Peer) bool {
	if !epoch.Sane() {
		return false
	}
	if c := p.claim; c != nil && (c.gen < epoch.Gen || c.gen == epoch.Gen && epoch.Boot != m.c.Self.Boot) {
		p.claim = nil // also if a voter has forgotten one of two grants and this is the higher one
	}
	switch c := epoch.Compare(p.known.epoch); {
	case c < 0:
		if p.isOwned() && p.contested(epoch) && guard.On(guard.Memory) {
			m.stepDown(p, epoch.Gen)
		}
		return false
	case c == 0:
		if p.known.owner == (message.Peer{}) {
			p.known.owner = owner // the epoch is from a snapshot
		}
		return true
	}
	if p.isOwned() && guard.On(guard.EpochCheck) {
		m.stepDown(p, epoch.Gen)
	}
	if epoch.Claims() > p.known.epoch.Claims() && guard.On(guard.Inheritance) {
		m.makePendingGrants(p)
	}
	if p.known.epoch.Boot != epoch.Boot {
		p.noteMaybeOwned(p.known.epoch)
	}
	p.known = knowledge{epoch: epoch, owner: owner, since: m.now}
	m.routes++
	return true
}

// contested reports whether the lower epoch is of another claim with the same generation: voters have forgotten a grant to
// this process or to the one whose handoff gave it p, so the other process may decide too.
func (p *partition) contested(epoch message.Epoch) bool {
	other := func(of message.Epoch) bool { return epoch.Gen == of.Gen && epoch.Boot != of.Boot }
	return other(p.ownership.epoch) || other(p.ownership.start.Epoch) && epoch.Claims() == p.ownership.epoch.Claims()
}

// ownerless reports whether p has no live owner, as far as known.
func (m *Machine) ownerless(p *partition) bool {
	k := &p.known
	if k.status == ownerGranted && m.now-k.since > 2*fullListInterval+3*m.c.Quorum.RTT(k.owner) {
		return true // granted without result
	}
	return k.status == ownerReleased || k.owner == m.c.Self || !m.lives(k.owner) || m.stranded(k)
}

// stranded reports whether the owner waits forever for a next owner that is lost, because it never takes a partition back
// by itself. A next owner may also be new and not in this view yet, hence the delay.
func (m *Machine) stranded(k *knowledge) bool {
	return k.status == ownerAnnounced && k.nextOwner != (message.Peer{}) && !m.lives(k.nextOwner) && m.now-k.nextOwnerSince > fullListInterval
}

// forgetGone removes state about boots whose name has a newer live boot. They never come back, and over the years there are
// many.
func (m *Machine) forgetGone() {
	latest := make(map[string]string, len(m.view.Members))
	for _, p := range m.view.Members {
		latest[p.Name] = p.Boot
	}
	gone := func(p message.Peer) bool {
		boot, lives := latest[p.Name]
		return lives && boot != p.Boot && !m.c.Quorum.Listens(m.now, p) // gossip may still show the previous boot
	}
	maps.DeleteFunc(m.announced, func(p message.Peer, _ *announcements) bool { return gone(p) })
	maps.DeleteFunc(m.pendingGrantsSent, func(p message.Peer, _ sentPendingGrants) bool { return gone(p) })
	m.channels = slices.DeleteFunc(m.channels, func(ch *channel) bool { return gone(ch.peer) })
}

// lapse makes this process claim its partitions again after it has been without quorum for so long that voters may have
// forgotten their grants: they were restarted and may have acknowledged another owner. Claims in progress restart too. It
// keeps the counters, the best state unless another process has decided meanwhile.
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
			m.localTerms[i].Add(1) // wakes waiters for changes that cannot be confirmed any more
			m.sealAs(p, divergent)
		}
	}
	m.claimRequests = nil
	m.digested, m.slowChecked = m.now-fullListInterval, m.now-slowInterval // announce that it owns nothing, then claim
}

// dropLeftover forgets a state that is neither updated nor ever ordered to be dropped: a replica of a former owner, once
// the owner has enough replicas; and a restored state or one of an owner that stepped down. A claim may need the latter
// until the next owner has been established long enough to have replicas, which a cluster of two does not have.
func (m *Machine) dropLeftover(p *partition) {
	s, k := &p.state, &p.known
	if p.phase != syncing && p.phase != replica || p.claim != nil {
		return
	}
	settled := k.status == ownerAnnounced && k.nextOwner == (message.Peer{}) && m.lives(k.owner)
	replicated := k.replicated
	if s.from == (message.Peer{}) {
		replicated = len(m.view.Members) >= 3 && m.now-k.since >= gatherTimeout
	}
	if settled && replicated && s.mark.Epoch.Less(k.epoch) {
		m.dropState(p)
	}
}
