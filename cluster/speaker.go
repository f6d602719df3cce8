package cluster

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// speaker speaks for a region. It has no goroutine and reads no clock.
type speaker struct {
	self    message.Peer // the region, and its own boot ID
	others  []string     // regions
	machine *quorum.Machine
	known   map[string]message.Peer // the speakers of the others
	sent    map[string]int64        // when something was sent to each
	heard   map[string]int64        // when something was received
	lists   map[string][]string     // of regions that each has
	begun   []message.Peer          // see noteBegun
	before  map[string]string       // the boot IDs in place of which others in begun came
	lost    bool                    // the region has begun anew, without the counters that it had
	kept    bool                    // its counters are from the data directory, as far as that goes
	out     map[string][]message.RegionMessage
	began   int64
	// quorumAt is when it had quorum last.
	quorumAt int64
	// pending are roles that the region has got, and others may still play.
	pending map[string]gotRole
	move    *roleMove
	problem string // why the last move has failed, until the next one
	logged  bool   // problem was
	// resumed is what was played before a move that has failed, with the set of then.
	resumed *roleView
}

// gotRole says since when a role is known to be the region's, and when a majority was seen to know that too, 0 if not yet: then
// nobody acknowledges the heartbeats of the region that had it.
// foreign: the set before was lost with all speakers, so another region may have had it. had: the region has played it, in an earlier
// version, since it began.
type gotRole struct {
	known, agreed int64
	foreign, had  bool
}

// newSpeaker returns a speaker that knows what the node's last view has: so what one speaker has agreed to, the next one does not forget.
// prev may be nil. The one after a speaker that was stuck does not know the set.
func newSpeaker(now int64, region, boot string, others []string, prev *roleView, stuck bool) *speaker {
	var set message.Set
	if prev != nil && !stuck {
		set = prev.set
	}
	c := quorum.Config{
		Self: message.Peer{Name: region, Boot: boot}, Expect: (len(others)+1)/2 + 1, Roles: true, Record: message.Record{Set: set},
		Timeout: regionTimeout, ForgetAfter: regionOutAfter,
	}
	s := &speaker{
		self: c.Self, others: others, machine: quorum.New(c, now), began: now, quorumAt: now,
		known: map[string]message.Peer{}, sent: map[string]int64{}, heard: map[string]int64{}, lists: map[string][]string{},
		out: map[string][]message.RegionMessage{}, pending: map[string]gotRole{}, before: map[string]string{},
	}
	if prev != nil {
		s.begun = prev.begun
	}
	if s.beganAt(region) == "" {
		s.noteBegun(s.self)
	}
	s.machine.Wish(now, message.Join)
	s.machine.MayFound(now, true, true)
	if prev != nil && prev.pass != (message.Passing{}) {
		// The speaker before may have asked for a version that passes the role on. Until there is another version, the region must not
		// decide more: its counters are there as of that time.
		role := prev.pass.Role
		from, _ := prev.set.Role(role.Of)
		role.At, role.By = region, boot
		s.move = &roleMove{Passing: message.Passing{Role: role, Sealed: true}, from: from, passAt: now}
		s.problem = notPassed(prev.pass.Role, "another node speaks for this region now, so they stay here: promote it again")
	}
	return s
}

// setOthers changes the list of regions. A region that is not in it any more is not heard, so the others remove it from the set; one that is
// new joins the set when the coordinator and a majority of it have it in theirs.
func (s *speaker) setOthers(now int64, others []string) {
	for _, name := range s.others {
		if !slices.Contains(others, name) {
			delete(s.known, name)
			delete(s.sent, name)
			delete(s.heard, name)
			delete(s.lists, name)
			delete(s.out, name)
			delete(s.before, name)
		}
	}
	s.others = others
	s.showKnown(now)
}

// agreed reports whether a region, which this one has in its list, is in the set or may join it: a majority has it in its lists.
func (s *speaker) agreed(name string) bool {
	set, n := s.machine.Set(), 0
	for _, member := range set.Members {
		if member == s.self.Name || slices.Contains(s.lists[member], name) {
			n++
		}
	}
	return set.Zero() || set.Has(name) || n >= set.Majority()
}

