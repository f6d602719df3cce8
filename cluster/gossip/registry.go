package gossip

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/loglimit"
	"github.com/sluicecluster/sluice/internal/member"
)

const (
	// maxLost bounds the lost members whose addresses are tried.
	maxLost = 256
	// maxRejections bounds the rejectedPeers that wait to be logged.
	maxRejections = 16
)

// registry is written by memberlist's callbacks and read by this package's goroutines: the other processes that memberlist
// believes alive, and those it lost. memberlist's own list cannot be read safely: it hands out pointers to nodes that it
// changes.
type registry struct {
	self          string // full name
	forgetAfter   time.Duration
	changed       chan struct{} // signalled after every change, for watch
	nameChanged   chan struct{} // the same, for watchName
	vanished      chan struct{} // signalled when a member is gone, for the joiner
	unprovenAdded chan struct{} // signalled when a process is unproven, for runChallenges
	proof         bool          // a new process counts only when it has proved that it is alive

	mu struct {
		sync.Mutex
		alive         map[string]member.Member // by full name
		unproven      map[string]unproven      // by full name; none that is alive. Empty without proof
		lost          map[string]lost          // by logical name; none that is alive
		left          map[string]bool          // logical names of those that left in order
		rejectedPeers []rejectedPeer
		rejected      uint64
	}
}

// lost is a member that vanished without leaving.
type lost struct {
	address string
	since   time.Time
}

// rejectedPeer is a peer that does not fit.
type rejectedPeer struct {
	address string
	reason  error
}

func newRegistry(self string, forgetAfter time.Duration) *registry {
	r := &registry{
		self:          self,
		forgetAfter:   forgetAfter,
		changed:       make(chan struct{}, 1),
		nameChanged:   make(chan struct{}, 1),
		vanished:      make(chan struct{}, 1),
		unprovenAdded: make(chan struct{}, 1),
	}
	r.mu.unproven = map[string]unproven{}
	r.mu.alive = map[string]member.Member{}
	r.mu.lost, r.mu.left = map[string]lost{}, map[string]bool{}
	return r
}

func (r *registry) signal() {
	signal(r.changed)
	signal(r.nameChanged)
}

// put notes a process as alive, or as one that has yet to prove it.
func (r *registry) put(m member.Member) {
	full := fullName(m.Name, m.Boot)
	if full == r.self {
		return
	}
	r.mu.Lock()
	if _, known := r.mu.alive[full]; r.proof && !known {
		r.addUnprovenLocked(full, m)
		r.mu.Unlock()
		signal(r.unprovenAdded)
		return
	}
	r.livesLocked(full, m)
	r.mu.Unlock()
	r.signal()
}

// livesLocked notes a process as alive. An older process of its name at the same address has ended, even if probes have not
// found that out yet.
func (r *registry) livesLocked(full string, m member.Member) {
	maps.DeleteFunc(r.mu.alive, func(_ string, other member.Member) bool {
		return other.Name == m.Name && other.Gossip == m.Gossip && other.Boot < m.Boot
	})
	r.mu.alive[full] = m
	delete(r.mu.lost, m.Name)
	delete(r.mu.left, m.Name)
}

// remove notes a process as gone. If it did not announce that, it is lost, maybe behind a network partition: its address is
// tried, unless another living process has its name.
func (r *registry) remove(full string) {
	r.mu.Lock()
	m, ok := r.mu.alive[full]
	delete(r.mu.alive, full)
	delete(r.mu.unproven, full)
	lives := strings.HasPrefix(r.self, m.Name+"/") // names contain no slash
	for _, other := range r.mu.alive {
		lives = lives || other.Name == m.Name
	}
	if ok && !lives && m.State != member.Leaving {
		if len(r.mu.lost) >= maxLost {
			delete(r.mu.lost, slices.MinFunc(slices.Collect(maps.Keys(r.mu.lost)), func(a, b string) int {
				return r.mu.lost[a].since.Compare(r.mu.lost[b].since)
			}))
		}
		r.mu.lost[m.Name] = lost{address: m.Gossip, since: time.Now()}
	}
	if ok && !lives && m.State == member.Leaving && len(r.mu.left) < maxLost {
		r.mu.left[m.Name] = true
	}
	if ok {
		signal(r.vanished) // a process that has left may be a join target, and come back at any moment
	}
	r.mu.Unlock()
	r.signal()
}

// reject notes a peer that does not fit, for watch to log.
func (r *registry) reject(address string, reason error) {
	r.mu.Lock()
	r.mu.rejected++
	if len(r.mu.rejectedPeers) < maxRejections {
		r.mu.rejectedPeers = append(r.mu.rejectedPeers, rejectedPeer{address, reason})
	}
	r.mu.Unlock()
	signal(r.changed)
}

// members returns the other processes that are alive.
func (r *registry) members() []member.Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Values(r.mu.alive))
}

// namesake is another process with this one's name.
type namesake struct {
	member.Member
	unproven bool
}

// named returns the other processes of that name, alive or still to prove it.
func (r *registry) named(name string) (all []namesake) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.mu.alive {
		if m.Name == name {
			all = append(all, namesake{m, false})
		}
	}
	for _, u := range r.mu.unproven {
		if u.member.Name == name {
			all = append(all, namesake{u.member, true})
		}
	}
	return all
}

// has reports whether that process is this one, or memberlist lists it.
func (r *registry) has(full string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, alive := r.mu.alive[full]
	_, waits := r.mu.unproven[full]
	return alive || waits || full == r.self
}

// takeRejected returns the rejectedPeers since the last call.
func (r *registry) takeRejected() []rejectedPeer {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.mu.rejectedPeers
	r.mu.rejectedPeers = nil
	return all
}

