package cluster

import (
	"math"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// gossipDelay is how long gossip takes to tell all nodes that this node is leaving. Until then it hands nothing off: the next owner
// could be leaving too, or still assign the partition to this node, and would hand it off again.
const gossipDelay = 500 * time.Millisecond

// takeView takes the newest view of gossip.
func (r *runner) takeView() {
	r.views.mu.Lock()
	v := r.views.next
	r.views.mu.Unlock()
	if v.Members == nil || v.Seq == r.seq {
		return
	}
	now := r.node.cfg.Clock()
	r.seq, r.heardOnly, r.members = v.Seq, r.lostButHeard(now, v), v.Members
	r.updateKnown(now)
}

// lostButHeard returns the members of the last view that v has lost, though they did not leave and this process hears them on the
// peer port: packets of gossip get lost sooner than heartbeats, and ownership depends on heartbeats.
func (r *runner) lostButHeard(now int64, v member.View) (heardOnly []member.Member) {
	for _, m := range slices.Concat(r.members, r.heardOnly) {
		shown := slices.ContainsFunc(v.Members, func(o member.Member) bool { return o.Name == m.Name })
		if !shown && r.stillHeard(now, m) {
			heardOnly = append(heardOnly, m)
		}
	}
	return heardOnly
}

func (r *runner) stillHeard(now int64, m member.Member) bool {
	p := message.Peer{Name: m.Name, Boot: m.Boot}
	return p != r.self && m.State != member.Leaving && r.quorum.Lives(now, p)
}

// updateKnown makes the members of the last view, and those that are only heard, the known members.
func (r *runner) updateKnown(now int64) {
	r.known, r.at = nodesOf(member.View{Members: slices.Concat(r.members, r.heardOnly)}, r.self)
	if r.known[r.at].state == member.Leaving && r.leftAt == 0 {
		r.leftAt = now
	}
	r.addrs = make(map[message.Peer]string, len(r.known))
	first := make(map[string]int64, len(r.known))
	var peers []message.Peer
	for i, n := range r.known {
		r.addrs[n.peer()] = n.addr
		if i == r.at {
			continue
		}
		peers = append(peers, n.peer())
		at, known := r.firstShown[n.boot]
		if !known {
			at = now
		}
		first[n.boot] = at
	}
	r.firstShown = first
	r.quorum.SetView(now, peers)
	r.updateLive(now)
}

// checkLiveness notices members that are no longer heard, or are heard again.
func (r *runner) checkLiveness(now int64) {
	when := &r.node.shares.When
	if when.Turn(now, r.node.quorumUntil.Load()) {
		r.node.shares.Forget()
	}
	if when.Settling() {
		when.NoteSettled(now, r.settled(now))
	}
	if n := len(r.heardOnly); n > 0 {
		r.heardOnly = slices.DeleteFunc(r.heardOnly, func(m member.Member) bool { return !r.stillHeard(now, m) })
		if len(r.heardOnly) < n {
			r.updateKnown(now)
			return
		}
	}
	for i := range r.known {
		if r.live.nodes[i] != r.current(now, i) {
			r.updateLive(now)
			return
		}
	}
}

// updateLive computes which known members live now, and requests the assignment for them. It ends the calls to nodes that are
// no longer heard, so that their checks are sent elsewhere.
func (r *runner) updateLive(now int64) {
	s := &liveMembers{seq: r.seq, nodes: make([]node, len(r.known)), self: r.at}
	for i := range s.nodes {
		n := r.current(now, i)
		s.nodes[i] = n
		lived := func(b node) bool { return b.boot == n.boot && b.lives }
		if !n.lives && n.addr != "" && slices.ContainsFunc(r.live.nodes, lived) {
			r.node.cfg.Peers.HangUp(n.addr)
		}
	}
	r.live, r.stale = s, true
	r.assigner.request(s)
}

// current returns the i-th known member in its current state. This process counts as serving for spread after it began to leave,
// if another member can own partitions.
func (r *runner) current(now int64, i int) node {
	n := r.known[i]
	n.lives = r.lives(now, n.peer())
	if i == r.at && n.state == member.Leaving && now < r.leftAt+int64(gossipDelay) {
		if slices.ContainsFunc(r.known, func(o node) bool {
			return o.peer() != r.self && o.state == member.Serving && r.lives(now, o.peer())
		}) {
			n.state = member.Serving
		}
	}
	return n
}

// lives reports whether p was heard recently, or has appeared so recently that it need not have been.
func (r *runner) lives(now int64, p message.Peer) bool {
	if p == r.self || r.quorum.Lives(now, p) {
		return true
	}
	at, ok := r.firstShown[p.Boot]
	return ok && now < at+int64(r.node.cfg.leastSilence())
}

// takeAssignment puts a in force. If no ring could be built, the last one stays.
func (r *runner) takeAssignment(a *assignment) {
	if a.err != nil {
		r.node.stats.viewsRejected.Add(1)
		r.node.cfg.Log.Error("view rejected, the last ring stays", "view", a.live.seq, "error", a.err)
		return
	}
	if a.changed {
		r.node.stats.ringBuilds.Add(1)
	}
	r.assignment, r.stale = a, true
	r.handoff.SetView(r.node.cfg.Clock(), a.view)
}

// publish publishes quorum, and the routing if it has changed.
func (r *runner) publish() {
	if !r.resting {
		r.node.quorumUntil.Store(r.quorum.QuorumUntil())
	}
	if set := r.quorum.Set(); set.ID != r.set.ID || set.Version != r.set.Version {
		r.set, r.stale = set, true
		r.reported = math.MinInt64 // counts that show the set are due
	}
	if r.node.mayDecide(r.node.cfg.Clock()) && r.voters != len(r.set.Members) {
		r.voters, r.stale = len(r.set.Members), true
	}
	if routes := r.handoff.Routes(); r.stale || routes != r.routes {
		r.routes, r.stale = routes, false
		next := newRouting(r.live.nodes, r.live.self, r.assignment.table)
		if r.voters > 0 {
			next.voters = r.voters
		}
		next.setOwners(r.handoff.Owner)
		r.node.reroute(next)
	}
}
