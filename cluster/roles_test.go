package cluster

import (
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
	"github.com/sluicecluster/sluice/internal/message"
)

var roleSeeds = flag.Int("role-seeds", 25, "worlds of each test of roles; make test-long has more")

// roleWorld is regions that only have speakers, and the wide area between them: late, lost and reordered messages, cuts in one direction or
// both, speakers that end and that stand still, and clocks that run at different speeds.
type roleWorld struct {
	rng     *rand.Rand
	now     int64
	events  roleEvents
	seq     int
	regions []*roleRegion
	cut     map[[2]int]int64 // until then nothing gets from one region to the other
	far     time.Duration
	lose    float64
	bad     string
	// moves counts the times that a region began to play another's role, idle is since when nobody plays a role.
	moves int
	idle  map[string]int64
	most  map[string]time.Duration // the longest time that nobody played it
	ended bool                     // no more faults begin
}

type roleRegion struct {
	name    string
	others  []string
	speed   float64
	speaker *speaker
	view    *roleView
	boots   int
	paused  int64
	dead    bool
	anew    int64           // when it began anew
	lacks   map[string]bool // the homes whose counters it had before that, and not since, while others remember that
}

type roleEvent struct {
	at  int64
	seq int
	do  func()
}

type roleEvents []roleEvent

func (h roleEvents) Len() int { return len(h) }
func (h roleEvents) Less(i, j int) bool {
	return h[i].at < h[j].at || h[i].at == h[j].at && h[i].seq < h[j].seq
}
func (h roleEvents) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *roleEvents) Push(x any)   { *h = append(*h, x.(roleEvent)) }
func (h *roleEvents) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func (w *roleWorld) after(d time.Duration, do func()) {
	w.seq++
	heap.Push(&w.events, roleEvent{w.now + int64(d), w.seq, do})
}

// clock is the region's.
func (w *roleWorld) clock(r *roleRegion) int64 {
	return int64(time.Hour) + int64(float64(w.now)*r.speed)
}

func newRoleWorld(seed uint64, names ...string) *roleWorld {
	w := &roleWorld{rng: rand.New(rand.NewPCG(seed, 1)), cut: map[[2]int]int64{}, idle: map[string]int64{}, most: map[string]time.Duration{}}
	w.far = 25*time.Millisecond + rand1(w, 275*time.Millisecond)
	w.lose = w.rng.Float64() * 0.03
	for i, name := range names {
		r := &roleRegion{name: name, others: slices.Delete(slices.Clone(names), i, i+1), speed: 0.98 + 0.04*w.rng.Float64()}
		w.regions = append(w.regions, r)
		w.after(rand1(w, time.Second), func() { w.turn(i) })
	}
	return w
}

func rand1(w *roleWorld, d time.Duration) time.Duration {
	return time.Duration(w.rng.Int64N(int64(d)))
}

// turn is Node.turnRoles.
func (w *roleWorld) turn(i int) {
	r := w.regions[i]
	w.after(rolesPeriod, func() { w.turn(i) })
	if r.dead || w.now < r.paused {
		return
	}
	now := w.clock(r)
	if r.speaker == nil || r.speaker.stuck(now) {
		r.boots++
		r.speaker = newSpeaker(now, r.name, fmt.Sprintf("%s~%d", r.name, r.boots), r.others, r.view, r.speaker != nil)
	}
	out := r.speaker.tick(now)
	for to, other := range w.regions {
		if m := out[other.name]; m != nil {
			w.send(i, to, m)
		}
	}
	w.see(r, r.speaker.view(now, r.view))
	w.check()
}

func (w *roleWorld) see(r *roleRegion, v *roleView) {
	for _, p := range v.plays {
		if _, ok := r.view.find(p.of); !ok && p.of != r.name {
			w.moves++
		}
		if p.since == 0 && r.lacks[p.of] && w.bad == "" {
			w.bad = fmt.Sprintf("%v: %s says that it has the counters of %s, and has begun anew", time.Duration(w.now), r.name, p.of)
		}
		delete(r.lacks, p.of)
	}
	r.view = v
}

