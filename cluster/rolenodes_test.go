package cluster

import (
	"container/heap"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

// nodesWorld is regions of three nodes, of which one speaks and the others ask it. Besides what a roleWorld has: two nodes of a region speak
// for a moment, nodes cannot ask for a while or get answers late, each node has a clock of its own, messages are duplicated and come up
// to 20 s late, and roles are passed on with their counters, which do not always arrive.
type nodesWorld struct {
	rng     *rand.Rand
	now     int64
	events  roleEvents
	seq     int
	regions []*nodesRegion
	cut     map[[2]int]int64
	far     time.Duration
	lose    float64
	bad     string
	// decided counts the decisions with each home, and counters how many of them a region knows of.
	decided  map[string]int
	counters []map[string]int
	// begun counts the moves of roles.
	begun int
}

type nodesRegion struct {
	name   string
	others []string
	nodes  []*roleNode
	at     int // the node that speaks
	was    int // a node that still does until wasTo
	wasTo  int64
	boots  int
}

type roleNode struct {
	speed   float64
	speaker *speaker
	view    *roleView
	asked   int64
	paused  int64
	alone   int64 // until then it gets no answer inside its region, so it owns nothing
	begins  int64
}

func newNodesWorld(seed uint64, names ...string) *nodesWorld {
	w := &nodesWorld{rng: rand.New(rand.NewPCG(seed, 42)), cut: map[[2]int]int64{}, decided: map[string]int{}}
	w.far, w.lose = w.between(25*time.Millisecond, 300*time.Millisecond), w.rng.Float64()*0.05
	for i, name := range names {
		r := &nodesRegion{name: name, others: slices.Delete(slices.Clone(names), i, i+1), was: -1}
		for k := range 3 {
			r.nodes = append(r.nodes, &roleNode{speed: 0.98 + 0.04*w.rng.Float64()})
			w.after(w.between(0, time.Second), func() { w.turn(i, k) })
		}
		w.regions = append(w.regions, r)
		w.counters = append(w.counters, map[string]int{})
		w.after(time.Second, func() { w.late(i) })
	}
	return w
}

func (w *nodesWorld) between(least, most time.Duration) time.Duration {
	return least + time.Duration(w.rng.Int64N(int64(most-least)))
}

func (w *nodesWorld) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, roleEvent{w.now + int64(d), w.seq, do})
}

func (w *nodesWorld) run(d time.Duration) {
	end := w.now + int64(d)
	for len(w.events) > 0 && w.events[0].at <= end && w.bad == "" {
		e := heap.Pop(&w.events).(roleEvent)
		w.now = e.at
		e.do()
	}
	w.now = end
}

func (w *nodesWorld) clock(n *roleNode) int64 {
	return int64(time.Hour) + int64(float64(w.now)*n.speed)
}

// turn is Node.turnRoles.
func (w *nodesWorld) turn(i, k int) {
	r := w.regions[i]
	n := r.nodes[k]
	w.after(rolesPeriod, func() { w.turn(i, k) })
	if w.now < n.paused {
		return
	}
	now := w.clock(n)
	if k != r.at && (k != r.was || w.now >= r.wasTo) || w.now < n.alone {
		n.speaker, n.begins = nil, 0
		if now-n.asked >= int64(askRolesEvery) {
			n.asked = now
			w.near(n, func() { w.answer(r, n, now) })
		}
		w.decide()
		return
	}
	if n.begins == 0 {
		n.begins = now + int64(catchUp)
		for _, o := range r.nodes {
			w.near(n, func() { w.tell(i, o, n, now) })
		}
	}
	if now < n.begins {
		w.decide()
		return
	}
	if n.speaker == nil || n.speaker.stuck(now) {
		r.boots++
		n.speaker = newSpeaker(now, r.name, fmt.Sprintf("%s~%03d", r.name, r.boots), r.others, n.view, n.speaker != nil)
	}
	if m := n.speaker.move; m != nil && m.left > 0 && w.rng.IntN(20) == 0 && w.linked(i, m.Role.At) {
		// All counters have arrived, as they are now.
		m.left = 0
		to := w.region(m.Role.At)
		w.counters[to][m.Role.Of] = max(w.counters[to][m.Role.Of], w.counters[i][m.Role.Of])
	}
	out := n.speaker.tick(now)
	for to, other := range w.regions {
		if m := out[other.name]; m != nil {
			w.send(i, to, m)
		}
	}
	w.see(i, n, n.speaker.view(now, n.view))
}

