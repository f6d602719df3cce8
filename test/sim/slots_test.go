package sim

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
)

// Slots of one key: the nodes, the network and the faults of the worlds of leases, with a Limiter on each node, in a bubble. Clients ask
// for slots in sessions, hold them, renew them by heartbeats, wait, follow the lines of waiters to other nodes, are stopped, killed and cut off, and
// have slow clocks. A session is a stream: its messages are late, but in order and not lost.

// slotOptions select a run, and the rules of clients and sessions to remove.
type slotOptions struct {
	seed uint64
	// fromAnswer: a client counts a slot's time from the answer on. noMargin: it uses all of it. renewsAll: an answered heartbeat
	// renews slots that the node did not have when it was sent. unheeding: it does not heed the slots that were not renewed. forgets:
	// it does not say how long it has waited elsewhere.
	fromAnswer, noMargin, renewsAll, unheeding, forgets bool
}

// slotResult counts what has happened.
type slotResult struct {
	violation                                                        *Violation
	granted, renewed, resumed, waited, moved, lost, killed, handoffs int
}

const (
	slotTime   = 20 * time.Second
	slotMargin = 8 // as in package sluice
	slotBeat   = 400 * time.Millisecond
	// slotSilence ends a session at a node.
	slotSilence = 1500 * time.Millisecond
	// slotOrder is how much earlier a request has come that must not be passed.
	slotOrder = time.Second
	// slotMoves is how long after a change of owner a new request may come before those that have moved.
	slotMoves = 150 * time.Millisecond
	// slotIdle is how long a unit may be free while requests wait, slotIdleOwned the same where the owner has not changed for slotOrder: less
	// than the time after which a line asks again by itself.
	slotIdle, slotIdleOwned = 300 * time.Millisecond, 130 * time.Millisecond
	// slotEnd is how much longer than its time a slot of a dead client may be held, for what is still on its way.
	slotEnd = time.Second
	// slotSync is how old a replica is at most that is not synchronous.
	slotSync = 300 * time.Millisecond
)

// slotSim is the state of a run. mu guards it against the goroutines of limiters, which are idle between two events.
type slotSim struct {
	*leaseSimCluster
	slotResult
	o       slotOptions
	mu      sync.Mutex
	began   time.Time
	count   int64
	rules   *rules.Set
	hasher  limiter.Hasher
	places  []*slotPlace
	clients []*slotClient
	asks    []*slotAsk // that wait
	// owned is the owner of which lines were told, idle since when units are free while requests wait, or 0.
	owned       *leaseNode
	since, idle int64 // since is when it became the owner
	// async: the replica is up to slotSync behind. crashed is when an owner has.
	async   bool
	short   int // of so many slots one is held for long
	crashed int64
	fence   uint64
	key     bucket.Key
	numbers map[uint64]uint64
	closed  bool
	calls   []func() // to make without mu
}

// slotPlace is a process of a node.
type slotPlace struct {
	limiter.Cluster
	w       *slotSim
	p       *leaseNode
	boot    int
	limiter *limiter.Limiter
	rng     *rand.Rand // since lines of two nodes may go on at one moment
}

// slotClient is a client process.
type slotClient struct {
	up          bool
	paused, cut int64
	slow        float64 // the part of a second that its clock loses in each
	sessions    []*slotSession
	held        []*slotHeld
}

// slotSession is a session, as its client and as its node see it.
type slotSession struct {
	c        *slotClient
	place    *slotPlace
	up, down int64 // when the last messages arrive
	// Of the client.
	last, beat, answered uint64
	sent                 map[uint64]int64 // heartbeats
	asked                map[uint64]*slotAsk
	ended                bool
	// Of the node.
	heard, pending uint64
	at             int64
	slots          map[uint64]*nodeSlot
	renewing       bool
	closed         bool
}

// slotAsk is a request of a client.
type slotAsk struct {
	c      *slotClient
	units  int64
	tenant string
	began  int64
	sent   int64
	queued bool // in a line of a node that is gone
	served bool
}

// slotHeld is a slot of a client, until a time.
type slotHeld struct {
	x            *slotSession
	id           string
	number, from uint64
	units, until int64
	over         bool
}

// nodeSlot is a slot or a request of a session at its node.
type nodeSlot struct {
	waiter            *limiter.Waiter
	slot              limiter.Slot
	ask               *slotAsk
	granted, released bool
}