// addresses returns the gossip addresses of the processes alive, and of those lost less than forgetAfter ago; it forgets the
// others.
func (r *registry) addresses() (alive map[string]bool, gone []string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	alive = make(map[string]bool, len(r.mu.alive)+1)
	for _, m := range r.mu.alive {
		alive[m.Gossip] = true
	}
	for name, l := range r.mu.lost {
		if time.Since(l.since) > r.forgetAfter {
			delete(r.mu.lost, name)
			continue
		}
		gone = append(gone, l.address)
	}
	return alive, gone
}

// leaves reports whether the processes called name have left in order, or are about to.
func (r *registry) leaves(name string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	leaving := r.mu.left[name]
	for _, m := range r.mu.alive {
		if m.Name == name {
			leaving = m.State == member.Leaving
		}
	}
	return leaving
}

// Leaves reports whether the member called name is leaving, or has left in order and not come back.
func (g *Gossip) Leaves(name string) bool { return g.registry.leaves(name) }

// watch builds a view whenever the registry has changed, logs rejected peers, and repeats this node's last announcement.
func (g *Gossip) watch(ctx context.Context) {
	quiet := loglimit.New(time.Minute)
	repeat := time.NewTimer(time.Hour)
	repeat.Stop()
	defer repeat.Stop()
	for {
		select {
		case <-g.registry.changed:
		case <-g.repeat:
			repeat.Reset(repeatAfter)
		case <-repeat.C:
			g.repeatState()
		case <-ctx.Done():
			return
		}
		for _, r := range g.registry.takeRejected() {
			if quiet.Allow(time.Now(), r.address+" "+r.reason.Error()) {
				g.log.Warn("rejected a peer", "address", r.address, "reason", r.reason.Error())
			}
		}
		g.publish()
	}
}

// publish builds a new view, if it differs from the last.
func (g *Gossip) publish() {
	g.publishing.Lock()
	defer g.publishing.Unlock()
	next := &member.View{Self: g.config.Name, Members: choose(g.registry.members(), g.Self()), Seq: 1}
	if last := g.view.Load(); last != nil {
		if slices.Equal(last.Members, next.Members) {
			return
		}
		next.Seq = last.Seq + 1
		g.logChanges(last, next)
	}
	g.view.Store(next)
	signal(g.changes)
}

// choose returns one member per name, sorted by name: the newest process of that name, except that a joining one does not
// replace an older one that serves or leaves. Under its own name a node always shows itself.
func choose(others []member.Member, self member.Member) []member.Member {
	all := append(others, self)
	slices.SortFunc(all, func(a, b member.Member) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Boot, b.Boot))
	})
	chosen := all[:0]
	for _, m := range all {
		last := len(chosen) - 1
		switch {
		case last < 0 || chosen[last].Name != m.Name:
			chosen = append(chosen, m)
		case m.Name == self.Name:
			chosen[last] = self
		case m.State != member.Joining || chosen[last].State == member.Joining:
			chosen[last] = m
		}
	}
	return slices.Clip(chosen)
}

// logChanges logs members that appeared, changed and disappeared.
func (g *Gossip) logChanges(last, next *member.View) {
	for _, m := range next.Members {
		was, ok := last.Lookup(m.Name)
		switch {
		case m.Name == g.config.Name:
		case !ok:
			g.log.Info("member appeared", "member", m.Name, "state", m.State.String(), "address", m.Gossip)
		case was.Boot != m.Boot:
			g.log.Info("member restarted", "member", m.Name, "state", m.State.String(), "address", m.Gossip)
		case was.State != m.State:
			g.log.Info("member changed state", "member", m.Name, "state", m.State.String())
		}
	}
	for _, m := range last.Members {
		if _, ok := next.Lookup(m.Name); !ok {
			g.log.Info("member is gone", "member", m.Name, "last_state", m.State.String(), "address", m.Gossip)
		}
	}
}

// Stats are counters since Open, and current values.
type Stats struct {
	// Members is the size of the view; Lost members vanished without leaving and are still tried.
	Members, Lost int
	// Rejected counts messages from peers of another placement or format.
	Rejected uint64
	// Malformed counts messages that are not gossip, or are encrypted with none of this node's keys.
	Malformed uint64
	// TCPOnly counts probes of other nodes that were answered over TCP and not over UDP.
	TCPOnly uint64
	// RejectedStreams counts streams that were closed: too many, too long, or announcing more than gossip has.
	RejectedStreams uint64
	// Unproven are processes that have not answered this node's challenge yet and are in no view. None if gossip is not
	// encrypted.
	Unproven int
	// Keys is the number of keys in force, and Primary names the one that encrypts.
	Keys    int
	Primary string
	// Joins counts attempts to reach targets and lost members; JoinsFailed those without an answer or rejected.
	Joins, JoinsFailed uint64
	// Health is memberlist's score of this node: 0 is healthy, higher means that it misses answers.
	Health int
}

// Stats returns the counters.
func (g *Gossip) Stats() Stats {
	k := g.Keyring()
	s := Stats{
		Members: len(g.View().Members), Health: g.list.GetHealthScore(), Keys: k.Len(), Primary: k.Primary(),
		Malformed: g.library.malformed.Load(), TCPOnly: g.library.tcpOnly.Load(),
		Joins: g.joiner.tries.Load(), JoinsFailed: g.joiner.failed.Load(),
	}
	if t, ok := g.transport.(*sockets); ok {
		s.RejectedStreams = t.gate.rejected.Load()
	}
	g.registry.mu.Lock()
	s.Lost, s.Rejected, s.Unproven = len(g.registry.mu.lost), g.registry.mu.rejected, len(g.registry.mu.unproven)
	g.registry.mu.Unlock()
	return s
}