func (w *nodesWorld) region(name string) int {
	return slices.IndexFunc(w.regions, func(r *nodesRegion) bool { return r.name == name })
}

func (w *nodesWorld) linked(i int, to string) bool { return w.now >= w.cut[[2]int{i, w.region(to)}] }

func (w *nodesWorld) see(i int, n *roleNode, v *roleView) {
	if n.view != nil && v.set.Version != n.view.set.Version {
		w.sendCounters(i, v)
	}
	n.view = v
	w.decide()
}

// sendCounters sends the counters of roles that another region has to it, as Node.moveCounters does as soon as it knows.
func (w *nodesWorld) sendCounters(i int, v *roleView) {
	for _, role := range v.set.Roles {
		if role.At != w.regions[i].name && w.linked(i, role.At) {
			w.after(w.far, func() {
				to := w.region(role.At)
				w.counters[to][role.Of] = max(w.counters[to][role.Of], w.counters[i][role.Of])
			})
		}
	}
}

// late is what moveCounters does from time to time.
func (w *nodesWorld) late(i int) {
	w.after(moveAgain, func() { w.late(i) })
	if v := w.regions[i].nodes[0].view; v != nil {
		w.sendCounters(i, v)
	}
}

// near is a message inside a region and its answer, to n.
func (w *nodesWorld) near(n *roleNode, do func()) {
	d := w.between(0, 5*time.Millisecond)
	if w.rng.IntN(20) == 0 {
		d = w.between(0, 3*time.Second)
	}
	if w.now >= n.alone {
		w.after(d, do)
	}
}

// answer is the speaker's, to a request of n that was sent then.
func (w *nodesWorld) answer(r *nodesRegion, n *roleNode, sent int64) {
	k := r.at
	if r.was >= 0 && w.now < r.wasTo && w.rng.IntN(2) == 0 {
		k = r.was
	}
	s := r.nodes[k]
	if s.speaker == nil || s.view == nil || w.now < s.paused {
		return
	}
	a := s.view.response(w.clock(s), sent)
	w.near(n, func() {
		if w.now < n.paused || n.speaker != nil {
			return
		}
		if v := n.view.learn(w.clock(n), a); v != nil {
			w.see(w.region(r.name), n, v)
		}
	})
}

// tell is the answer of another node to n, which is about to speak, to a request that was sent then.
func (w *nodesWorld) tell(i int, o, n *roleNode, sent int64) {
	if o == n || o.view == nil || w.now < max(o.paused, o.alone) {
		return
	}
	a := o.view.response(w.clock(o), sent)
	w.near(n, func() {
		if v := n.view.catchUp(w.clock(n), a); v != nil && n.begins != 0 && n.speaker == nil && w.now >= n.paused {
			w.see(i, n, v)
		}
	})
}

func (w *nodesWorld) send(from, to int, m *message.RegionMessages) {
	if w.rng.Float64() < w.lose || w.now < w.cut[[2]int{from, to}] {
		return
	}
	times := 1
	if w.rng.IntN(30) == 0 {
		times = 2
	}
	for range times {
		d := w.far + w.between(0, w.far/4)
		if w.rng.IntN(50) == 0 {
			d += w.between(0, 20*time.Second)
		}
		w.after(d, func() {
			r := w.regions[to]
			k := r.at
			if r.was >= 0 && w.now < r.wasTo && w.rng.IntN(2) == 0 {
				k = r.was
			}
			n := r.nodes[k]
			if n.speaker == nil || w.now < n.paused || w.now < w.cut[[2]int{from, to}] {
				return
			}
			now := w.clock(n)
			n.speaker.step(now, m)
			w.see(to, n, n.speaker.view(now, n.view))
		})
	}
}