// noteBegun notes the boot ID of the first speaker of a region since it has begun without any state. When that changes, the other regions
// send what they have of the region's home, see Node.moveCounters, and tell it that it was there before.
func (s *speaker) noteBegun(p message.Peer) {
	if old := s.beganAt(p.Name); p.Boot != "" && old != p.Boot {
		s.before[p.Name] = old
		s.begun = append(slices.DeleteFunc(slices.Clone(s.begun), func(q message.Peer) bool { return q.Name == p.Name }), p)
		slices.SortFunc(s.begun, message.Peer.Compare)
	}
}

func (s *speaker) beganAt(region string) string {
	for _, p := range s.begun {
		if p.Name == region {
			return p.Boot
		}
	}
	return ""
}

func (s *speaker) showKnown(now int64) {
	s.machine.SetView(now, slices.SortedFunc(maps.Values(s.known), message.Peer.Compare))
}

// pair reports whether there are two regions: neither is a majority, so each plays its role until an operator says otherwise.
func (s *speaker) pair() bool { return len(s.others) < 2 && len(s.machine.Set().Members) <= 2 }

// stuck reports whether this region has had no quorum for long although all others are heard: voters that have forgotten their set may have
// founded another, so that none has a majority. The speaker must then begin anew. The first name does so first.
func (s *speaker) stuck(now int64) bool {
	rank := 0
	for _, name := range s.others {
		if at, ok := s.heard[name]; !ok || now-at > int64(regionOutAfter) {
			return false
		}
		if name < s.self.Name {
			rank++
		}
	}
	return !s.pair() && !s.machine.Set().Zero() && now-s.quorumAt > int64(stuckAfter)*int64(2+rank)/2
}

// step processes messages of another region's speaker.
func (s *speaker) step(now int64, m *message.RegionMessages) {
	from := m.From
	if !slices.Contains(s.others, from.Name) || from.Boot == "" {
		return
	}
	s.lists[from.Name] = m.Regions
	s.noteBegun(message.Peer{Name: from.Name, Boot: cmp.Or(m.Began, from.Boot)})
	s.lost = s.lost || !s.kept && m.Before != "" && m.Before != s.beganAt(s.self.Name)
	if !s.agreed(from.Name) {
		return
	}
	s.heard[from.Name] = now
	if s.known[from.Name] != from {
		s.known[from.Name] = from
		s.showKnown(now)
	}
	s.machine.Introduced(from) // again, in case that the speaker before it was heard so lately that it is taken for an older one
	for i := range m.List {
		if e := m.List[i].Envelope(from); e.Body != nil {
			s.machine.Step(now, e)
		}
	}
}

// tick does what is due, and returns the messages to each region.
func (s *speaker) tick(now int64) map[string]*message.RegionMessages {
	s.tickMove(now)
	s.machine.Tick(now)
	if s.machine.QuorumUntil() > now {
		s.quorumAt = now
	}
	votes := map[string]bool{}
	for _, e := range s.machine.Take() {
		name, m := e.To.Name, message.RegionMessageOf(e)
		if !slices.Contains(s.others, name) {
			continue // it was taken out of the list, and is still in the set
		}
		s.out[name] = append(slices.DeleteFunc(s.out[name], m.Supersedes), m)
		votes[name] = votes[name] || m.Heartbeat == nil && m.Ack == nil
	}
	out := map[string]*message.RegionMessages{}
	for _, name := range s.others {
		pause := gatherRoles
		if len(s.out[name]) == 0 {
			pause = greetEvery
		}
		if last, ok := s.sent[name]; !ok || votes[name] || now-last >= int64(pause) {
			m := &message.RegionMessages{From: s.self, List: s.out[name], Regions: s.others, Before: s.before[name]}
			if boot := s.beganAt(s.self.Name); boot != s.self.Boot {
				m.Began = boot
			}
			out[name] = m
			s.sent[name], s.out[name] = now, nil
		}
	}
	return out
}

