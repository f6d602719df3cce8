package handoff

import (
	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// fetchedState is a state that a claim fetches, kept beside the shard until complete, because the shard's own state is valuable:
// it may be divergent and unique, or complete and the best there is if the fetch fails.
type fetchedState struct {
	state
	portions []portion
}

// portion is one part of it, as received.
type portion struct {
	at       int64
	image    *bucket.Image
	data     []byte
	counters int
}

// takeFetch starts sending the state that was offered to a claimer.
func (m *Machine) takeFetch(from message.Peer, b *message.Fetch) {
	if b.Partition < 0 || b.Partition >= len(m.parts) {
		return
	}
	p := &m.parts[b.Partition]
	if p.isOwned() || p.phase == absent || p.state.mark != b.State ||
		p.known.epoch != (message.Epoch{Gen: b.Gen, Boot: from.Boot}) {
		return
	}
	for _, t := range p.state.answers {
		if t.gen == b.Gen && t.ch.peer == from && t.stage < ending && !t.gone {
			return // already being sent
		}
	}
	t := m.addTarget(p, from, message.Answer)
	t.moveToFront() // checks wait for it
	t.gen = b.Gen
	p.state.answers = append(p.state.answers, t)
}

// takeAnswer processes a part of a fetched state, and reports whether it could. The last part ends the claim; an invalid
// part makes the claim continue with the next best state.
func (m *Machine) takeAnswer(from message.Peer, p *partition, part *message.Part, b *message.TransferBatch, data []byte) bool {
	c := p.claim
	if c == nil || c.stage != fetching || c.gen != part.Next.Gen || len(c.states) == 0 || c.states[0].peer != from {
		return false
	}
	if part.Begin {
		m.beginFetch(from, p, part)
	}
	s := &p.state
	if c.fetched != nil {
		s = &c.fetched.state
	}
	if p.isOwned() || !s.continues(from, part) {
		return false
	}
	c.fetchedAt, c.tries = m.now, 0
	taken := false
	if c.fetched == nil {
		taken = m.importPortion(p, part, b, data)
	} else {
		taken = m.addFetched(p, part, b, data)
	}
	switch {
	case !taken:
		c.states, c.fetched = c.states[1:], nil // the offered state is unusable
	case part.End:
		m.completeClaim(p, c.states[0])
	}
	return taken
}

// beginFetch prepares p for the parts of a fetched state.
func (m *Machine) beginFetch(from message.Peer, p *partition, part *message.Part) {
	s := state{
		mark: message.Mark{Epoch: part.Epoch, Seq: part.Seq}, start: part.Start,
		from: from, initialSync: part.InitialSync, loss: m.decodeLoss(part.Loss, loss{}),
	}
	if best := p.claim.states[0]; best.mark.Epoch == part.Epoch {
		s.sync = best.sync
	}
	p.claim.fetched = nil
	if p.completeness() == message.Complete {
		p.claim.fetched = &fetchedState{state: s}
		return
	}
	m.dropState(p)
	p.enter(syncing)
	p.state = s
}

// addFetched keeps a portion until the last one has arrived. Then they replace the shard's state, or are merged into it if it
// is divergent.
func (m *Machine) addFetched(p *partition, part *message.Part, b *message.TransferBatch, data []byte) bool {
	a := p.claim.fetched
	a.sum = addChecksum(a.sum, data)
	a.portions = append(a.portions, portion{m.now - b.Age, &b.Image, data, part.Counters})
	if !part.End {
		return true
	}
	if guard.On(guard.Checksum) && a.sum != part.Sum {
		m.stats.Damaged++
		return false
	}
	join := p.phase == divergent && guard.On(guard.DivergentMerge)
	if join {
		m.c.Table.Lapse(m.now, p.number)
	} else {
		m.dropState(p)
	}
	for _, x := range a.portions {
		if m.c.Table.Import(x.at, p.number, x.image, x.data, x.counters, join) != nil {
			m.stats.Damaged++
			if !join {
				m.dropState(p)
			}
			return false
		}
	}
	p.state.release()
	if own := &p.state; join && !own.closeAbandoned {
		a.loss = a.loss.merged(own.mark.Epoch, own.loss)
	}
	if !join {
		p.enter(replica)
	}
	p.state = a.state
	return true
}
