package transcripts

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/internal/message"
)

// This file has the words of the transcripts. They are those of the documentation, whatever the code calls these things, so a new
// name in the code changes no transcript.

// transcript is what has happened since the last command.
type transcript struct {
	lines []*line
	told  map[[2]message.Peer]*told
}

// line is one thing that happened: a message, or a change at a process.
type line struct {
	at   int64
	from []string
	to   []string // the receivers of a message; nil for a change at a process
	text string
}

// told is what a process has last told another one.
type told struct {
	texts map[string]string // by the kind of message
	seen  uint64            // of the receiver's pending grants, in heartbeats
	owned map[int]uint64    // generations by partition, nil before the first list
}

// noted is what was last told of a process.
type noted struct {
	hasQuorum   bool
	quorumUntil int64
	voters      string
	parts       []string
	waits       bool
	handing     map[message.Epoch]bool // epochs that a commit which was sent ends
}

// add adds a line, or another sender or receiver to the line of the same message.
func (t *transcript) add(l *line) *line {
	for _, x := range t.lines {
		if x.at/ms != l.at/ms || x.text != l.text || (x.to == nil) != (l.to == nil) {
			continue
		}
		if l.to != nil && slices.Equal(x.from, l.from) {
			x.to = append(x.to, l.to...)
			return x
		}
	}
	t.lines = append(t.lines, l)
	return l
}

// mentions reports whether one of the lines has the text.
func (t *transcript) mentions(text string) bool {
	return slices.ContainsFunc(t.lines, func(l *line) bool { return strings.Contains(l.String(), text) })
}

const ms = int64(time.Millisecond)

// take returns the lines since the last call. Lines that differ in their senders only become one.
func (t *transcript) take() string {
	slices.SortStableFunc(t.lines, func(a, b *line) int { return int(a.at/ms - b.at/ms) })
	var merged []*line
	for _, l := range t.lines {
		if l.to != nil && len(l.to) == 0 {
			continue
		}
		i := slices.IndexFunc(merged, func(x *line) bool {
			return x.at/ms == l.at/ms && x.text == l.text && (x.to == nil) == (l.to == nil) && slices.Equal(x.to, l.to)
		})
		if i >= 0 {
			merged[i].from = append(merged[i].from, l.from...)
			continue
		}
		merged = append(merged, l)
	}
	var b strings.Builder
	for _, l := range merged {
		fmt.Fprintf(&b, "%.3f  %s\n", time.Duration(l.at).Truncate(time.Millisecond).Seconds(), l)
	}
	t.lines = nil
	return b.String()
}

// String returns l without its time.
func (l *line) String() string {
	who := strings.Join(l.from, " ")
	if l.to != nil {
		who += " → " + strings.Join(l.to, " ")
	}
	return who + ": " + l.text
}

// say tells something about a process.
func (c *simulated) say(p *process, format string, args ...any) {
	c.add(&line{at: c.now, from: []string{p.self.Boot}, text: fmt.Sprintf(format, args...)})
}

// What becomes of a message.
const (
	arrives = ""
	lost    = "LOST: "
	cutOff  = "CUT: "
)

// sent tells of a message, unless the receiver was told the same before. It returns a function to be called when the message arrives.
func (c *simulated) sent(e message.Envelope, fate string) (arrived func(*process)) {
	link := [2]message.Peer{e.From, e.To}
	t := c.told[link]
	if t == nil {
		t = &told{texts: map[string]string{}}
		c.told[link] = t
	}
	tell := func(text string) *line {
		return c.add(&line{at: c.now, from: []string{e.From.Boot}, to: []string{e.To.Boot}, text: fate + text})
	}
	kind, text := kindOf(e.Body), describe(&e)
	arrived = func(*process) {}
	key := kind
	if fate == cutOff {
		key += fate // the link may be healed
	}
	before := t.texts[key]
	changed := text != before
	if fate != lost {
		t.texts[key] = text
	}
	switch b := e.Body.(type) {
	case *message.Heartbeat:
		seen := fate == arrives && b.Seen > t.seen
		has := fmt.Sprintf(", has seen your pending grants %d", b.Seen)
		switch {
		case fate == cutOff:
			return arrived
		case seen && changed:
			text += has
		case seen:
			tell("heartbeat" + has)
		}
		if fate == arrives {
			t.seen = b.Seen
		}
		if !changed {
			return arrived
		}
		l := tell(text)
		if !seen && anyVersion(before) == anyVersion(text) {
			arrived = func(p *process) {
				if s := p.quorum.Set(); s.ID == b.Set.ID && s.Version >= b.Set.Version {
					l.to = slices.DeleteFunc(l.to, func(boot string) bool { return boot == e.To.Boot })
				}
			}
		}
		return arrived
	case *message.Ack:
		changed = changed && fate != cutOff && !(b.OK && anyVersion(before) == anyVersion(text))
	case *message.OwnedPartitions:
		changed = fate != cutOff && t.tells(b)
	}
	if changed {
		tell(text)
	}
	return arrived
}