var slotRules = sync.OnceValue(func() (sets []*rules.Set) {
	for n := range 5 {
		text := fmt.Sprintf("domain: jobs\ndescriptors:\n  - key: queue\n    limits: [{algorithm: concurrency, count: %d}]\n", n+1)
		set, err := rules.Parse([]rules.File{{Name: "slots.yaml", Data: []byte(text)}}, rules.Options{})
		if err != nil {
			panic(err)
		}
		sets = append(sets, set)
	}
	return sets
})

// runSlots runs the schedule of one seed.
func runSlots(t *testing.T, o slotOptions) (r slotResult) {
	synctest.Test(t, func(t *testing.T) {
		n := o.seed % 5
		w := &slotSim{o: o, numbers: map[uint64]uint64{}, count: int64(n) + 1, rules: slotRules()[n], began: time.Now()}
		sleep := func(d time.Duration) {
			w.lead()
			time.Sleep(d)
			synctest.Wait()
		}
		w.leaseSimCluster = newLeaseSimCluster(LeaseOptions{Seed: o.seed, sleep: sleep}, bucket.Limit{Algorithm: bucket.Concurrency, Count: w.count}, 200*time.Millisecond)
		w.eager = true
		var err error
		if w.hasher, err = limiter.NewHasher([]byte(strings.Repeat("s", limiter.MinSecret))); err != nil {
			t.Fatal(err)
		}
		for range 2 + w.rng.IntN(5) {
			c := &slotClient{up: true}
			if w.async = !w.healthy && o.seed/70%2 == 0; !w.healthy {
				c.slow = w.rng.Float64() / slotMargin
			}
			w.clients = append(w.clients, c)
			w.at(0, func() { w.demand(c) })
			w.at(between(w.rng, 0, slotBeat), func() { w.beats(c) })
			w.at(between(w.rng, 0, 2*time.Second), func() { w.clientFault(c) })
		}
		w.after(between(w.rng, 0, time.Second), w.leaseSimCluster.fault)
		w.short = 1 + w.rng.IntN(8)
		w.at(0, w.watch)
		w.at(0, w.catchUp)
		w.run(w.leaseSimCluster.began + int64(slotTime))
		w.end()
		r = w.slotResult
		r.violation, r.handoffs = w.Violation, w.Handoffs
		for _, s := range w.places { // lines end, and so do their goroutines
			s.boot = -1
			s.limiter.Wake(nil)
		}
		time.Sleep(10 * time.Second) // what is under way is not answered
	})
	return r
}

// clock returns the time, which is that of the bubble.
func (w *slotSim) clock() int64 { return w.leaseSimCluster.began + int64(time.Since(w.began)) }

// at does an event after d, with mu, and then its calls, without.
func (w *slotSim) at(d time.Duration, do func()) {
	w.after(max(0, d), func() {
		w.mu.Lock()
		do()
		calls := w.calls
		w.calls = nil
		w.mu.Unlock()
		synctest.Wait()
		for _, f := range calls {
			f()
			synctest.Wait()
		}
	})
}

// place returns the present process of p.
func (w *slotSim) place(p *leaseNode) *slotPlace {
	for _, s := range w.places {
		if s.p == p && s.boot == p.boot {
			return s
		}
	}
	s := &slotPlace{w: w, p: p, boot: p.boot, rng: rand.New(rand.NewPCG(w.o.seed, uint64(10+len(w.places))))}
	l, err := limiter.New(limiter.Config{Decider: s, Cluster: s, Hasher: w.hasher})
	if err != nil {
		panic(err)
	}
	l.SetRules(w.rules)
	s.limiter = l
	w.places = append(w.places, s)
	return s
}

func (s *slotPlace) live() bool { return s.p.up && s.p.boot == s.boot }

func (s *slotPlace) name() string { return fmt.Sprint(s.p.place) }

// Owner implements limiter.Cluster.
func (s *slotPlace) Owner(bucket.Key) (string, bool) {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	owner := cmp.Or(s.w.owner, s.w.next)
	if owner == nil || !s.live() {
		return "", false
	}
	return fmt.Sprint(owner.place), s.w.owner == s.p
}

// Owned implements limiter.Cluster.
func (s *slotPlace) Owned(bucket.Key) time.Duration {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.w.owner != s.p || s.w.owned != s.p {
		return 0
	}
	return time.Duration(s.w.now - s.w.since)
}

