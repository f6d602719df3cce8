package quorum

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-project/sluice/internal/message"
)

// Forget takes name out of the set without asking a majority, by hand.
// It fails when there is no set, when name is not in it, is this process, or lives.
func (m *Machine) Forget(now int64, name string) error {
	m.now = now
	switch p := m.latest(name); {
	case m.set.Zero():
		return fmt.Errorf("quorum: forget %q: this node knows no stable set yet; ask a node that does", name)
	case name == m.c.Self.Name:
		return fmt.Errorf("quorum: forget %q: it is this node; stop it, or ask another node", name)
	case !m.set.Has(name):
		return fmt.Errorf("quorum: forget %q: it is not counted; counted are %s", name, strings.Join(m.set.Members, ", "))
	case p != nil && m.speaks(now, p):
		return fmt.Errorf("quorum: forget %q: it lives, heard from %v ago; stop it first", name, time.Duration(now-p.heard))
	case len(m.set.Members) == 1:
		return fmt.Errorf("quorum: forget %q: nobody else is counted; start it again, or start all other nodes without their snapshots", name)
	}
	m.byHand = without(m.set, name)
	m.obey(now)
	return nil
}

// Bootstrap makes this process found a voter set of its own, by hand. It fails where it has quorum.
func (m *Machine) Bootstrap(now int64) error {
	m.now = now
	if now < m.until {
		return errors.New("quorum: bootstrap: this node has quorum in its voter set")
	}
	if m.set.ID == m.freshID() || m.record.Set.ID == m.freshID() {
		m.founded++
	}
	m.founder = nil
	m.byHand = message.Set{ID: m.freshID(), Version: 1, Members: []string{m.c.Self.Name}}
	m.obey(now)
	return nil
}

// obey makes the set that was made by hand this process's, once the disk has it.
func (m *Machine) obey(now int64) {
	s := m.byHand
	if s.Zero() {
		return
	}
	if s.ID == m.set.ID && s.Version <= m.set.Version {
		m.byHand = message.Set{} // another version came first
		return
	}
	if m.adopt(now, s) {
		m.byHand = message.Set{}
	}
}
