package quorum

import (
	"slices"

	"github.com/sluice-project/sluice/internal/message"
)

// Waiting says what a process waits for that knows no set.
type Waiting struct {
	// May: it may take part in founding a set with Expect processes; see Config.Expect and MayFound.
	May    bool
	Expect int
	// Have are the names of those that a set can be founded with, this process among them. Others expect another number: so many.
	Have   []string
	Others []Expecting
	// Know are the processes that are heard and know a set in which they have no quorum. Silent are those that gossip shows and that are not
	// heard.
	Know, Silent []message.Peer
	// Missed: others speak to an earlier run of this process.
	Missed bool
	// Accepted is the founding that it has accepted and that is not in force.
	Accepted message.Set
}

// Expecting is a process that would found a set with another number of processes.
type Expecting struct {
	Name   string
	Expect int
}

// Waiting returns what this process waits for as long as it knows no set.
func (m *Machine) Waiting(now int64) Waiting {
	w := Waiting{May: m.founds(), Expect: m.c.Expect, Missed: m.isMissed(now), Accepted: m.record.Founding, Have: []string{m.c.Self.Name}}
	for _, p := range m.peers {
		switch {
		case p.sent == never || !m.speaks(now, p):
			if p.inView {
				w.Silent = append(w.Silent, p.Peer)
			}
		case !p.setless:
			w.Know = append(w.Know, p.Peer)
		case p.expect == m.c.Expect:
			w.Have = append(w.Have, p.Name)
		default:
			w.Others = append(w.Others, Expecting{p.Name, p.expect})
		}
	}
	slices.Sort(w.Have)
	return w
}
