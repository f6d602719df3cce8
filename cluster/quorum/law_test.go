package quorum_test

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/internal/message"
)

// law has the invariants that must hold at any time, whatever the network does.
type law struct {
	sets map[string]message.Set // by cluster ID and version, every one that was known
	runs []*process             // all that ever ran
	// operatorSet: a version was made by hand, so two sets may have it.
	byHand bool
	// one: no two cluster IDs may have quorum at once.
	one bool
}

func (l *law) watch(p *process) { l.runs = append(l.runs, p) }

// check is called after every step that may have changed p.
func (l *law) check(p *process) {
	if s := p.m.Set(); s.ID != p.known.ID || s.Version != p.known.Version || !slices.Equal(s.Members, p.known.Members) {
		p.known = s
		p.story = append(p.story, show(s))
		l.agreement(p, s)
	}
	if !p.has() {
		return
	}
	l.majority(p)
	l.disk(p)
	l.neighbours(p)
}

// agreement: a cluster ID has one set of each version, and neighbours differ by one name.
func (l *law) agreement(p *process, s message.Set) {
	if l.byHand {
		return
	}
	at := func(version uint64) string { return fmt.Sprintf("%s/%d", s.ID, version) }
	if t, ok := l.sets[at(s.Version)]; ok && !slices.Equal(s.Members, t.Members) {
		p.w.failf("%s knows %s of %s, which was %s", p.id.Name, show(s), s.ID, show(t))
	}
	l.sets[at(s.Version)] = s
	for _, v := range []uint64{s.Version - 1, s.Version + 1} {
		if t, ok := l.sets[at(v)]; ok && distance(s, t) != 1 {
			p.w.failf("%s and %s of %s are no neighbours", show(s), show(t), s.ID)
		}
	}
}

func distance(s, t message.Set) int {
	n := 0
	for _, name := range s.Members {
		if !t.Has(name) {
			n++
		}
	}
	for _, name := range t.Members {
		if !s.Has(name) {
			n++
		}
	}
	return n
}

// majority: a process with quorum has acknowledgements that still count from a majority of its set, itself
// included.
func (l *law) majority(p *process) {
	s, n := p.m.Set(), 0
	for _, name := range s.Members {
		if until, ok := p.acked[name]; name == p.id.Name || ok && until > p.clock() {
			n++
		}
	}
	if n < s.Majority() {
		p.w.failf("%s has quorum with %d of %s", p.id.Name, n, show(s))
	}
}

// disk: a set from disk proves nothing. A process that has one decides only after a majority of it,
// or of a later one, was heard in this run; see majority. One that is the only voter has had
// answers from all of its join targets, or has heard as many processes as found a set, and no
// process has shown it a later version.
func (l *law) disk(p *process) {
	s := p.m.Set()
	if len(s.Members) > 1 || !s.Equal(p.fromDisk) {
		return
	}
	for name, t := range p.shown {
		if t.ID == s.ID && t.Version > s.Version {
			p.w.failf("%s has quorum in %s from its disk, and %s has shown it %s",
				p.id.Name, show(s), name, show(t))
		}
	}
	if !p.answered() && len(p.shown)+1 < max(2, p.w.config.Expect) {
		p.w.failf("%s has quorum in %s from its disk, and has heard %d others",
			p.id.Name, show(s), len(p.shown))
	}
}

// neighbours: a process with quorum knows the same version as all others of its cluster ID that have quorum, or an adjacent
// one.
func (l *law) neighbours(p *process) {
	s := p.m.Set()
	for _, q := range l.runs {
		if q == p || q.down || !q.has() {
			continue
		}
		t := q.m.Set()
		if l.one && s.ID != t.ID {
			p.w.failf("%s has quorum in %s and %s in %s", p.id.Name, key(s), q.id.Name, key(t))
		}
		if s.ID == t.ID && max(s.Version, t.Version)-min(s.Version, t.Version) > 1 {
			p.w.failf("%s has quorum in %s and %s in %s", p.id.Name, show(s), q.id.Name, show(t))
		}
	}
}

func key(s message.Set) string {
	return fmt.Sprint(s.ID, "/", s.Version, ": ", strings.Join(s.Members, " "))
}