// decide lets every node that may decide a check with each home, and finds two regions that do.
func (w *nodesWorld) decide() {
	for _, home := range w.regions {
		by := -1
		for i, r := range w.regions {
			for _, n := range r.nodes {
				p, ok := n.view.find(home.name)
				if !ok || w.now < n.paused || w.clock(n) >= n.view.until && guard.On(guard.RoleLease) {
					continue
				}
				if by >= 0 && by != i && w.bad == "" {
					w.bad = fmt.Sprintf("%v: %s and %s decide keys of %s", time.Duration(w.now), w.regions[by].name, r.name, home.name)
				}
				by = i
				w.decideAt(i, home.name, p)
			}
		}
	}
}

func (w *nodesWorld) decideAt(i int, home string, p played) {
	if p.since == 0 && w.counters[i][home] < w.decided[home] && w.bad == "" {
		w.bad = fmt.Sprintf("%v: %s decides keys of %s and knows of %d of %d decisions", time.Duration(w.now), w.regions[i].name, home, w.counters[i][home], w.decided[home])
	}
	w.decided[home]++
	w.counters[i][home] = w.decided[home] // what it lacks may be admitted once more, as the bound says
}

// fault does something bad.
func (w *nodesWorld) fault() {
	w.after(w.between(0, 10*time.Second), w.fault)
	i, d := w.rng.IntN(len(w.regions)), w.between(0, 15*time.Second)
	r := w.regions[i]
	n := r.nodes[w.rng.IntN(len(r.nodes))]
	switch w.rng.IntN(8) {
	case 0:
		for j := range w.regions {
			w.cut[[2]int{i, j}], w.cut[[2]int{j, i}] = w.now+int64(d), w.now+int64(d)
		}
	case 1: // one way
		w.cut[[2]int{i, (i + 1) % len(w.regions)}] = w.now + int64(d)
	case 2, 3: // another node speaks, while the last one does not know for a moment
		if k := w.rng.IntN(len(r.nodes)); r.nodes[k].view != nil { // a node asks before it owns anything
			r.was, r.wasTo = r.at, w.now+int64(w.between(0, 400*time.Millisecond))
			r.at = k
		}
	case 4:
		n.alone = w.now + int64(d)
	case 5:
		n.paused = w.now + int64(d)/3
	case 6: // a node starts anew, and another one speaks
		if n != r.nodes[r.at] {
			n.speaker, n.view = nil, nil
		}
	case 7:
		w.pass(r)
	}
}

// pass passes on a role.
func (w *nodesWorld) pass(r *nodesRegion) {
	n := r.nodes[r.at]
	if n.speaker == nil || w.now < n.paused || n.view == nil || len(n.view.plays) == 0 {
		return
	}
	p, to := n.view.plays[w.rng.IntN(len(n.view.plays))], r.others[w.rng.IntN(len(r.others))]
	if n.speaker.machine.Set().Has(to) && n.speaker.startMove(w.clock(n), p, to, 8) == nil {
		w.begun++
	}
}

// TestRoleNodesSeeds: no two regions decide keys of one home at a time, whatever nodes know, and a region that has got the counters with a
// role knows of all decisions.
func TestRoleNodesSeeds(t *testing.T) {
	begun, versions := 0, uint64(0)
	for seed := range uint64(*roleSeeds) {
		w := newNodesWorld(seed, "ap", "eu", "us")
		w.run(15 * time.Second)
		w.after(0, w.fault)
		if w.run(2 * time.Minute); w.bad != "" {
			t.Errorf("seed %d: %s", seed, w.bad)
		}
		begun += w.begun
		for _, r := range w.regions {
			for _, n := range r.nodes {
				if n.view != nil {
					versions = max(versions, n.view.set.Version)
				}
			}
		}
	}
	t.Logf("%d moves of roles, %d versions", begun, versions)
}