// lead tells lines that another node is the owner. The mutex also shows goroutines that timers start what was done without it.
func (w *slotSim) lead() {
	w.mu.Lock()
	same := w.owner == w.owned
	if !same {
		w.owned, w.since = w.owner, w.now
		if w.owner == nil && w.next == nil {
			w.crashed = w.now
		}
	}
	w.mu.Unlock()
	if same {
		return
	}
	for _, s := range w.places {
		if s.live() {
			s.limiter.Wake(nil)
			synctest.Wait() // one after the other, so that a seed is one schedule
		}
	}
}

// Decide implements check.Decider.
func (s *slotPlace) Decide(ctx context.Context, b *check.Batch) {
	w, over := s.w, false
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := range b.Answers {
		b.Answers[i] = check.Answer{Err: check.ErrNoOwner}
	}
	if s.live() && w.owner == s.p {
		freed := s.decide(b)
		var wait time.Duration
		if !w.async || b.Requests[0].Verb != bucket.Reserve { // for the replica
			wait = between(s.rng, 0, 5*time.Millisecond)
		}
		w.mu.Unlock()
		time.Sleep(wait)
		if freed {
			s.limiter.Wake(&b.Requests[0].Key)
		}
		w.mu.Lock()
		if !s.live() { // nothing is answered any more
			for i := range b.Answers {
				b.Answers[i] = check.Answer{Err: check.ErrNoOwner}
			}
		}
		return
	}
	for !over && s.live() && ctx.Err() == nil {
		answered := make(chan struct{}, 1)
		asked := &check.Batch{Requests: slices.Clone(b.Requests), Answers: slices.Clone(b.Answers)}
		for i := range asked.Requests {
			r := *asked.Requests[i].Reservation
			asked.Requests[i].Reservation = &r
		}
		w.sendLocked(func() {
			if w.owner == nil {
				return
			}
			h := w.place(w.owner)
			if h.decide(asked) {
				w.at(0, func() { w.calls = append(w.calls, func() { h.limiter.Wake(&asked.Requests[0].Key) }) })
			}
			w.sendLocked(func() {
				if over {
					return
				}
				over = true
				for i := range asked.Answers {
					b.Answers[i] = asked.Answers[i]
					b.Answers[i].Source = check.Forwarded
					b.Requests[i].Reservation.Reserved = asked.Requests[i].Reservation.Reserved
				}
				answered <- struct{}{}
			})
		})
		w.mu.Unlock()
		retry := time.NewTimer(90 * time.Millisecond)
		select {
		case <-answered:
		case <-ctx.Done():
		case <-retry.C:
		}
		retry.Stop()
		w.mu.Lock()
	}
	over = true
}

// sendLocked sends a message between nodes, which is for do with mu.
func (w *slotSim) sendLocked(do func()) {
	w.send(func() {
		w.mu.Lock()
		do()
		w.mu.Unlock()
		synctest.Wait()
	})
}

// decide decides b as the owner, and reports whether units may be free.
func (s *slotPlace) decide(b *check.Batch) (freed bool) {
	w := s.w
	for i := range b.Requests {
		r := &b.Requests[i].Request
		w.key, r.Once, r.Reservation.ID = r.Key, s.number(r.Once), s.number(r.Reservation.ID)
		d, _, v := s.p.table.Try(w.clock()+s.p.ahead, r, nil)
		if v == bucket.Decided {
			b.Answers[i] = check.Answer{Decision: d, Source: check.Owned, Owner: s.name()}
		}
		freed = freed || r.Verb == bucket.Settle || r.Verb == bucket.Cancel
	}
	if !w.async {
		w.confirm()
	}
	return freed
}

// number returns what stands for a random number of a Limiter, so that a seed is one schedule.
func (s *slotPlace) number(n uint64) uint64 {
	known := s.w.numbers
	if n != 0 && known[n] == 0 {
		own := uint64(time.Now().UnixMilli())<<22 | s.rng.Uint64N(1<<22)
		known[n], known[own] = own, own
	}
	return known[n]
}

// demand makes c ask for a slot now and then.
func (w *slotSim) demand(c *slotClient) {
	w.at(time.Duration(w.rng.ExpFloat64()*float64(300*time.Millisecond)), func() { w.demand(c) })
	if !c.up || w.now < c.paused || w.closed || len(w.asks) > 100 {
		return
	}
	a := &slotAsk{c: c, units: 1 + w.rng.Int64N(min(2, w.count)), tenant: "a", began: w.now}
	if w.rng.IntN(4) == 0 {
		a.tenant = "b"
	}
	w.asks = append(w.asks, a)
	w.ask(a, "")
}

