package handoff

import (
	"cmp"
	"math"
	"slices"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// loss describes the counters that a shard lacks after a takeover without state. Zero means none.
//
// Invariant: complete < last and lastCertain <= last; decisions made at the epochs in (complete, last] may be missing here,
// and no others. A process announced ownership at lastCertain, while last may only have been granted to one (see
// partition.maybeOwned). If that one reports that it never owned the partition, the loss shrinks to (complete, lastCertain],
// which may be empty.
//
// Example: b wins a claim with a complete replica of epoch 4. Epoch 5 was announced by a process that is gone, and epoch 6
// granted to another one that is gone: complete is 4, lastCertain 5, last 6. If the claimer of 6 returns without having owned
// the partition, last becomes 5; if the owner of 5 then returns with its state, that is merged and the loss ends.
type loss struct {
	// last is the last epoch whose state may be lost. A returning state of this or a later epoch ends the loss.
	last message.Epoch
	// lastCertain is the last lost epoch if it turns out that no process owned the partition at last; equal to last where
	// ownership is certain.
	lastCertain message.Epoch
	// before are earlier epochs, after lastCertain and latest first, that may only have been
	// granted too.
	before [4]message.Epoch
	// complete is the highest epoch whose state is complete here, from a state without loss or a merged divergent copy.
	complete message.Epoch
	// since is the time of the takeover.
	since int64
	// inSync are the in-sync replicas of epoch lastCertain: the other ones do not end the loss.
	inSync message.InSync
	// owned is the highest epoch with announced ownership that the claim knew.
	owned message.Epoch
}

// lossOf returns what p's shard lacks.
func (m *Machine) lossOf(p *partition) *loss {
	if !p.isOwned() {
		return &p.state.loss
	}
	return &p.ownership.loss
}

// withoutLast returns the loss if no process owned the partition at l.last.
func (l loss) withoutLast() loss {
	return l.reducedTo(loss{last: cmp.Or(l.before[0], l.lastCertain), before: earlier(l.before), lastCertain: l.lastCertain, complete: l.complete, since: l.since, inSync: l.inSync, owned: l.owned})
}

// uncertain and certain return before and lastCertain of a later loss that includes l. The earliest
// epoch that finds no place counts as certain.
func (l loss) uncertain() (before [4]message.Epoch) {
	if l.last != l.lastCertain {
		before[0] = l.last
		copy(before[1:], l.before[:])
	}
	return before
}

func (l loss) certain() message.Epoch {
	if l.last != l.lastCertain {
		return cmp.Or(l.before[len(l.before)-1], l.lastCertain)
	}
	return l.lastCertain
}

// earlier returns all but the latest of these epochs.
func earlier(before [4]message.Epoch) (rest [4]message.Epoch) {
	copy(rest[:], before[1:])
	return rest
}

// reducedTo returns rest, which a merged copy of the state leaves of l, or no loss if l.complete covers rest.
func (l loss) reducedTo(rest loss) loss {
	if rest.complete.Less(l.complete) {
		rest.complete = l.complete
	}
	if rest.owned.Less(l.owned) {
		rest.owned = l.owned
	}
	if rest.inSync.Number == 0 && rest.lastCertain == l.lastCertain {
		rest.inSync = l.inSync
	}
	if !rest.complete.Less(rest.last) {
		return loss{}
	}
	return rest
}

// neverOwned reports whether epoch was granted to this process without it becoming owner.
func (m *Machine) neverOwned(p *partition, epoch message.Epoch) bool {
	remembered := len(p.ownEpochs) < maxOwnEpochs || p.ownEpochs[0].Less(epoch)
	return epoch.Boot == m.c.Self.Boot && remembered && !slices.Contains(p.ownEpochs, epoch)
}

// merged returns what is left of l once a divergent copy of this epoch, which lacks rest, is
// merged.
func (l loss) merged(epoch message.Epoch, rest loss) loss {
	switch {
	case l == (loss{}):
	case !epoch.Less(l.last):
		if others := l.withoutLast(); rest.last.Less(l.last) && others.last.Less(rest.last) {
			return others.reducedTo(loss{
				last: others.last, lastCertain: others.lastCertain, before: others.before, complete: rest.complete, since: l.since,
			})
		}
		return l.reducedTo(rest)
	case !l.complete.Less(rest.last): // what the copy lacks is here
		if l.complete.Less(epoch) {
			l.complete = epoch
		}
	case !epoch.Less(cmp.Or(l.before[0], l.lastCertain)): // but for last, only what the copy lacks is left
		l.lastCertain, l.before, l.inSync = rest.certain(), rest.uncertain(), rest.inSync
	}
	return l
}

func (m *Machine) encodeLoss(l *loss) message.Loss {
	if *l == (loss{}) {
		return message.Loss{}
	}
	return message.Loss{Last: l.last, LastCertain: l.lastCertain, Complete: l.complete, Age: m.now - l.since, InSync: l.inSync, Owned: l.owned, Before: l.before}
}

// decodeLoss converts x from its message form; before is the loss known so far. The delay of the message makes since seem
// later.
func (m *Machine) decodeLoss(x message.Loss, before loss) loss {
	if x.Last == (message.Epoch{}) {
		return loss{}
	}
	l := loss{last: x.Last, lastCertain: x.LastCertain, complete: x.Complete, since: m.now - max(x.Age, 0), inSync: x.InSync, owned: x.Owned, before: x.Before}
	if before.last == l.last {
		l.since = min(l.since, before.since)
	}
	return l
}

// lossAfter returns what p's shard lacks once c is won. The state must be complete and of the highest epoch at which a
// process announced ownership or may have owned the partition unnoticed; unknown consumption must not count as zero. A
// partition that was never owned lacks nothing.
func (m *Machine) lossAfter(p *partition, c *claim, best *offer) loss {
	lastOwned, s := p.lastOwned, &p.state
	has, outdated := best.has, p.lacksConfirmed(best, c.states)
	complete := func() bool {
		return lastOwned == (message.Epoch{}) || has == message.Complete && !outdated && !s.mark.Epoch.Less(lastOwned)
	}
	lastCertain := s.loss.last
	if !complete() {
		lastCertain = lastOwned
	}
	for _, e := range c.maybeOwned {
		// A granter of this claim would have reported its ownership.
		if lastOwned.Less(e) && !c.grantedBy(e.Boot) {
			lastOwned = e
		}
	}
	if complete() || !guard.On(guard.LostState) {
		return s.loss
	}
	var before [4]message.Epoch
	if lastCertain == s.loss.last && lastCertain != s.loss.lastCertain {
		before, lastCertain = s.loss.before, s.loss.lastCertain
		if s.loss.last.Boot != lastOwned.Boot { // a process that owned it at neither epoch reports both
			before, lastCertain = s.loss.uncertain(), s.loss.certain()
		}
	}
	m.stats.Losses++
	lastComplete := s.loss.complete
	if has == message.Complete && s.loss == (loss{}) {
		if lastComplete = s.mark.Epoch; outdated {
			lastComplete = s.start.Epoch
		}
	}
	l := loss{last: lastOwned, lastCertain: lastCertain, complete: lastComplete, since: m.now, owned: p.lastOwned, before: before}
	switch lastCertain {
	case p.lastOwned:
		l.inSync = p.inSync
	case s.loss.lastCertain:
		l.inSync = s.loss.inSync
	}
	return l
}

// setLoss sets the loss of p, owned here, in the table. Nothing is lost of an epoch at which this process did not own it.
func (m *Machine) setLoss(p *partition, l loss) {
	if m.neverOwned(p, l.last) {
		l = l.withoutLast()
	}
	p.ownership.loss = l
	m.c.Table.SetLost(p.number, l.since, m.lossEnds(p))
}

// lossEnds returns when p's loss stops counting.
func (m *Machine) lossEnds(p *partition) int64 {
	l, end := &p.ownership.loss, int64(math.MaxInt64)
	if *l == (loss{}) {
		return end
	}
	if m.c.LostHold > 0 {
		end = l.since + int64(m.c.LostHold)
	}
	if m.c.LostUntil != nil {
		end = min(end, m.c.LostUntil(l.since))
	}
	return end
}

// reduceLoss reduces p's loss to rest, or ends it if rest is zero.
func (m *Machine) reduceLoss(p *partition, rest loss) {
	m.setLoss(p, rest)
	m.announce(p)
}

// updateLosses ends expired losses and applies rule changes.
func (m *Machine) updateLosses() {
	for i := range m.parts {
		p := &m.parts[i]
		if p.phase != owning || p.ownership.loss == (loss{}) {
			continue
		}
		if m.now >= m.lossEnds(p) {
			m.reduceLoss(p, loss{})
			continue
		}
		m.setLoss(p, p.ownership.loss)
	}
}

// AcceptLoss treats the lost counters of partitions owned here as unspent, and returns the number of those partitions. All
// other members of the view are requested to do the same.
func (m *Machine) AcceptLoss(now int64) (n int) {
	m.now = now
	m.forOthers(func(to message.Peer) { m.send(to, &message.AcceptLoss{}) })
	return m.acceptLoss()
}

// acceptLoss is AcceptLoss for this process. Replicas learn of it with the next owned partitions.
func (m *Machine) acceptLoss() (n int) {
	for i := range m.parts {
		if p := &m.parts[i]; p.phase == owning && p.ownership.loss != (loss{}) {
			m.reduceLoss(p, loss{})
			n++
		}
	}
	return n
}

// offerLostState offers the state of p here, which from lacks, for merging: it becomes divergent. If the loss assumed that this
// process owned p at an epoch that it never owned, it reports that (it never will, since it knows a later epoch), together
// with the owner before, which from may not know.
func (m *Machine) offerLostState(p *partition, from message.Peer, l message.Loss) {
	s := &p.state
	if !p.isOwned() && m.neverOwned(p, l.Last) {
		ch, lastCertain := m.channel(from), l.LastCertain
		if lastCertain.Less(p.ownedBefore) && l.Owned.Less(p.ownedBefore) && l.Complete.Less(p.ownedBefore) && p.ownedBefore.Less(l.Last) {
			lastCertain = p.ownedBefore
		}
		last, before := lastCertain, [4]message.Epoch{}
		if last.Less(l.Before[0]) {
			last, before = l.Before[0], earlier(l.Before)
		}
		ch.drops = append(ch.drops, message.Part{
			Partition: p.number, Kind: message.Merge, Epoch: l.Last, Begin: true, End: true, Sum: addChecksum(0, nil),
			Loss: message.Loss{Last: last, LastCertain: lastCertain, Age: l.Age, Before: before},
		})
		return
	}
	s.endsLoss = false
	if l.Last == (message.Epoch{}) || p.phase != replica && p.phase != divergent || s.mark.Epoch.Less(cmp.Or(l.LastCertain, l.Last)) || !l.Complete.Less(s.mark.Epoch) || s.loss.last == l.Last {
		return
	}
	if s.sync != 0 && s.mark.Epoch == l.LastCertain && l.InSync.Excludes(s.sync-1) {
		return // it lacks some of what is lost
	}
	if p.known.owner == from && s.mark.Epoch != p.known.epoch {
		p.enter(divergent)
		s.endsLoss = true
	}
}

// merging is a divergent copy that is being received, to be merged into an owned partition.
type merging struct {
	from        message.Peer
	initialSync uint64
	sum         uint64
	portions    []bucket.Portion
}

// mergeRests merges what p, owned here in quorum, has of the divergent copies of processes that are
// gone. If one comes back, its next part is rejected, and it begins again.
func (m *Machine) mergeRests(p *partition, gone func(message.Peer) bool) {
	p.ownership.merging = slices.DeleteFunc(p.ownership.merging, func(x merging) bool {
		if !gone(x.from) {
			return false
		}
		if m.c.Table.Merge(m.now, p.number, x.portions) != nil {
			m.stats.Damaged++
		}
		return true
	})
}

// unheard reports whether nothing comes from a process any more: gossip does not show it, and it
// sends no heartbeats.
func (m *Machine) unheard(p message.Peer) bool {
	return !m.reachable(p) && !m.c.Quorum.Listens(m.now, p)
}

// takeMerge takes a portion of a divergent copy, and merges the copy when it has all: the grants of
// a counter may be in several portions. Once a complete copy has covered p's loss, the loss ends,
// except for what that copy lacks itself. An owner without quorum takes none, since a merge ends
// grants whose deadline has passed: the sender keeps its copy, and begins again.
func (m *Machine) takeMerge(from message.Peer, p *partition, part *message.Part, b *message.TransferBatch, portion []byte) bool {
	if p.phase != owning || !m.hasQuorum() {
		return false
	}
	h := &p.ownership
	if part.Begin {
		h.merging = append(slices.DeleteFunc(h.merging, func(x merging) bool { return x.from == from }), merging{from: from, initialSync: part.InitialSync})
	}
	at := slices.IndexFunc(h.merging, func(x merging) bool { return x.from == from && x.initialSync == part.InitialSync })
	if at < 0 { // its first part went to an earlier term, and must come again
		return false
	}
	x := &h.merging[at]
	x.sum = addChecksum(x.sum, portion)
	x.portions = append(x.portions, bucket.Portion{At: m.now - b.Age, Image: &b.Image, Data: portion, Counters: part.Counters})
	if !part.End {
		return true
	}
	whole, portions := x.sum == part.Sum, x.portions
	h.merging = slices.Delete(h.merging, at, at+1)
	if m.c.Table.Merge(m.now, p.number, portions) != nil {
		return false
	}
	if !whole || part.Epoch == (message.Epoch{}) {
		return true
	}
	rest, lacks := h.loss, m.decodeLoss(part.Loss, h.loss)
	switch {
	case part.InitialSync != 0:
		rest = rest.merged(part.Epoch, lacks)
	case rest != (loss{}) && !part.Epoch.Less(rest.last):
		rest = rest.reducedTo(lacks) // the report of a process that never owned it; see offerLostState
	}
	if rest != h.loss {
		if !part.Epoch.Less(h.loss.last) {
			m.stats.LossesBack++
		}
		m.reduceLoss(p, rest)
	}
	return true
}
