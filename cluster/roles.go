package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/internal/message"
)

// The regions are a voter set of their own, with a second machine of package quorum. In each region one node speaks for it: the owner of a
// key that is chosen for that. So there is one speaker at a time, with the quorum of its own cluster, and another takes its place as fast
// as any partition gets another owner. Only a region that has quorum among the regions plays roles: it decides keys of the home that a role
// is named after. See quorum.Machine and docs/internals/regions.md.

const (
	rolesPeriod = 50 * time.Millisecond
	// askRolesEvery is how often a node asks the speaker, and roleTTL how long an answer counts at most.
	askRolesEvery = 200 * time.Millisecond
	roleTTL       = 2 * time.Second
	// greetEvery is how often a region is told who speaks, unless other messages do.
	greetEvery = time.Second
	// gatherRoles is the time between two messages to a region, unless a vote is under way.
	gatherRoles = 250 * time.Millisecond
	// regionTimeout is quorum.Config.Timeout between regions. It is long, so that another node can become the speaker meanwhile.
	regionTimeout = 1700 * time.Millisecond
	// regionOutAfter is the silence after which other regions play a region's roles.
	regionOutAfter = 3 * time.Second
	// aloneAfter is how long the speaker of one of two regions waits to hear who plays its role.
	aloneAfter = 5 * time.Second
	// stuckAfter is how long a speaker may have no quorum although it hears all others.
	stuckAfter = 20 * time.Second
	// catchUp is how long a node that is about to speak waits for what others of its region know.
	catchUp = 250 * time.Millisecond
)

// roleView is which roles this region plays, as far as a node knows. It is immutable.
type roleView struct {
	set   message.Set
	until int64 // by the node's clock, exclusive
	plays []played
	pass  message.Passing // see rolemove.go
	begun []message.Peer  // see speaker.noteBegun
	// problem is speaker.why; only the speaker's own view has it.
	problem string
}

// played is a role that the region plays. since is when it has begun to without the counters, 0 if it has them.
type played struct {
	of    string
	since int64
}

func (v *roleView) find(of string) (played, bool) {
	if v != nil {
		for _, p := range v.plays {
			if p.of == of {
				return p, true
			}
		}
	}
	return played{}, false
}

// response is what the speaker answers a node of its region.
func (v *roleView) response(now, sent int64) *message.RolesResponse {
	a := &message.RolesResponse{Sent: sent, Set: v.set, Left: min(v.until-min(now, v.until), int64(roleTTL)), Passing: v.pass, Begun: v.begun}
	for _, p := range v.plays {
		age := int64(0)
		if p.since != 0 {
			age = max(1, now-p.since)
		}
		a.Plays = append(a.Plays, message.Played{Of: p.of, Age: age})
	}
	return a
}

// learn returns the view after a response, nil if it is to be ignored. v may be nil.
func (v *roleView) learn(now int64, m *message.RolesResponse) *roleView {
	if m.Sent > now || m.Sent < now-int64(roleTTL) || v != nil && v.set.ID == m.Set.ID && v.set.Version > m.Set.Version {
		return nil
	}
	next := &roleView{set: m.Set, until: m.Sent + min(max(0, m.Left), int64(roleTTL))*10/11, pass: m.Passing, begun: m.Begun} // for clocks of other speeds
	for _, p := range m.Plays {
		since := int64(0)
		if p.Age > 0 {
			since = now - p.Age
		}
		next.plays = append(next.plays, played{p.Of, since})
	}
	return next
}

// catchUp returns the view of a node that is about to speak after what another node of its region knows, nil if that is nothing new.
func (v *roleView) catchUp(now int64, m *message.RolesResponse) *roleView {
	switch {
	case v == nil, v.set.Zero(), v.set.ID == m.Set.ID && v.set.Version < m.Set.Version:
		return v.learn(now, m)
	case v.pass == (message.Passing{}) && m.Passing != v.pass && v.set.Equal(m.Set):
		next := *v
		next.pass = m.Passing
		return &next
	}
	return nil
}

