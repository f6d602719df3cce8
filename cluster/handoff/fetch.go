package handoff

import (
	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/guard"
	"github.com/sluice-project/sluice/internal/message"
)

// arrival is a state that a claim fetches, as long as it is not whole, beside a shard whose own
// state is worth something by itself: it may be a divergent copy, which nobody else has, or a complete copy, which
// is the best there is should the rest never come.
type arrival struct {
	state
	portions []portion
}

// portion is one part of it, as it came.
type portion struct {
	at       int64
	image    *bucket.Image
	data     []byte
	counters int
}

// takeFetch begins to send what was offered to a claimer.
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
			return // on its way
		}
	}
	t := m.addTarget(p, from, message.Answer)
	t.first() // checks wait for it
	t.gen = b.Gen
	p.state.answers = append(p.state.answers, t)
}

// takeAnswer takes a part of what was fetched, and reports whether it did. The last one ends
// the claim; one that cannot be taken makes it go on with the next best state.
func (m *Machine) takeAnswer(from message.Peer, p *partition, part *message.Part, b *message.TransferBatch, data []byte) bool {
	c := p.claim
	if c == nil || c.stage != fetching || c.gen != part.Next.Gen || len(c.states) == 0 || c.states[0].peer != from {
		return false
	}
	if part.Begin {
		m.expect(from, p, part)
	}
	s := &p.state
	if c.coming != nil {
		s = &c.coming.state
	}
	if p.isOwned() || !s.continues(from, part) {
		return false
	}
	c.asked, c.tries = m.now, 0
	taken := false
	if c.coming == nil {
		taken = m.put(p, part, b, data)
	} else {
		taken = m.putAside(p, part, b, data)
	}
	switch {
	case !taken:
		c.states, c.coming = c.states[1:], nil // what was offered cannot be had
	case part.End:
		m.win(p, c.states[0].has)
	}
	return taken
}

// expect readies p for the parts of what was fetched.
func (m *Machine) expect(from message.Peer, p *partition, part *message.Part) {
	s := state{
		mark: message.Mark{Epoch: part.Epoch, Seq: part.Seq}, start: part.Start,
		from: from, initialSync: part.InitialSync, loss: m.heardLoss(part.Loss, loss{}),
	}
	p.claim.coming = nil
	if p.completeness() == message.Complete {
		p.claim.coming = &arrival{state: s}
		return
	}
	m.forget(p)
	p.enter(syncing)
	p.state = s
}

// putAside keeps a portion for when the last one has come. Then all of it takes the place of what is in the
// shard, or is joined with it where that may be a divergent copy.
func (m *Machine) putAside(p *partition, part *message.Part, b *message.TransferBatch, data []byte) bool {
	a := p.claim.coming
	a.sum = add(a.sum, data)
	a.portions = append(a.portions, portion{m.now - b.Age, &b.Image, data, part.Counters})
	if !part.End {
		return true
	}
	if guard.On(guard.Checksum) && a.sum != part.Sum {
		m.stats.Damaged++
		return false
	}
	join := p.phase == divergent && guard.On(guard.DivergentMerge)
	if !join {
		m.forget(p)
	}
	for _, x := range a.portions {
		if m.c.Table.Import(x.at, p.number, x.image, x.data, x.counters, join) != nil {
			m.stats.Damaged++
			if !join {
				m.forget(p)
			}
			return false
		}
	}
	p.state.release()
	if own := &p.state; join && !own.passed && !own.mark.Epoch.Less(a.loss.of) {
		a.loss = own.loss // the divergent copy has what the other state lacks
	}
	if !join {
		p.enter(replica)
	}
	p.state = a.state
	return true
}