func (w *roleWorld) send(from, to int, m *message.RegionMessages) {
	if w.rng.Float64() < w.lose || w.now < w.cut[[2]int{from, to}] {
		return
	}
	w.after(w.far+rand1(w, w.far/4+1), func() {
		r := w.regions[to]
		if r.speaker == nil || r.dead || w.now < r.paused || w.now < w.cut[[2]int{from, to}] {
			return
		}
		now := w.clock(r)
		r.speaker.step(now, m)
		w.see(r, r.speaker.view(now, r.view))
		w.check()
	})
}

// players returns the regions that decide keys with that home.
func (w *roleWorld) players(of string) (names []string) {
	for _, r := range w.regions {
		if _, ok := r.view.find(of); ok && !r.dead && w.now >= r.paused && (w.clock(r) < r.view.until || !guard.On(guard.RoleLease)) {
			names = append(names, r.name)
		}
	}
	return names
}

// check notes when two regions decide keys of one home, and how long none does.
func (w *roleWorld) check() {
	for _, r := range w.regions {
		switch who := w.players(r.name); {
		case len(who) > 1 && w.bad == "":
			w.bad = fmt.Sprintf("%v: %v decide keys of %s", time.Duration(w.now), who, r.name)
		case len(who) > 0:
			w.idle[r.name] = 0
		case w.idle[r.name] == 0:
			w.idle[r.name] = w.now
		default:
			w.most[r.name] = max(w.most[r.name], time.Duration(w.now-w.idle[r.name]))
		}
	}
}

func (w *roleWorld) run(d time.Duration) {
	end := w.now + int64(d)
	for len(w.events) > 0 && w.events[0].at <= end && w.bad == "" {
		e := heap.Pop(&w.events).(roleEvent)
		w.now = e.at
		e.do()
	}
	w.now = end
}

// isolate cuts a region off both ways.
func (w *roleWorld) isolate(i int, d time.Duration) {
	for j := range w.regions {
		w.cut[[2]int{i, j}], w.cut[[2]int{j, i}] = w.now+int64(d), w.now+int64(d)
	}
}

// fault does something bad.
func (w *roleWorld) fault() {
	if w.ended {
		return
	}
	i := w.rng.IntN(len(w.regions))
	r, d := w.regions[i], rand1(w, 20*time.Second)
	switch w.rng.IntN(6) {
	case 0:
		w.isolate(i, d)
	case 1: // one way
		w.cut[[2]int{i, (i + 1) % len(w.regions)}] = w.now + int64(d)
	case 2: // flapping
		for k := range int64(4) {
			w.after(time.Duration(k)*3*time.Second, func() { w.isolate(i, 1500*time.Millisecond) })
		}
	case 3: // another node speaks, which may not know what the last one did
		if r.speaker = nil; w.rng.IntN(2) == 0 && w.now >= r.paused && r.view != nil {
			v := *r.view
			v.until = min(v.until, w.clock(r)) // its view is old
			r.view = &v
		}
	case 4: // the region starts anew as a whole
		w.beginAnew(r)
	case 5:
		r.paused = w.now + int64(d)/4
	}
	w.after(rand1(w, 12*time.Second), w.fault)
}

// beginAnew starts a region anew as a whole, without any state.
func (w *roleWorld) beginAnew(r *roleRegion) {
	recent := false
	for _, other := range w.regions {
		if other != r {
			recent = recent || other.anew != 0 && w.now-other.anew < int64(time.Minute)
			other.lacks = nil // nobody may remember
		}
	}
	if r.lacks = nil; !recent && r.view != nil {
		r.lacks = map[string]bool{}
		for _, p := range r.view.plays {
			r.lacks[p.of] = true
		}
	}
	r.speaker, r.view, r.anew = nil, nil, w.now
}