// roles is what a node knows of the roles of regions. The goroutine of run has the fields after calls.
type roles struct {
	view    atomic.Pointer[roleView]
	inbox   chan message.Envelope
	dropped atomic.Uint64
	calls   chan func(now int64)
	wake    chan struct{} // holds one if a change was confirmed

	speaker *speaker
	begins  int64 // when this node, which has asked the others, is to speak; 0 if others do
	asked   int64
	movers  map[message.Role]*mover
	begun   map[string]string // see speaker.noteBegun
	batches uint64
	many    bool // there are other regions
}

// noRoles is the view of a node that knows nothing yet.
var noRoles roleView

// known returns the view, which is empty at first.
func (r *roles) known() *roleView {
	if v := r.view.Load(); v != nil {
		return v
	}
	return &noRoles
}

// plays returns which region has the counters of keys whose home is that region.
func (r *roles) plays(home string) string { return r.known().set.Plays(home) }

// speakerOf returns the key whose owner speaks for a region.
func speakerOf(region string) bucket.Key {
	return bucket.Key{Hi: check.HashOf(region), Lo: check.HashOf(region)}
}

// manyRegions reports whether there are roles.
func (n *Node) manyRegions() bool { return n.roles.many }

// mayPlay reports whether this region may decide keys of the home at now, and how: see played.
func (n *Node) mayPlay(now int64, home string) (p played, ok bool) {
	if !n.manyRegions() {
		return p, true
	}
	v := n.roles.view.Load()
	if v == nil || now >= v.until && guard.On(guard.RoleLease) {
		return p, false
	}
	return v.find(home)
}

// mayDecideHome reports whether this region may decide q at now, with respect to its home. lost: under on_lost_state: deny, what the region
// that decided before may have admitted counts, and d is the denial.
func (n *Node) mayDecideHome(now int64, q *bucket.Request, d *bucket.Decision) (lost, ok bool) {
	home := q.Home()
	if home == bucket.HomeAuto && n.manyRegions() {
		role, sure := n.place(now, q.Key)
		if home = role; !sure {
			return false, false
		}
	}
	if home == "" || n.away(q) != "" {
		return false, true
	}
	p, ok := n.mayPlay(now, home)
	if !ok || p.since == 0 || !q.DenyLost || q.Limits == nil || q.Verb != bucket.Check && q.Verb != bucket.Read {
		return false, ok
	}
	end := q.Limits.SpentUntil(p.since)
	if n.cfg.LostHold > 0 {
		end = min(end, p.since+int64(n.cfg.LostHold))
	}
	if now >= end {
		return false, true
	}
	*d = bucket.Decision{Lost: true, RetryAfter: min(time.Duration(end-now), bucket.MaxLostRetry), ResetAfter: time.Duration(end - now)}
	return true, true
}

// plays is mayDecideHome for the run: at its end the region must still play the role.
func (t *localRun) plays(q *bucket.Request, d *bucket.Decision) (lost, ok bool) {
	if q.Home() == "" || !t.node.manyRegions() {
		return false, true
	}
	if v := t.node.roles.view.Load(); v != nil && t.node.away(q) == "" && guard.On(guard.RoleLease) {
		t.roles = min(t.roles, v.until)
	}
	return t.node.mayDecideHome(t.now, q, d)
}

// idle returns why no region decides p: this one has the role of its home, and must not play it now.
func (f *forwarding) idle(p *pending) error {
	q := &f.batch.Requests[p.index].Request
	home := q.Home()
	if home == bucket.HomeAuto && f.node.manyRegions() {
		role, sure := f.node.place(f.sent, q.Key)
		switch home = role; {
		case !f.node.routing.Load().owns(q.Key):
			return nil
		case !sure:
			return errSealed
		}
	}
	if home == "" || f.node.away(q) != "" {
		return nil
	}
	if _, ok := f.node.mayPlay(f.sent, home); !ok {
		return errNoRole
	}
	return nil
}

// regainsRole reports whether the region has lost its roles so lately that it may play them again soon: another node becomes its speaker.
func (n *Node) regainsRole(now int64) bool {
	v := n.roles.view.Load()
	return v != nil && now < v.until+int64(time.Second)
}