// ask sends a to the node of that name, or to one that may own the key.
func (w *slotSim) ask(a *slotAsk, name string) {
	if !a.c.up || !slices.Contains(w.asks, a) {
		return
	}
	p := w.owner
	for _, o := range w.nodes {
		if o.up && (p == nil || fmt.Sprint(o.place) == name || name == "" && w.rng.IntN(10) == 0) {
			p = o
		}
	}
	if p == nil {
		w.at(50*time.Millisecond, func() { w.ask(a, "") })
		return
	}
	x := w.session(a.c, w.place(p))
	x.last++
	number, waited := x.last, int64(0)
	x.asked[number] = a
	if a.sent = w.now; a.queued && !w.o.forgets {
		waited = w.now - a.began
	}
	x.toNode(func() { x.acquire(number, a, time.Duration(waited)) })
}

// session returns that of c with s.
func (w *slotSim) session(c *slotClient, s *slotPlace) *slotSession {
	for _, x := range c.sessions {
		if x.place == s {
			return x
		}
	}
	x := &slotSession{c: c, place: s, sent: map[uint64]int64{}, asked: map[uint64]*slotAsk{}, slots: map[uint64]*nodeSlot{}, at: w.now}
	c.sessions = append(c.sessions, x)
	w.at(slotSilence, x.silent)
	return x
}

// arrival returns when a message arrives that is sent now, after the one at last.
func (x *slotSession) arrival(last *int64) time.Duration {
	w, rng := x.place.w, x.place.rng
	d := between(rng, 50*time.Microsecond, 5*time.Millisecond)
	if !w.healthy && rng.IntN(50) == 0 {
		d = between(rng, 0, 100*time.Millisecond)
	}
	*last = max(*last+1, max(w.now, x.c.cut)+int64(d))
	return time.Duration(*last - w.now)
}

// toNode does what a message is for when it arrives at the node.
func (x *slotSession) toNode(do func()) {
	w := x.place.w
	w.at(x.arrival(&x.up), func() {
		if x.place.live() && !x.closed {
			x.at = w.now
			do()
		}
	})
}

// toClient is toNode in the other direction.
func (x *slotSession) toClient(do func()) {
	w := x.place.w
	var take func()
	take = func() {
		switch {
		case x.ended || !x.c.up:
		case w.now < x.c.paused:
			x.down = max(x.down, x.c.paused)
			w.at(time.Duration(x.c.paused-w.now), take)
		default:
			do()
		}
	}
	w.at(x.arrival(&x.down), take)
}

// silent ends x at its node if nothing has come.
func (x *slotSession) silent() {
	if rest := x.at + int64(slotSilence) - x.place.w.now; rest > 0 {
		x.place.w.at(time.Duration(rest), x.silent)
		return
	}
	x.close()
}

// close ends x at its node: its requests are canceled.
func (x *slotSession) close() {
	x.closed = true
	for _, number := range x.numbers() {
		h := x.slots[number]
		h.released = true
		if h.waiter != nil {
			x.place.w.calls = append(x.place.w.calls, func() { h.waiter.Cancel() })
		}
	}
	clear(x.slots)
}

// numbers returns those of the slots at the node, in order.
func (x *slotSession) numbers() (list []uint64) {
	for n := range x.slots {
		list = append(list, n)
	}
	slices.Sort(list)
	return list
}

// acquire asks for a slot at the node.
func (x *slotSession) acquire(number uint64, a *slotAsk, waited time.Duration) {
	w, h := x.place.w, &nodeSlot{ask: a}
	x.slots[number] = h
	r := limiter.SlotRequest{Units: a.units, Wait: true, Tenant: a.tenant}
	if waited > 0 {
		r.Arrival = time.Now().Add(-waited)
	}
	w.calls = append(w.calls, func() {
		b := limiter.NewBatch()
		c := b.Add()
		c.Domain, c.Descriptor = "jobs", append(c.Descriptor, rules.Entry{Key: "queue", Value: "v"})
		waiter := x.place.limiter.Acquire(b, r, func(b *limiter.Batch, s limiter.SlotAnswer) {
			b.Release()
			w.mu.Lock()
			defer w.mu.Unlock()
			x.take(number, h, s)
		})
		w.mu.Lock()
		h.waiter = waiter
		canceled := h.released
		w.mu.Unlock()
		if canceled {
			waiter.Cancel()
		}
	})
}