// TestRoleBegun: a region that starts anew within the time in which others do not take over its role says that it lacks the counters, and
// one that starts for the first time does not.
func TestRoleBegun(t *testing.T) {
	for seed := range uint64(*roleSeeds) {
		w := newRoleWorld(seed, "ap", "eu", "us")
		w.run(15 * time.Second)
		for _, r := range w.regions {
			if p, ok := r.view.find(r.name); !ok || p.since != 0 {
				t.Fatalf("seed %d: %s, after its first start: %+v", seed, r.name, r.view.plays)
			}
		}
		w.beginAnew(w.regions[1])
		w.run(15 * time.Second)
		if w.bad != "" || len(w.regions[1].view.plays) == 0 {
			t.Fatalf("seed %d: %s %+v", seed, w.bad, w.regions[1].view.plays)
		}
	}
}

// TestRolesSeeds: whatever happens, no two regions decide keys of one home at a time, and each home is decided when all is well again.
func TestRolesSeeds(t *testing.T) {
	moves := 0
	for seed := range uint64(*roleSeeds) {
		w := newRoleWorld(seed, "ap", "eu", "us")
		w.run(15 * time.Second)
		w.after(0, w.fault)
		w.run(2 * time.Minute)
		w.ended = true
		w.run(time.Minute)
		for _, r := range w.regions {
			if who := w.players(r.name); len(who) != 1 && w.bad == "" {
				w.bad = fmt.Sprintf("%v decide keys of %s when all is well again", who, r.name)
			}
		}
		moves += w.moves
		if w.bad != "" {
			t.Fatalf("seed %d: %s", seed, w.bad)
		}
	}
	t.Logf("%d times a region took over", moves)
	if moves < *roleSeeds/4 {
		t.Error("not much has happened")
	}
}

// TestRoles: the role of a region that is cut off, or ends for good, is played by another within 10 s, and it comes back by hand.
func TestRoles(t *testing.T) {
	for seed := range uint64(*roleSeeds) {
		w := newRoleWorld(seed, "ap", "eu", "us")
		w.run(15 * time.Second)
		for _, r := range w.regions {
			if who := w.players(r.name); len(who) != 1 || who[0] != r.name {
				t.Fatalf("seed %d: %v decide keys of %s after a start", seed, who, r.name)
			}
			if r.view.problem != "" {
				t.Fatalf("seed %d: region %s, where nothing is wrong, says: %s", seed, r.name, r.view.problem)
			}
		}
		w.most = map[string]time.Duration{}
		eu, waited := w.regions[1], false
		w.isolate(1, time.Minute)
		for range 150 {
			w.run(100 * time.Millisecond)
			for _, r := range w.regions {
				waited = waited || r != eu && strings.HasPrefix(r.view.problem, "keys with the home eu wait")
			}
		}
		if !waited || !strings.HasPrefix(eu.view.problem, "at most half of the regions hear each other") {
			t.Fatalf("seed %d: the region that takes over said that it waits: %v; the one that is cut off says %q", seed, waited, eu.view.problem)
		}
		who := w.players("eu")
		if len(who) != 1 || who[0] == "eu" || w.most["eu"] > 10*time.Second {
			t.Fatalf("seed %d: %v decide keys of eu, which is cut off; nobody for %v", seed, who, w.most["eu"])
		}
		w.run(60 * time.Second) // healed
		if again := w.players("eu"); !slices.Equal(again, who) || !eu.speaker.machine.In() {
			t.Fatalf("seed %d: %v decide keys of eu, which is back; it was %v", seed, again, who)
		}
		at := w.regions[slices.IndexFunc(w.regions, func(r *roleRegion) bool { return r.name == who[0] })]
		p, _ := at.view.find("eu")
		if err := at.speaker.startMove(w.clock(at), p, "eu", 0); err != nil {
			t.Fatal(err)
		}
		w.run(10 * time.Second)
		if who := w.players("eu"); !slices.Equal(who, []string{"eu"}) {
			t.Fatalf("seed %d: %v decide keys of eu, to which they were passed", seed, who)
		}
		w.regions[1].dead = true
		w.most = map[string]time.Duration{}
		w.run(15 * time.Second)
		if who := w.players("eu"); len(who) != 1 || w.most["eu"] > 10*time.Second {
			t.Fatalf("seed %d: %v decide keys of eu, which has ended; nobody for %v", seed, who, w.most["eu"])
		}
		if w.bad != "" {
			t.Fatalf("seed %d: %s", seed, w.bad)
		}
	}
}

