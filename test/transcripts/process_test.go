package transcripts

import (
	"fmt"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster/handoff"
	"github.com/sluicecluster/sluice/cluster/quorum"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// process is one run of a node: both machines, and around them what a node does.
type process struct {
	c        *simulated
	self     message.Peer
	state    member.State
	clock    time.Duration // ahead of a right one
	table    *bucket.Table
	quorum   *quorum.Machine
	handoff  *handoff.Machine
	ended    bool
	admitted bool // by gossip
	started  int64
	left     bool // in order
	wishes   bool // to leave the voter set

	sights  map[string]*sight
	view    []seen
	placing bool
	storing bool
	correct time.Duration

	noted
}

// seen is a member as gossip shows it.
type seen struct {
	*process
	state member.State
}

// sight is what gossip shows of one name, since when, and what it will show next, and when.
type sight struct {
	seen
	since int64
	next  seen
	due   int64
}

// time is what the process's clock shows.
func (p *process) time() int64 { return epoch + p.c.now + int64(p.clock) }

// at returns when a right clock showed, or will show, what the process's clock shows at t.
func (p *process) at(t int64) int64 { return t - epoch - int64(p.clock) }

// end stops p at once.
func (p *process) end() { p.ended = true }

// join asks the join targets, all other nodes. A process whose name another process carries waits until that is gone, and one that
// reaches no target asks again for five seconds.
func (p *process) join() {
	c := p.c
	if p.ended {
		return
	}
	reached := c.now-p.started >= int64(5*time.Second) || len(c.names) == 1
	for _, q := range c.running() {
		if q.self.Name == p.self.Name && q != p {
			if !p.waits {
				p.waits = true
				c.say(p, "waiting: gossip shows %s, which carries its name", q.self.Boot)
			}
			reached = false
			break
		}
		reached = reached || q != p && c.hears(p, q)
	}
	if !reached {
		c.after(joinTime, p.join)
		return
	}
	p.admitted = true
	for _, name := range c.names {
		if name != p.self.Name {
			s := c.truth(p, name)
			p.sights[name] = &sight{seen: s, next: s, since: c.now}
		}
	}
	now := p.time()
	p.quorum.Wish(now, message.Join)
	p.quorum.SetView(now, p.peers())
	p.quorum.MayFound(now, true, true)
	p.turn()
}

// gossip moves what p sees towards the truth, late, and reports whether anything has changed.
func (p *process) gossip() (changed bool) {
	c := p.c
	if !p.admitted {
		return false
	}
	for _, name := range c.names {
		if name == p.self.Name {
			continue
		}
		s := p.sights[name]
		if s == nil {
			s = &sight{}
			p.sights[name] = s
		}
		if want := c.truth(p, name); want != s.next {
			wait := gossips
			if want.process == nil && s.process != nil && !s.left {
				wait = probing
			}
			s.next, s.due = want, c.now+int64(wait)
		}
		if s.seen != s.next && c.now >= s.due {
			if s.process != s.next.process {
				s.since = c.now
			}
			s.seen, changed = s.next, true
		}
	}
	return changed
}

// peers returns the processes that gossip shows p.
func (p *process) peers() (peers []message.Peer) {
	for _, name := range p.c.names {
		if s := p.sights[name]; s != nil && s.process != nil {
			peers = append(peers, s.self)
		}
	}
	return peers
}

// tick does what a process does now and then.
func (p *process) tick() {
	if p.ended {
		return
	}
	now := p.time()
	if p.gossip() {
		p.quorum.SetView(now, p.peers())
	}
	p.live(now)
	if p.ended {
		return
	}
	p.turn()
	p.c.after(ticking, p.tick)
}

// live moves p through its life: a voter serves; a process that leaves hands off, leaves the voter set, and ends.
func (p *process) live(now int64) {
	switch {
	case p.state == member.Joining && p.admitted && p.quorum.In():
		p.state = member.Serving
		p.c.say(p, "serving")
	case p.state != member.Leaving:
	case !p.wishes && p.handoff.OnlyHere() == 0 && p.handoff.Needed() == 0:
		p.wishes = true
		p.quorum.Wish(now, message.Leave)
	case p.wishes && !p.quorum.In() && p.handoff.OnlyHere() == 0:
		p.c.say(p, "ended")
		p.left = true
		p.end()
	}
}

// receive gives both machines a message.
func (p *process) receive(e message.Envelope) {
	if p.ended {
		return
	}
	now := p.time()
	p.quorum.Step(now, e)
	p.handoff.Step(now, e)
	p.turn()
}

// turn ends every step of a process, as in a node: what is due is done, and what is to be said is sent.
func (p *process) turn() {
	now := p.time()
	p.look(now)
	p.quorum.Tick(now)
	p.align(now)
	p.handoff.Tick(now)
	out := append(p.quorum.Take(), p.handoff.Take()...)
	for _, e := range out {
		p.noteCommits(e.Body)
	}
	p.c.note(p)
	for _, e := range out {
		p.c.send(e)
	}
	p.store()
}

// store writes what the disk is to have.
func (p *process) store() {
	record, ok := p.quorum.Unstored()
	if !ok || p.storing {
		return
	}
	p.storing = true
	p.c.after(writing, func() {
		if p.ended {
			return
		}
		p.storing = false
		p.c.disks[p.self.Name] = &record
		p.quorum.Stored(p.time(), record)
		p.turn()
	})
}

// align makes windows begin by the voters' clocks where this process's is off, as a node does.
func (p *process) align(now int64) {
	found := p.quorum.Clocks(now, int64(maxSkew))
	correct := p.correct
	if found.Known {
		correct = 0
		if ahead := time.Duration(found.Ahead); found.Agree && ahead.Abs() > maxSkew {
			correct = -ahead
		}
	}
	if correct != p.correct {
		p.correct = correct
		p.table.Correct(int64(correct))
	}
}

// look notices which members live, and has the ring built anew if that has changed.
func (p *process) look(now int64) {
	var view []seen
	for _, name := range p.c.names {
		if name == p.self.Name {
			view = append(view, seen{p, p.state})
		} else if s := p.sights[name]; s != nil && s.process != nil && (p.c.now < s.since+int64(dead) || p.quorum.Lives(now, s.self)) {
			view = append(view, s.seen)
		}
	}
	if slices.Equal(view, p.view) {
		return
	}
	p.view = view
	if !p.placing {
		p.placing = true
		p.c.after(placing, p.place)
	}
}

// place tells handoff who lives, and which node the ring assigns each partition and its replicas to.
func (p *process) place() {
	if p.ended {
		return
	}
	p.placing = false
	var v handoff.View
	for _, s := range p.view {
		v.Members, v.Serves = append(v.Members, s.self), append(v.Serves, s.state == member.Serving)
	}
	for part := range p.c.partitions {
		order := p.order(part)
		v.Owner = append(v.Owner, order[0])
		others := slices.DeleteFunc(order, func(i int) bool { return i >= 0 && p.view[i].process == p })
		v.Replica, v.Second = append(v.Replica, others[0]), append(v.Second, others[1])
	}
	p.handoff.SetView(p.time(), v)
	p.turn()
}

// order returns the places in p's view of the members that serve, in the order in which the ring assigns part to them, and then -1 a few times.
func (p *process) order(part int) (order []int) {
	add := func(name string) {
		i := slices.IndexFunc(p.view, func(s seen) bool { return s.self.Name == name && s.state == member.Serving })
		if i >= 0 && !slices.Contains(order, i) {
			order = append(order, i)
		}
	}
	for _, name := range slices.Concat(p.c.ring[part], p.c.names) {
		add(name)
	}
	return append(order, -1, -1, -1)
}

// charge asks p's node for n units of the counter of a partition, one check after the other, and tells what came of it.
func (p *process) charge(part, n int) string {
	if p.time() >= p.quorum.QuorumUntil() {
		return fmt.Sprintf("rejected in p%d, no quorum", part)
	}
	admitted, last := 0, bucket.Decision{}
	for range n {
		d, _, v := p.table.Try(p.time(), &bucket.Request{Key: key(part), Limits: p.c.limits[part], Cost: 1}, nil)
		switch v {
		case bucket.Sealed:
			if owner := p.handoff.Owner(part); owner != (message.Peer{}) {
				return fmt.Sprintf("rejected in p%d, not the owner: ask %s", part, owner.Boot)
			}
			return fmt.Sprintf("rejected in p%d, no owner known", part)
		case bucket.Behind:
			return fmt.Sprintf("admitted %d of %d in p%d, then the replica is too far behind", admitted, n, part)
		}
		if last = d; d.Allowed {
			admitted++
		}
	}
	if last.Allowed {
		return fmt.Sprintf("admitted %d of %d in p%d, %d left", admitted, n, part, last.Remaining)
	}
	return fmt.Sprintf("admitted %d of %d in p%d, retry after %v", admitted, n, part, last.RetryAfter.Round(time.Second/10))
}

// spent returns what p's table has counted in a partition.
func (p *process) spent(part int) int64 {
	d := p.table.Do(p.time(), &bucket.Request{Key: key(part), Limits: p.c.limits[part], Cost: 1, Verb: bucket.Read})
	return p.c.counts[part] - d.Remaining
}
