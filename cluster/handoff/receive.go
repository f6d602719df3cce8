package handoff

import (
	"fmt"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// takeTransferBatch processes the batches of a peer in numerical order, each once.
func (m *Machine) takeTransferBatch(from message.Peer, b *message.TransferBatch) {
	ch := m.channel(from)
	switch {
	case b.N == 0 || b.N > ch.taken+1:
		return // an earlier one is missing and will be resent
	case b.N <= ch.taken:
		if r := ch.receipts[b.N%uint64(len(ch.receipts))]; r != nil && r.N == b.N {
			m.send(from, r)
		}
		return
	}
	r := &message.Receipt{N: b.N, NotServing: !m.serves()}
	rest := b.Image.Data
	for i := range b.Parts {
		part := &b.Parts[i]
		if part.Partition < 0 || part.Partition >= len(m.parts) || part.Bytes < 0 || part.Bytes > len(rest) {
			// The following parts cannot be located.
			for j := i; j < len(b.Parts); j++ {
				r.Rejected = append(r.Rejected, message.Rejection{Part: j})
			}
			break
		}
		p := &m.parts[part.Partition]
		data := rest[:part.Bytes]
		rest = rest[part.Bytes:]
		if p.importing {
			m.importAll(b, r)
		}
		if !m.takePart(from, p, part, b, data) {
			r.Rejected = append(r.Rejected, p.rejection(i))
		} else if part.Kind == message.InitialSync {
			p.importing = true
			m.imports = append(m.imports, importing{at: i, data: data, merge: p.phase == divergent})
		}
	}
	m.importAll(b, r)
	ch.taken = b.N
	ch.receipts[b.N%uint64(len(ch.receipts))] = r
	m.send(from, r)
}

func (p *partition) rejection(part int) message.Rejection {
	return message.Rejection{Part: part, Known: p.known.epoch, Owner: p.known.owner}
}

// importing is the data of a part of the transfer batch that is being taken, to be imported.
type importing struct {
	at    int // the part's place in the batch
	data  []byte
	merge bool
	err   error
}

// importAll imports the data of the parts of b that wait for it.
func (m *Machine) importAll(b *message.TransferBatch, r *message.Receipt) {
	counters := 0
	for i := range m.imports {
		counters += b.Parts[m.imports[i].at].Counters
	}
	m.c.Share(counters, len(m.imports), func(i int) {
		x := &m.imports[i]
		part := &b.Parts[x.at]
		x.err = m.c.Table.Import(m.now-b.Age, part.Partition, &b.Image, x.data, part.Counters, x.merge)
	})
	for i := range m.imports {
		x := &m.imports[i]
		part := &b.Parts[x.at]
		p := &m.parts[part.Partition]
		if p.importing = false; !m.imported(p, part, x.data, x.err) {
			r.Rejected = append(r.Rejected, p.rejection(x.at))
		}
	}
	clear(m.imports)
	m.imports = m.imports[:0]
}

// takePart processes one part, and reports whether it was accepted.
func (m *Machine) takePart(from message.Peer, p *partition, part *message.Part, b *message.TransferBatch, portion []byte) bool {
	switch part.Kind {
	case message.InitialSync:
		return m.takeInitialSync(from, p, part) // importAll follows
	case message.Close:
		if m.follows(from, p, part) && m.importPortion(p, part, b, portion) {
			return m.takeClose(from, p, part)
		}
		p.rejected = max(p.rejected, part.Next.Gen)
		return false
	case message.Answer:
		return m.takeAnswer(from, p, part, b, portion)
	case message.Merge:
		return m.takeMerge(from, p, part, b, portion)
	case message.Drop:
		// The replica left by a handoff has no initial sync of its own, so the epoch must match too: the order may be late,
		// and the partition may have been here again since. Older peers send no epoch.
		s := &p.state
		meant := s.from == from && s.initialSync == part.InitialSync && (part.Epoch == (message.Epoch{}) || part.Epoch == s.mark.Epoch)
		if (p.phase == syncing || p.phase == replica) && meant && p.claim == nil {
			m.dropState(p)
		}
	}
	return true
}

// takeInitialSync prepares p's shard for a part of an initial sync.
func (m *Machine) takeInitialSync(from message.Peer, p *partition, part *message.Part) bool {
	if guard.On(guard.EpochCheck) && part.Epoch.Less(p.known.epoch) || !m.learnFrom(from, p, part) {
		return false
	}
	if !part.Begin {
		return m.follows(from, p, part)
	}
	if p.phase == divergent && guard.On(guard.DivergentMerge) && !p.containedIn(part.Start) {
		return false // its state must be merged at the owner first
	}
	m.dropState(p)
	p.enter(syncing)
	p.state = state{
		mark: message.Mark{Epoch: part.Epoch, Seq: part.Seq}, start: part.Start,
		from: from, initialSync: part.InitialSync, sync: part.InitialSync + 1, loss: m.decodeLoss(part.Loss, loss{}),
	}
	return true
}

// learnFrom notes that the sender of part owns p. It reports whether this process can then have a replica.
func (m *Machine) learnFrom(from message.Peer, p *partition, part *message.Part) bool {
	if m.learn(p, part.Epoch, from) {
		m.noteAnnounced(p, from, message.OwnedPartition{Partition: p.number, Gen: part.Epoch.Gen, Start: part.Start, Loss: part.Loss})
	}
	return !p.isOwned()
}

// follows reports whether part continues the state in p's shard.
func (m *Machine) follows(from message.Peer, p *partition, part *message.Part) bool {
	return !p.isOwned() && p.state.continues(from, part)
}

// continues reports whether part belongs to the initial sync of s.
func (s *state) continues(from message.Peer, part *message.Part) bool {
	return s.from == from && s.initialSync == part.InitialSync && s.mark.Epoch == part.Epoch
}

func (m *Machine) importPortion(p *partition, part *message.Part, b *message.TransferBatch, portion []byte) bool {
	err := m.c.Table.Import(m.now-b.Age, p.number, &b.Image, portion, part.Counters, p.phase == divergent)
	return m.imported(p, part, portion, err)
}

// imported processes the import of a portion of an initial sync, which has returned err. It drops a copy that cannot be decoded
// or has a wrong checksum.
func (m *Machine) imported(p *partition, part *message.Part, portion []byte, err error) bool {
	s := &p.state
	s.sum = addChecksum(s.sum, portion)
	if err == nil && part.End && guard.On(guard.Checksum) && s.sum != part.Sum {
		err = fmt.Errorf("partition %d: the checksum of its initial sync is %x, want %x", p.number, s.sum, part.Sum)
	}
	if err != nil {
		m.stats.Damaged++
		m.dropState(p)
		return false
	}
	s.mark.Seq = part.Seq
	if part.End && p.phase == syncing {
		p.enter(replica)
	}
	return true
}

// mergeDivergent starts sending p's divergent state to the owner.
func (m *Machine) mergeDivergent(p *partition) {
	s, k := &p.state, &p.known
	if p.phase != divergent || s.merging != nil || p.claim != nil ||
		k.status != ownerAnnounced || k.nextOwner != (message.Peer{}) || !m.canReceive(p, k.owner) {
		return
	}
	if p.containedIn(k.start) || !guard.On(guard.DivergentMerge) {
		p.enter(replica)
		return
	}
	s.merging = m.addTarget(p, k.owner, message.Merge)
}

// markForeign makes the state of p divergent after its cluster ID was dissolved, with a zero mark, because epochs of two cluster
// IDs cannot be compared. An incomplete state is dropped.
func (m *Machine) markForeign(p *partition) {
	s := &p.state
	s.loss = loss{}
	switch {
	case p.phase == absent || !guard.On(guard.OneSet):
		return
	case p.phase == syncing:
		m.dropState(p)
		return
	}
	s.release()
	p.enter(divergent)
	*s = state{}
}

// foreign reports whether the state of p is from another cluster ID; see markForeign.
func (p *partition) foreign() bool {
	return p.phase != absent && !p.isOwned() && p.state.mark.Epoch == (message.Epoch{})
}