// take takes the answer of h at the node.
func (x *slotSession) take(number uint64, h *nodeSlot, s limiter.SlotAnswer) {
	w := x.place.w
	if h.slot, h.granted = s.Slot, s.ID != ""; !h.granted {
		delete(x.slots, number)
	}
	if h.granted {
		if s.Fence <= w.fence {
			w.fail("fence", "%d after %d", s.Fence, w.fence)
		}
		w.fence = s.Fence
		if h.released && !x.closed {
			w.at(0, func() { go x.place.limiter.ReleaseSlots(context.Background(), []limiter.Slot{s.Slot}) })
		}
		h.ask.served = true
		w.inOrder(h.ask)
	}
	if h.released {
		return
	}
	heard, expires := x.heard, time.Until(s.Until)
	x.toClient(func() { x.answer(number, s, heard, expires) })
}

// inOrder requires that no request of the tenant has waited much longer than a, where nothing fails. A new request may come to a new owner before
// those that have moved.
func (w *slotSim) inOrder(a *slotAsk) {
	if !w.healthy || !slices.Contains(w.asks, a) || !a.queued && w.now-w.since < int64(slotMoves) {
		return
	}
	for _, o := range w.asks {
		if o.tenant == a.tenant && !o.served && (o.began+int64(slotOrder) < a.began || o.queued && a.queued && o.began+int64(20*time.Millisecond) < a.began) {
			w.fail("order", "a request of %v is passed by one of %v", time.Duration(o.began-w.leaseSimCluster.began), time.Duration(a.began-w.leaseSimCluster.began))
		}
	}
}

// answer takes the answer to a request at the client.
func (x *slotSession) answer(number uint64, s limiter.SlotAnswer, heard uint64, expires time.Duration) {
	w, a := x.place.w, x.asked[number]
	if a == nil {
		return
	}
	delete(x.asked, number)
	if s.Err != nil || s.Moved {
		a.queued = a.queued || s.Waited
		w.moved++
		if s.Err != nil || s.Owner == "" {
			w.at(between(w.rng, 20*time.Millisecond, 160*time.Millisecond), func() { w.ask(a, "") })
			return
		}
		w.ask(a, s.Owner)
		return
	}
	w.asks = slices.DeleteFunc(w.asks, func(o *slotAsk) bool { return o == a })
	if w.granted++; a.queued {
		w.waited++
	}
	h := &slotHeld{x: x, id: s.ID, number: number, from: heard, units: a.units}
	since := max(a.sent, x.sent[heard])
	if w.o.fromAnswer {
		since = w.now
	}
	h.renew(since, expires)
	x.c.held = append(x.c.held, h)
	w.audit()
	work := between(w.rng, 0, 400*time.Millisecond)
	if w.rng.IntN(w.short) == 0 {
		work *= 16 // its heartbeats renew it
	}
	w.at(work, func() { x.c.release(w, h) })
}

// renew lets h be used for a time, as its client's clock shows it.
func (h *slotHeld) renew(since int64, d time.Duration) {
	if !h.x.place.w.o.noMargin {
		d -= d / slotMargin
	}
	h.until = since + int64(float64(d)*(1+h.x.c.slow))
}

// audit requires that no more units are in use than there are. Where an owner has crashed whose replica was not synchronous, the last slots may be
// given again, but are not renewed.
func (w *slotSim) audit() {
	var units int64
	for _, c := range w.clients {
		for _, h := range c.held {
			if !h.over && w.now < h.until {
				units += h.units
			}
		}
	}
	if units > w.count && (!w.async || w.now > w.crashed+int64(limiter.SlotTTL)) {
		w.fail("slots", "%d units are in use of %d", units, w.count)
	}
}

// release ends h, which may be over, if its process can.
func (c *slotClient) release(w *slotSim, h *slotHeld) {
	switch {
	case h.over || !c.up:
		return
	case w.now < c.paused:
		w.at(time.Duration(c.paused-w.now), func() { c.release(w, h) })
		return
	}
	h.over = true
	c.held = slices.DeleteFunc(c.held, func(o *slotHeld) bool { return o == h })
	x, number := h.x, h.number
	x.toNode(func() {
		n := x.slots[number]
		if n == nil {
			return
		}
		delete(x.slots, number)
		if n.released = true; n.granted && n.slot != (limiter.Slot{}) {
			go x.place.limiter.ReleaseSlots(context.Background(), []limiter.Slot{n.slot})
		}
	})
}