// why says why keys are not decided in the region that is to decide them, and what to do; "" if nothing is wrong.
func (s *speaker) why(now int64) string {
	set, own := s.machine.Set(), s.self.Name
	for _, name := range s.others {
		if s.pair() && set.Plays(name) == name && now-max(s.began, s.heard[name]) > int64(aloneAfter) {
			return fmt.Sprintf("region %s is not heard, and of two regions neither takes over by itself: if it is stopped, run "+
				"`sluice regions promote %s --home %[1]s --stopped` here", name, own)
		}
	}
	switch homes := slices.Sorted(maps.Keys(s.pending)); {
	case s.problem != "":
		return s.problem
	case !s.pair() && now-s.quorumAt > int64(stuckAfter)/2:
		return "at most half of the regions hear each other, so this one decides no keys with a home: repair the links; of regions that are stopped " +
			"for good, take over the homes by `sluice regions promote " + own + " --home HOME --stopped` here"
	case len(homes) > 0:
		return fmt.Sprintf("keys with the home %s wait until most regions know that this one is to decide them, and the region before must have stopped: "+
			"about 5 s, if more than half of the regions are linked", strings.Join(homes, ", "))
	}
	return ""
}

// view returns which roles the region plays at now, after prev, the node's last view. A role that another region has played before, as far
// as is known here, is played when each acknowledgement has expired that the other may still count, after a majority knows a version that
// gives it to this region.
func (s *speaker) view(now int64, prev *roleView) *roleView {
	set, own := s.machine.Set(), s.self.Name
	// At most roleTTL, as of nodes that ask: that is how long a role that is passed on may still be played.
	v := &roleView{begun: s.begun, set: set, until: min(s.machine.QuorumUntil(), now+int64(roleTTL)), pass: s.move.view(), problem: s.why(now)}
	if prev != nil && !set.Zero() && prev.set.Equal(set) {
		v.until = max(v.until, prev.until) // by the speaker before
	}
	if s.pair() {
		v.until = now + int64(roleTTL)
	}
	if set.Zero() {
		switch {
		case prev != nil && (!prev.set.Zero() || len(prev.plays) > 0): // of the speaker before
			v.set, v.plays = prev.set, prev.plays
			if !s.pair() {
				v.until = prev.until
			}
		case s.pair() && now-s.began >= int64(aloneAfter):
			v.plays = []played{{of: own}}
		}
		return v
	}
	roles := []string{own}
	for _, r := range set.Roles {
		if r.At == own && r.Of != own {
			roles = append(roles, r.Of)
		}
	}
	roles = slices.DeleteFunc(roles, func(of string) bool { return set.Plays(of) != own || s.move.stops(of) })
	maps.DeleteFunc(s.pending, func(of string, _ gotRole) bool { return !slices.Contains(roles, of) })
	for _, of := range roles {
		if p, ok := prev.find(of); ok && follows(prev.set, set) {
			v.plays = append(v.plays, p)
			continue
		}
		if p, ok := s.resumed.find(of); ok && follows(s.resumed.set, set) {
			v.plays = append(v.plays, p)
			continue
		}
		got := s.pending[of]
		if got.known == 0 {
			got.known = now
			got.foreign = prev != nil && !prev.set.Zero() && prev.set.ID != set.ID
			_, got.had = prev.find(of)
		}
		if got.agreed == 0 && s.machine.Renewed() >= got.known {
			got.agreed = now
		}
		s.pending[of] = got
		wait := s.machine.LongestExpiry()
		if !guard.On(guard.RoleWait) {
			wait = 0
		}
		if got.agreed != 0 && now >= got.agreed+wait {
			p := played{of: of}
			if role, moved := set.Role(of); moved && role.By == "" || !moved && s.lost && !got.had && guard.On(guard.RoleBegun) || got.foreign {
				p.since = now
			} else if role.Age > 0 {
				p.since = now - role.Age
			}
			v.plays = append(v.plays, p)
			delete(s.pending, of)
		}
	}
	return v
}

// follows reports whether no version between old and set, which is not older, can have given a role to another region that both leave to
// one. old is zero for one of two regions that was alone.
func follows(old, set message.Set) bool {
	if old.Zero() {
		return set.Version == 1
	}
	return old.ID == set.ID && set.Version-old.Version <= 1
}
