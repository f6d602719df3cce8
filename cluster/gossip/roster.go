package gossip

import (
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/member"
)

const (
	// maxLost bounds the lost members whose addresses are tried.
	maxLost = 256
	// maxRefusals bounds the refusals that wait to be logged.
	maxRefusals = 16
)

// roster is what memberlist's callbacks write and this package's goroutines read:
// the processes that memberlist thinks alive, this one excepted, and those it
// lost. memberlist's own list cannot be read safely, because it hands out
// pointers to nodes that it goes on changing.
type roster struct {
	self        string // full name
	forgetAfter time.Duration
	changed     chan struct{} // signalled after every change, for the viewer
	rivals      chan struct{} // the same, for the warden
	vanished    chan struct{} // signalled when a member is gone, for the joiner
	doubted     chan struct{} // signalled when a process is unproven, for the prover
	// proof: a process that is heard of counts only when it has proved that it lives.
	proof bool

	mu struct {
		sync.Mutex
		alive    map[string]member.Member // by full name
		unproven map[string]unproven      // by full name; none that is alive. Empty without proof
		lost     map[string]lost          // by logical name; none that is alive
		refusals []refusal
		refused  uint64
	}
}

// lost is a member that vanished without leaving.
type lost struct {
	address string
	since   time.Time
}

// refusal is a peer that does not fit.
type refusal struct {
	address string
	reason  error
}

func newRoster(self string, forgetAfter time.Duration) *roster {
	r := &roster{
		self:        self,
		forgetAfter: forgetAfter,
		changed:     make(chan struct{}, 1),
		rivals:      make(chan struct{}, 1),
		vanished:    make(chan struct{}, 1),
		doubted:     make(chan struct{}, 1),
	}
	r.mu.unproven = map[string]unproven{}
	r.mu.alive = map[string]member.Member{}
	r.mu.lost = map[string]lost{}
	return r
}

func (r *roster) signal() {
	signal(r.changed)
	signal(r.rivals)
}

// put notes a process as alive, or as one that has to prove it.
func (r *roster) put(m member.Member) {
	full := fullName(m.Name, m.Boot)
	if full == r.self {
		return
	}
	r.mu.Lock()
	if _, known := r.mu.alive[full]; r.proof && !known {
		r.doubtLocked(full, m)
		r.mu.Unlock()
		signal(r.doubted)
		return
	}
	r.livesLocked(full, m)
	r.mu.Unlock()
	r.signal()
}

// livesLocked notes a process as alive. One of its name that was started before it at the same address has ended,
// though probes may not have found that out yet.
func (r *roster) livesLocked(full string, m member.Member) {
	maps.DeleteFunc(r.mu.alive, func(_ string, other member.Member) bool {
		return other.Name == m.Name && other.Gossip == m.Gossip && other.Boot < m.Boot
	})
	r.mu.alive[full] = m
	delete(r.mu.lost, m.Name)
}

// remove notes a process as gone. One that did not announce it is lost: it may be
// behind a cut, and its address is tried, unless its name lives elsewhere.
func (r *roster) remove(full string) {
	r.mu.Lock()
	m, ok := r.mu.alive[full]
	delete(r.mu.alive, full)
	delete(r.mu.unproven, full)
	if ok && m.State != member.Leaving && !r.carriedLocked(m.Name) {
		if len(r.mu.lost) >= maxLost {
			r.dropOldestLocked()
		}
		r.mu.lost[m.Name] = lost{address: m.Gossip, since: time.Now()}
	}
	if ok {
		signal(r.vanished) // one that has left may be a join target, and come back at any moment
	}
	r.mu.Unlock()
	r.signal()
}

// carriedLocked reports whether a living process, this one included, has the name.
func (r *roster) carriedLocked(name string) bool {
	if strings.HasPrefix(r.self, name+"/") { // names contain no slash
		return true
	}
	for _, m := range r.mu.alive {
		if m.Name == name {
			return true
		}
	}
	return false
}

// alone reports whether no other process is known to live.
func (r *roster) alone() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.mu.alive) == 0
}

func (r *roster) dropOldestLocked() {
	var oldest string
	for name, l := range r.mu.lost {
		if o, ok := r.mu.lost[oldest]; !ok || l.since.Before(o.since) {
			oldest = name
		}
	}
	delete(r.mu.lost, oldest)
}

// refuse notes a peer that does not fit, for the viewer to log.
func (r *roster) refuse(address string, reason error) {
	r.mu.Lock()
	r.mu.refused++
	if len(r.mu.refusals) < maxRefusals {
		r.mu.refusals = append(r.mu.refusals, refusal{address, reason})
	}
	r.mu.Unlock()
	signal(r.changed)
}

// members returns the processes that are alive, this one excepted.
func (r *roster) members() []member.Member {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]member.Member, 0, len(r.mu.alive)+1)
	for _, m := range r.mu.alive {
		all = append(all, m)
	}
	return all
}

// carrier is another process that is called as this one.
type carrier struct {
	member.Member
	unproven bool
}

// carriers returns the other processes that are called name, alive or still to prove it.
func (r *roster) carriers(name string) (all []carrier) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, m := range r.mu.alive {
		if m.Name == name {
			all = append(all, carrier{m, false})
		}
	}
	for _, u := range r.mu.unproven {
		if u.member.Name == name {
			all = append(all, carrier{u.member, true})
		}
	}
	return all
}

// takeRefusals returns the refusals since the last call.
func (r *roster) takeRefusals() []refusal {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.mu.refusals
	r.mu.refusals = nil
	return all
}

// addresses returns the gossip addresses of the living, and of those lost less
// than forgetAfter ago; it forgets the others.
func (r *roster) addresses() (alive map[string]bool, gone []string) {
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