var versions = regexp.MustCompile(`voters v\d+`)

// anyVersion returns a text without the versions of voter sets.
func anyVersion(text string) string { return versions.ReplaceAllString(text, "voters") }

// tells reports whether a list of what its sender owns says anything new.
func (t *told) tells(b *message.OwnedPartitions) bool {
	owned := map[int]uint64{}
	changed := !b.Full || t.owned == nil
	for _, h := range b.Partitions {
		owned[h.Partition] = h.Gen
		changed = changed || t.owned[h.Partition] != h.Gen
	}
	changed = changed || b.Full && len(owned) != len(t.owned)
	if !b.Full {
		for p, gen := range t.owned {
			if _, ok := owned[p]; !ok {
				owned[p] = gen
			}
		}
	}
	t.owned = owned
	return changed
}

// note tells what has changed at a process.
func (c *simulated) note(p *process) {
	now := p.time()
	until := p.quorum.QuorumUntil()
	has := now < until
	if p.hasQuorum && !has {
		c.add(&line{at: min(c.now, p.at(p.quorumUntil)), from: []string{p.self.Boot}, text: "no quorum any more"})
	}
	if has {
		if !p.hasQuorum {
			c.say(p, "quorum")
		}
		p.quorumUntil = until
	}
	p.hasQuorum = has
	if s := tellVoters(p.quorum.Set(), p.quorum.Unconfirmed()); s != p.voters {
		p.voters = s
		c.say(p, "%s", s)
	}
	for len(p.parts) < c.partitions {
		p.parts = append(p.parts, "")
	}
	for part := range p.parts {
		if s := p.has(part); s != p.parts[part] {
			p.parts[part] = s
			if s == "" {
				s = "nothing any more"
			}
			c.say(p, "p%d: %s", part, s)
		}
	}
}

// noteCommits notes which epochs of p end with a commit that it sends.
func (p *process) noteCommits(b message.Body) {
	if b, ok := b.(*message.TransferBatch); ok {
		for _, x := range b.Parts {
			if x.Kind == message.Close {
				p.handing[x.Epoch] = true
			}
		}
	}
}

// has returns what p has of a partition, empty for nothing.
func (p *process) has(part int) string {
	s, ok := p.handoff.State(part)
	e := tellEpoch(s.Mark.Epoch)
	lost := ""
	if s.LostOf != (message.Epoch{}) {
		lost = ", without the counters of epoch " + tellEpoch(s.LostOf)
	}
	switch {
	case !ok:
		return ""
	case p.handoff.Owns(part):
		from := ""
		if s.Start != (message.Mark{}) {
			from = ", from the state of epoch " + tellEpoch(s.Start.Epoch)
		}
		return "owner at epoch " + e + from + lost
	case s.Owned && p.handing[s.Mark.Epoch]:
		return "sealed, epoch " + e + " ends when the next owner confirms"
	case s.Owned:
		return "divergent state of epoch " + e + lost
	case !s.Complete:
		return "initial sync under way, epoch " + e + lost
	}
	return "replica of epoch " + e + lost
}

// show tells how the cluster stands: the processes, and then the owner and the replicas of each partition.
func (c *simulated) show() string {
	var b strings.Builder
	type group struct{ boots, text string }
	var groups []group
	for _, p := range c.running() {
		text := p.state.String() + ", no quorum"
		if p.time() < p.quorum.QuorumUntil() {
			text = p.state.String() + ", quorum"
		}
		text += ", " + tellVoters(p.quorum.Set(), p.quorum.Unconfirmed())
		if !p.admitted {
			text = "waits to join"
		}
		if d := p.correct; d != 0 {
			text += fmt.Sprintf("; its clock is %v ahead of the voters' median", -d.Round(time.Millisecond))
		}
		if i := slices.IndexFunc(groups, func(g group) bool { return g.text == text }); i >= 0 {
			groups[i].boots += " " + p.self.Boot
		} else {
			groups = append(groups, group{p.self.Boot, text})
		}
	}
	for _, g := range groups {
		fmt.Fprintf(&b, "%s: %s\n", g.boots, g.text)
	}
	for part := range c.partitions {
		var has []string
		for _, p := range c.running() {
			if s := p.has(part); s != "" {
				has = append(has, fmt.Sprintf("%s %s, %d spent", p.self.Boot, s, p.spent(part)))
			}
		}
		if has == nil {
			has = []string{"nothing anywhere"}
		}
		fmt.Fprintf(&b, "p%d: %s\n", part, strings.Join(has, "; "))
	}
	return b.String()
}

func tellVoters(s message.Set, unconfirmed bool) string {
	if s.Zero() {
		return "no voter set"
	}
	text := fmt.Sprintf("voters v%d of cluster %s (%s)", s.Version, s.ID, strings.Join(s.Members, " "))
	if unconfirmed {
		text += ", unconfirmed"
	}
	return text
}