// TestRoleMoveSpeakerEnds: if another node begins to speak while a role is passed on, the region decides its keys only with a version that
// has been agreed since, so that no version can pass it on as of then.
func TestRoleMoveSpeakerEnds(t *testing.T) {
	passed, stayed := 0, 0
	for seed := range uint64(60) {
		w := newRoleWorld(seed, "ap", "eu", "us")
		w.run(15 * time.Second)
		eu := w.regions[1]
		p, _ := eu.view.find("eu")
		if err := eu.speaker.startMove(w.clock(eu), p, "us", 0); err != nil {
			t.Fatal(err)
		}
		for !eu.view.pass.Sealed {
			w.run(10 * time.Millisecond)
		}
		w.run(time.Duration(seed) * 10 * time.Millisecond)
		eu.speaker = nil
		before := eu.view.set.Version
		for len(w.players("eu")) == 0 && w.now < int64(30*time.Second) {
			w.run(10 * time.Millisecond)
		}
		who := w.players("eu")
		role, _ := eu.view.set.Role("eu")
		if len(who) != 1 || eu.view.set.Version <= before || role.At != who[0] || role.By == "" {
			t.Fatalf("seed %d: %v decide keys of eu with %+v, version %d; it was %d", seed, who, role, eu.view.set.Version, before)
		}
		if who[0] == "us" {
			passed++
			continue
		}
		stayed++
		w.run(10 * time.Second)
		if again := w.players("eu"); !slices.Equal(again, who) || eu.speaker.move != nil || w.bad != "" {
			t.Fatalf("seed %d: %v decide keys of eu, move %+v: %s", seed, again, eu.speaker.move, w.bad)
		}
	}
	if t.Logf("%d times the role was passed on, %d times it stayed", passed, stayed); passed == 0 || stayed == 0 {
		t.Error("one of both never happened")
	}
}

// TestRoleMoveLacks: a region that lacks the counters of a role says so when it passes the role on, except to the region that has them.
func TestRoleMoveLacks(t *testing.T) {
	for _, to := range []string{"ap", "eu", "us"} {
		w := newRoleWorld(1, "ap", "eu", "us")
		w.run(15 * time.Second)
		w.isolate(1, 8*time.Second)
		w.run(20 * time.Second)
		at := w.regions[slices.IndexFunc(w.regions, func(r *roleRegion) bool { return r.name == w.players("eu")[0] })]
		p, _ := at.view.find("eu")
		if p.since == 0 || to == at.name {
			continue
		}
		lacks := w.clock(at) - p.since
		if err := at.speaker.startMove(w.clock(at), p, to, 0); err != nil {
			t.Fatal(err)
		}
		w.run(8 * time.Second)
		r := w.regions[slices.IndexFunc(w.regions, func(r *roleRegion) bool { return r.name == to })]
		got, ok := r.view.find("eu")
		if age := w.clock(r) - got.since; !ok || (got.since == 0) != (to == "eu") || got.since != 0 && (age < lacks || age > lacks+int64(8*time.Second)) {
			t.Errorf("%s lacks counters for %v, passed on by %s, which did for %v", to, time.Duration(age), at.name, time.Duration(lacks))
		}
	}
}