// beats sends the heartbeats of c, and gives sessions up that do not answer.
func (w *slotSim) beats(c *slotClient) {
	w.at(slotBeat, func() { w.beats(c) })
	if !c.up || w.now < c.paused {
		return
	}
	for _, h := range slices.Clone(c.held) {
		if w.now >= h.until {
			w.lost++
			c.release(w, h)
		}
	}
	for _, x := range slices.Clone(c.sessions) {
		if !x.place.live() || x.beat > x.answered+1 {
			w.endSession(x)
			continue
		}
		x.beat++
		x.sent[x.beat] = w.now
		beat := x.beat
		x.toNode(func() {
			if x.heard, x.pending = beat, beat; !x.renewing {
				x.renewing = true
				x.renew()
			}
		})
	}
}

// renew answers the last heartbeat at the node.
func (x *slotSession) renew() {
	w, beat := x.place.w, x.pending
	var numbers, lost []uint64
	var list []limiter.Slot
	for _, n := range x.numbers() {
		switch h := x.slots[n]; {
		case !h.granted:
		case h.slot == limiter.Slot{}:
			lost = append(lost, n)
		default:
			numbers, list = append(numbers, n), append(list, h.slot)
		}
	}
	go func() {
		renewed := x.place.limiter.RenewSlots(context.Background(), list)
		w.mu.Lock()
		defer w.mu.Unlock()
		for i, ok := range renewed {
			if !ok {
				lost = append(lost, numbers[i])
			}
		}
		x.toClient(func() {
			x.answered = max(x.answered, beat)
			for _, h := range x.c.held {
				if h.x == x && w.now < h.until && (h.from < beat || w.o.renewsAll) && (!slices.Contains(lost, h.number) || w.o.unheeding) {
					h.renew(x.sent[beat], limiter.SlotTTL)
					w.renewed++
				}
			}
			w.audit()
		})
		if x.renewing = x.pending != beat && !x.closed; x.renewing {
			w.at(0, x.renew)
		}
	}()
}

// endSession ends x at its client, which asks anew and resumes its slots elsewhere.
func (w *slotSim) endSession(x *slotSession) {
	c := x.c
	x.toNode(x.close)
	x.ended = true
	c.sessions = slices.DeleteFunc(c.sessions, func(o *slotSession) bool { return o == x })
	var asks []*slotAsk
	for _, a := range x.asked {
		asks = append(asks, a)
	}
	slices.SortFunc(asks, func(a, b *slotAsk) int { return cmp.Compare(a.began, b.began) })
	for _, a := range asks {
		a.queued = true
		w.at(between(w.rng, 20*time.Millisecond, 160*time.Millisecond), func() { w.ask(a, "") })
	}
	next := w.other()
	for _, h := range c.held {
		if h.x != x || next == nil {
			continue
		}
		y := w.session(c, w.place(next))
		y.last++
		h.x, h.number, h.from = y, y.last, y.beat
		w.resumed++
		y.toNode(func() {
			n := &nodeSlot{granted: true}
			n.slot, _ = y.place.limiter.Slot(h.id)
			y.slots[h.number] = n
		})
	}
}

// clientFault kills, stops or cuts off c, if the run has faults.
func (w *slotSim) clientFault(c *slotClient) {
	w.at(between(w.rng, 0, 4*time.Second), func() { w.clientFault(c) })
	if w.healthy || w.closed {
		return
	}
	switch w.rng.IntN(4) {
	case 0:
		w.kill(c)
		w.at(between(w.rng, 0, 2*time.Second), func() { c.up = !w.closed })
	case 1:
		c.paused = w.now + int64(between(w.rng, 0, 4*time.Second))
	case 2:
		c.cut = w.now + int64(between(w.rng, 0, 3*time.Second))
	}
}

// kill ends the process of c. Its slots are counted until their deadlines.
func (w *slotSim) kill(c *slotClient) {
	if !c.up {
		return
	}
	c.up = false
	w.killed++
	w.asks = slices.DeleteFunc(w.asks, func(a *slotAsk) bool { return a.c == c })
	for _, x := range c.sessions {
		x.toNode(x.close)
	}
	c.sessions = nil
}