// errNoRole: this region must not decide the key now. on_partition decides.
var errNoRole = fmt.Errorf("%w: too few regions are reached to decide keys with that home", check.ErrUnsent)

// runRoles keeps the view until ctx ends.
func (n *Node) runRoles(ctx context.Context) {
	if !n.manyRegions() {
		return
	}
	tick := time.NewTicker(rolesPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			n.turnRoles()
		case <-n.roles.wake:
			n.turnRoles()
		case e := <-n.roles.inbox:
			n.takeRoles(e)
			n.turnRoles()
		case f := <-n.roles.calls:
			n.turnRoles()
			f(n.cfg.Clock())
			n.turnRoles()
		}
	}
}

// turnRoles speaks for the region if it is this node's turn, and asks the speaker otherwise.
func (n *Node) turnRoles() {
	defer func() { n.turnKeys(n.cfg.Clock(), n.routing.Load()) }()
	r, routing, now := &n.roles, n.routing.Load(), n.cfg.Clock()
	key := speakerOf(n.cfg.Regions.Self())
	if !routing.owns(key) || !n.mayDecide(now) {
		r.speaker, r.begins = nil, 0
		if owner := routing.owner(key); now-r.asked >= int64(askRolesEvery) && owner != noNode && owner != routing.self {
			r.asked = now
			n.post(routing, owner, &message.RolesRequest{Sent: now, Moved: n.moved()})
		}
		n.moveCounters(now, routing)
		return
	}
	if r.begins == 0 {
		r.begins = now + int64(catchUp)
		for i := range routing.nodes {
			if i != routing.self {
				n.post(routing, i, &message.RolesRequest{Sent: now, Begins: true})
			}
		}
	}
	if now < r.begins {
		n.moveCounters(now, routing)
		return
	}
	if r.speaker == nil || r.speaker.stuck(now) {
		r.speaker = newSpeaker(now, n.cfg.Regions.Self(), fmt.Sprintf("%016x~%s", now, n.cfg.Boot), n.cfg.Regions.Others(), r.view.Load(), r.speaker != nil)
		r.speaker.kept = n.cfg.Recorded != nil && n.cfg.Recorded.Partitions > 0
	}
	if others := n.cfg.Regions.Others(); !slices.Equal(others, r.speaker.others) {
		r.speaker.setOthers(now, others)
	}
	for region, m := range r.speaker.tick(now) {
		n.cfg.Regions.Post(region, m)
	}
	n.setRoles(r.speaker.view(now, r.view.Load()))
	if s := r.speaker; s.problem != "" && !s.logged {
		n.cfg.Log.Warn("a role could not be passed on to another region", "error", s.problem)
		s.logged = true
	}
	n.moveCounters(now, routing)
	n.noteMoved(n.moved())
}

// setRoles makes v the view in force.
func (n *Node) setRoles(v *roleView) {
	old := n.roles.view.Swap(v)
	same := func(a, b played) bool { return a.of == b.of && (a.since == 0) == (b.since == 0) } // since is estimated anew by each response
	if old != nil && slices.EqualFunc(old.plays, v.plays, same) && old.set.Equal(v.set) {
		return
	}
	var names []string
	for _, p := range v.plays {
		names = append(names, p.of)
	}
	n.cfg.Log.Info("roles of regions", "version", v.set.Version, "regions", v.set.Members, "decides keys of", names, "moved", v.set.Roles)
}

// post sends a message to a member of this cluster.
func (n *Node) post(r *routing, to int, b message.Body) {
	if to != noNode && r.nodes[to].addr != "" {
		n.cfg.Peers.Post(r.nodes[to].addr, message.Envelope{From: n.runner.self, To: r.nodes[to].peer(), Body: b})
	}
}