// TestRolesOfTwo: of two regions neither takes over what the other decides, until an operator says that it is stopped.
func TestRolesOfTwo(t *testing.T) {
	w := newRoleWorld(1, "eu", "us")
	w.run(15 * time.Second)
	w.isolate(0, 30*time.Second)
	w.run(20 * time.Second)
	for _, name := range []string{"eu", "us"} {
		if who := w.players(name); !slices.Equal(who, []string{name}) || w.most[name] > 12*time.Second {
			t.Fatalf("%v decide keys of %s, nobody for %v", who, name, w.most[name])
		}
	}
	us := w.regions[1]
	if want := "`sluice regions promote us --home eu --stopped`"; !strings.Contains(us.view.problem, want) {
		t.Errorf("the other region says %q, want it to name %s", us.view.problem, want)
	}
	w.regions[0].dead = true
	if err := us.speaker.machine.Forget(w.clock(us), "eu"); err != nil {
		t.Fatal(err)
	}
	w.run(10 * time.Second)
	if who := w.players("eu"); !slices.Equal(who, []string{"us"}) {
		t.Fatalf("%v decide keys of eu, which is stopped", who)
	}
	if us.view.problem != "" {
		t.Errorf("after that the region says %q", us.view.problem)
	}
	w.regions[0].dead, w.regions[0].speaker, w.regions[0].view = false, nil, nil
	w.run(20 * time.Second)
	if who := w.players("eu"); !slices.Equal(who, []string{"us"}) || w.bad != "" {
		t.Fatalf("%v decide keys of eu, which is back: %s", who, w.bad)
	}
}

// TestRolesList: a region joins the set when a majority has it in its list, and one that is taken out of all lists leaves it.
func TestRolesList(t *testing.T) {
	w := newRoleWorld(3, "ap", "de", "eu", "us")
	de := w.regions[1]
	for i, r := range w.regions {
		if i != 1 {
			r.others = slices.DeleteFunc(slices.Clone(r.others), func(name string) bool { return name == "de" })
		}
	}
	list := func(r *roleRegion, others ...string) {
		r.others = others
		r.speaker.setOthers(w.clock(r), others)
	}
	members := func(want ...string) {
		t.Helper()
		for _, r := range w.regions {
			if got := r.speaker.machine.Set().Members; slices.Contains(want, r.name) && !slices.Equal(got, want) {
				t.Errorf("%v: the set is %v in %s; want %v", time.Duration(w.now), got, r.name, want)
			}
		}
	}
	w.run(15 * time.Second)
	members("ap", "eu", "us")
	list(w.regions[0], "de", "eu", "us") // which proposes
	w.run(15 * time.Second)
	members("ap", "eu", "us")
	w.regions[3].dead = true // a region that is lost is removed all the same
	w.run(15 * time.Second)
	members("ap", "eu")
	list(w.regions[2], "ap", "de", "us")
	w.run(15 * time.Second)
	members("ap", "de", "eu")
	w.regions[3].dead = false
	list(w.regions[3], "ap", "de", "eu")
	w.run(15 * time.Second)
	members("ap", "de", "eu", "us")
	if !de.speaker.machine.In() || !slices.Equal(w.players("de"), []string{"de"}) {
		t.Errorf("%v decide keys of de", w.players("de"))
	}
	list(w.regions[0], "eu", "us")
	list(w.regions[2], "ap", "us")
	list(w.regions[3], "ap", "eu")
	w.run(15 * time.Second)
	members("ap", "eu", "us")
	for _, r := range w.regions {
		s := r.speaker
		knows := func(m any) bool { return reflect.ValueOf(m).MapIndex(reflect.ValueOf("de")).IsValid() }
		if r != de && slices.ContainsFunc([]any{s.known, s.sent, s.heard, s.lists, s.out}, knows) {
			t.Errorf("%s has entries of de, which is out", r.name)
		}
	}
	if who := w.players("de"); len(who) != 1 || who[0] == "de" || w.bad != "" {
		t.Errorf("%v decide keys of de, which is out: %s", who, w.bad)
	}
}