// watch requires that no unit stays free at an owner while requests wait there.
func (w *slotSim) watch() {
	w.at(20*time.Millisecond, w.watch)
	free := w.count - w.open()
	waits := false
	for _, c := range w.clients {
		for _, x := range c.sessions {
			for _, h := range x.slots {
				waits = waits || !h.granted && x.place.p == w.owner && x.place.live()
			}
		}
	}
	most := slotIdle
	if w.now-w.since > int64(slotOrder) {
		most = slotIdleOwned
	}
	switch {
	case !waits || free < min(2, w.count) || w.owner == nil || w.owner != w.owned:
		w.idle = 0
	case w.idle == 0:
		w.idle = w.now
	case w.now-w.idle > int64(most):
		w.fail("idle", "%d units are free for %v, and requests wait", free, time.Duration(w.now-w.idle))
	}
}

// catchUp brings a replica level that is not synchronous.
func (w *slotSim) catchUp() {
	if w.owner != nil && w.async {
		w.confirm()
	}
	w.at(between(w.rng, 0, slotSync), w.catchUp)
}

// open returns the units that the owner has given.
func (w *slotSim) open() int64 {
	if w.owner == nil {
		return w.count
	}
	_, units := w.owner.table.Granted(w.now+w.owner.ahead, w.key)
	return units
}

// end kills all clients, and requires that their slots are free soon.
func (w *slotSim) end() {
	w.closed = true
	w.run(w.now + int64(4*time.Second)) // until the faults of clients have ended
	w.at(0, func() {
		for _, c := range w.clients {
			w.kill(c)
		}
	})
	w.run(w.now + int64(limiter.SlotTTL+slotEnd))
	for w.owner == nil && w.Violation == nil {
		w.run(w.now + int64(10*time.Millisecond))
	}
	if n := w.open(); n > 0 {
		w.fail("leak", "%d units are held %v after the last client", n, limiter.SlotTTL+slotEnd)
	}
}

// TestSlotSeeds: whatever becomes of messages, clients and owners, no more units are in use than there are, requests are served in order,
// fences rise, and nothing leaks.
func TestSlotSeeds(t *testing.T) {
	var all slotResult
	n := max(1, *seeds/10)
	for i := range uint64(n) {
		r := runSlots(t, slotOptions{seed: *from + i})
		if r.violation != nil {
			t.Fatalf("seed %d: %v", *from+i, r.violation)
		}
		all.granted += r.granted
		all.renewed += r.renewed
		all.resumed += r.resumed
		all.waited += r.waited
		all.moved += r.moved
		all.lost += r.lost
		all.killed += r.killed
		all.handoffs += r.handoffs
	}
	t.Logf("%d granted, %d after a wait in two lines; %d requests moved; %d renewals; %d resumed, %d lost; %d clients killed; %d handoffs",
		all.granted, all.waited, all.moved, all.renewed, all.resumed, all.lost, all.killed, all.handoffs)
	if all.granted < 20*n || all.waited < n || all.renewed < 20*n || all.resumed < n || all.lost < n/2 || all.killed < n || all.handoffs < n {
		t.Error("not much has happened")
	}
}

// TestSameSeedSameSlots: a seed is one schedule.
func TestSameSeedSameSlots(t *testing.T) {
	for s := range uint64(12) {
		if a, b := runSlots(t, slotOptions{seed: s}), runSlots(t, slotOptions{seed: s}); a != b {
			t.Fatalf("seed %d: %+v, then %+v", s, a, b)
		}
	}
}

// TestSlotGuards shows for each rule of clients with slots what fails without it. TestSlotGuardsRemoved does so for the rules of the product.
func TestSlotGuards(t *testing.T) {
	for name, c := range map[string]struct {
		seed      uint64 // where the search begins: it violates the invariant
		options   slotOptions
		invariant string
	}{
		"time from the request":           {1, slotOptions{fromAnswer: true}, "slots"},
		"margin":                          {0, slotOptions{noMargin: true}, "slots"},
		"slots that the node had":         {59, slotOptions{renewsAll: true}, "slots"},
		"slots that were not renewed":     {14, slotOptions{unheeding: true}, "slots"},
		"the time waited in another line": {7, slotOptions{forgets: true}, "order"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			shows(t, c.seed, func(seed uint64) *Violation {
				c.options.seed = seed
				return runSlots(t, c.options).violation
			}, func(seed uint64) *Violation { return runSlots(t, slotOptions{seed: seed}).violation }, c.invariant)
		})
	}
}