// takeRoles processes a message about roles.
func (n *Node) takeRoles(e message.Envelope) {
	r, routing, now := &n.roles, n.routing.Load(), n.cfg.Clock()
	switch m := e.Body.(type) {
	case *message.RegionMessages:
		key, outside := speakerOf(n.cfg.Regions.Self()), e.From == message.Peer{}
		switch {
		case m.Homes != nil:
			n.takeHomes(now, routing, outside, m)
		case m.Counters != nil:
			n.takeCounters(now, routing, outside, m)
		case m.Taken != nil && m.Taken.To == n.cfg.Name:
			n.countersTaken(m.From.Name, m.Taken)
		case m.Taken != nil:
			if outside {
				n.post(routing, routing.find(m.Taken.To), m)
			}
		case r.speaker != nil && routing.owns(key) && n.mayDecide(now):
			r.speaker.step(now, m)
		case outside && !routing.owns(key): // of another region, and not passed on yet
			n.post(routing, routing.owner(key), m)
		}
	case *message.RolesRequest:
		v := r.view.Load()
		if r.speaker == nil && !m.Begins || v == nil {
			return
		}
		n.noteMoved(m.Moved)
		a := v.response(now, m.Sent)
		a.Begins = m.Begins
		n.post(routing, routing.find(e.From.Name), a)
	case *message.RolesResponse:
		if m.Begins {
			if v := r.view.Load().catchUp(now, m); v != nil && r.begins != 0 && r.speaker == nil {
				n.setRoles(v)
			}
		} else if v := r.view.Load().learn(now, m); v != nil && r.speaker == nil {
			n.setRoles(v)
		}
	}
}

// Errors of PassRole, besides those of quorum.Machine.Forget.
var (
	errNotSpeaker  = errors.New("another node speaks for this region")
	errNotPlayed   = errors.New("this region does not decide the keys of that region now, or is to keep them")
	errMoving      = errors.New("this region is passing on a role already: wait until that is done")
	errNoRegion    = errors.New("no such region is in the set: one that is linked again joins it some seconds later")
	errRegionAlive = errors.New("that region is heard here, so it is not stopped: ask one of its nodes, without --stopped")
)

// PassRole lets region to decide the keys whose home is region of. It must be called at the node that Speaker names. With stopped, this
// region takes over what the region of decides, without asking it: an operator says that it is stopped. Otherwise this region passes on
// what it decides, after no node of it decides that any more.
func (n *Node) PassRole(ctx context.Context, of, to string, stopped bool) error {
	var err error
	done := make(chan struct{})
	call := func(now int64) {
		defer close(done)
		s := n.roles.speaker
		switch {
		case s == nil:
			err = errNotSpeaker
		case stopped && to != s.self.Name:
			err = fmt.Errorf("region %s is to decide them: ask one of its nodes", to)
		case stopped && s.machine.Set().Plays(of) == to:
			err = errors.New("this region decides the keys of that home already")
		case stopped:
			if err = s.machine.Forget(now, s.machine.Set().Plays(of)); errors.Is(err, member.ErrAlive) {
				err = errRegionAlive
			}
		case !s.machine.Set().Has(to):
			err = errNoRegion
		case to == s.self.Name, s.machine.Set().Plays(of) != s.self.Name:
			err = errNotPlayed
		default:
			if p, ok := n.roles.view.Load().find(of); ok {
				err = s.startMove(now, p, to, n.cfg.Ring.Partitions)
			} else {
				err = errNotPlayed
			}
		}
	}
	select {
	case n.roles.calls <- call:
		<-done
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Speaker returns the name of the node that speaks for this region, "" if none is known.
func (n *Node) Speaker() string {
	name, _ := n.Owner(speakerOf(n.cfg.Regions.Self()))
	return name
}

// Roles returns the newest version of the set of regions that this node knows, the homes whose keys this region decides now, and why keys
// are not decided in the region that is to decide them, and what to do: "" if that is not known, as at all nodes but Speaker.
func (n *Node) Roles() (set message.Set, homes []string, problem string) {
	v, now := n.roles.known(), n.cfg.Clock()
	for _, p := range v.plays {
		if now < v.until {
			homes = append(homes, p.of)
		}
	}
	slices.SortFunc(homes, cmp.Compare[string])
	return v.set, homes, v.problem
}
