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
	portions []bucket.Portion // as received
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

// addFetched keeps a portion until the last one has arrived. Then they replace the shard's state,
// and if it is divergent, it is merged into them: the fetched state is of a later owner.
func (m *Machine) addFetched(p *partition, part *message.Part, b *message.TransferBatch, data []byte) bool {
	a := p.claim.fetched
	a.sum = addChecksum(a.sum, data)
	a.portions = append(a.portions, bucket.Portion{At: m.now - b.Age, Image: &b.Image, Data: data, Counters: part.Counters})
	if !part.End {
		return true
	}
	if guard.On(guard.Checksum) && a.sum != part.Sum {
		m.stats.Damaged++
		return false
	}
	if p.phase != divergent || !guard.On(guard.DivergentMerge) {
		m.dropState(p)
		if !m.replace(p, a.portions) {
			m.dropState(p)
			return false
		}
		p.enter(replica)
		p.state = a.state
		return true
	}
	own := bucket.Portion{At: m.now, Image: &bucket.Image{}}
	m.c.Table.Export(m.now, p.number, m.c.Table.Keys(p.number, nil), own.Image)
	own.Data, own.Counters = own.Image.Data, own.Image.Counters
	if !m.replace(p, a.portions) {
		m.replace(p, []bucket.Portion{own})
		return false
	}
	m.c.Table.Lapse(m.now, p.number) // as the owner that this process is to be does
	if m.c.Table.Merge(m.now, p.number, []bucket.Portion{own}) != nil {
		m.stats.Damaged++ // its own counters are sound
	}
	p.state.release()
	if !p.state.closeAbandoned {
		a.loss = a.loss.merged(p.state.mark.Epoch, p.state.loss)
	}
	p.state = a.state
	return true
}

// replace makes the portions the content of p's shard, and reports whether they could be decoded.
func (m *Machine) replace(p *partition, portions []bucket.Portion) bool {
	m.c.Table.DropShard(p.number)
	for _, x := range portions {
		if m.c.Table.Import(x.At, p.number, x.Image, x.Data, x.Counters, false) != nil {
			m.stats.Damaged++
			return false
		}
	}
	return true
}
