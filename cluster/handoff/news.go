package handoff

import (
	"github.com/sluice-project/sluice/internal/guard"
	"github.com/sluice-project/sluice/internal/message"
)

// sentNews is what was last told to a peer.
type sentNews struct {
	seq uint64
	at  int64
}

// makeNews makes what is known of p known to everybody, with the next publish: what was granted here,
// and also what was heard of. Those who granted it may leave the set, and who is left must know it and pass it on.
func (m *Machine) makeNews(p *partition) { p.told, m.untold = m.news+1, true }

// nextNews returns the number of the news that has all grants so far.
func (m *Machine) nextNews() uint64 {
	if m.untold {
		return m.news + 1
	}
	return m.news
}

// publish makes the next news of what there is for it: whose heartbeats have not seen it gets no
// acknowledgement from here.
func (m *Machine) publish() {
	if !m.untold {
		return
	}
	m.untold = false
	m.news++
	if guard.On(guard.Promise) {
		m.c.Quorum.Owe(m.news)
	}
}

// tellNews sends the news to those who have not seen it.
func (m *Machine) tellNews() {
	if m.news == 0 {
		return
	}
	for _, d := range m.c.Quorum.Owed() {
		last := m.newsSent[d.Peer]
		if last.seq == m.news && m.now-last.at < m.answerAfter(d.Peer) {
			continue
		}
		m.newsSent[d.Peer] = sentNews{m.news, m.now}
		b := &message.News{Seq: m.news}
		for i := range m.parts {
			if p := &m.parts[i]; p.told > d.Seen {
				b.Grants = append(b.Grants, message.Granted{Partition: i, Gen: p.known.epoch.Gen, Claimer: p.known.holder})
			}
		}
		m.send(d.Peer, b)
	}
}

// takeNews learns what from has granted or heard of.
func (m *Machine) takeNews(from message.Peer, b *message.News) {
	for _, g := range b.Grants {
		if g.Partition >= 0 && g.Partition < len(m.parts) {
			m.learn(&m.parts[g.Partition], message.Epoch{Gen: g.Gen, Boot: g.Claimer.Boot}, g.Claimer)
		}
	}
	m.c.Quorum.Saw(from, b.Seq)
}
