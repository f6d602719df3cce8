package limiter

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/rules"
)

const slotRules = `
domain: jobs
descriptors:
  - key: queue
    limits: [{algorithm: concurrency, count: 2}]
  - key: rate
    limits: [5/1h]
  - key: tokens
    limits: [{algorithm: token_bucket, count: 2, period: 10s}]
  - key: both
    limits: [{algorithm: concurrency, count: 2}, {count: 5, period: 1h}]
  - key: x
    limits: [{algorithm: concurrency, count: 1}]
  - key: y
    limits: [{algorithm: concurrency, count: 1}]
  - key: smooth
    limits: [{algorithm: leaky_queue, count: 5, period: 1h}]
`

// placed is a Cluster in which another node may own all keys.
type placed struct {
	*fakeCluster
	elsewhere atomic.Bool
	young     atomic.Bool // the key was owned elsewhere just before
	turn      func(context.Context, *facts.Turn) (moved bool)
}

func (p *placed) AskTurn(ctx context.Context, owner string, t *facts.Turn) bool {
	return p.turn(ctx, t)
}

func (p *placed) Owned(bucket.Key) time.Duration {
	if p.young.Load() {
		return gatherFor - 1
	}
	return time.Hour
}

func (p *placed) Owner(bucket.Key) (string, bool) {
	if p.elsewhere.Load() {
		return "other", false
	}
	return "self", true
}

// slotTest is a Limiter of slots on a table, in a bubble whose clock is that of the table.
type slotTest struct {
	*Limiter
	t       *testing.T
	table   *bucket.Table
	cluster placed
	down    atomic.Bool // no owner decides
	asked   atomic.Int64
	taken   atomic.Int64           // reservations
	before  atomic.Pointer[func()] // called before a decision, if set
	mu      sync.Mutex
	got     []SlotAnswer
	names   []string
}

func newSlotTest(t *testing.T) *slotTest {
	table, err := bucket.NewTable(bucket.Config{Shards: 3})
	if err != nil {
		t.Fatal(err)
	}
	s := &slotTest{t: t, table: table}
	s.Limiter = newService(t, decideFunc(func(_ context.Context, q *check.Batch) {
		if f := s.before.Load(); f != nil {
			(*f)()
		}
		for i := range q.Requests {
			r := &q.Requests[i]
			if s.asked.Add(1); s.down.Load() {
				q.Answers[i] = check.Answer{Err: check.ErrNoOwner}
				continue
			}
			if r.Verb == bucket.Reserve {
				s.taken.Add(1)
			}
			q.Answers[i] = check.Answer{Decision: table.Do(time.Now().UnixNano(), &r.Request), Source: check.Owned}
			if r.Verb == bucket.Settle || r.Verb == bucket.Cancel {
				s.Wake(&r.Key) // as the node does
			}
		}
	}))
	s.cluster.fakeCluster = s.Limiter.config.Cluster.(*fakeCluster)
	s.Limiter.config.Cluster = &s.cluster
	s.SetRules(parse(t, slotRules))
	return s
}

// slotBatch has a check of jobs for each of these keys.
func slotBatch(keys ...string) *Batch {
	b := NewBatch()
	for _, key := range keys {
		c := b.Add()
		c.Domain, c.Descriptor = "jobs", append(c.Descriptor, rules.Entry{Key: key, Value: "v"})
		if key == "forbidden" {
			c.Err = &Error{Code: Forbidden}
		}
	}
	return b
}

// left returns what is left of the last limit of a key.
func (s *slotTest) left(key string) int64 {
	b := slotBatch(key)
	defer b.Release()
	rule, _ := s.Rules().Match("jobs", b.Checks[0].Descriptor)
	list, _ := s.table.Look(time.Now().UnixNano(), s.counterKey(b, &b.Checks[0], rule), rule.Limits)
	return list[len(list)-1].Remaining
}

// ask asks for a slot of jobs/key with units of other keys, and keeps the answer under a name.
func (s *slotTest) ask(name, key string, r SlotRequest, with ...string) *Waiter {
	b := slotBatch(append([]string{key}, with...)...)
	w := s.Acquire(b, r, func(b *Batch, a SlotAnswer) {
		if a.Err == nil && !a.Moved && !b.Results[a.Check].Allowed {
			name += " denied"
		}
		s.mu.Lock()
		s.got, s.names = append(s.got, a), append(s.names, name)
		s.mu.Unlock()
		b.Release()
	})
	synctest.Wait()
	return w
}

// answers returns the names of those that were answered since the last call, and their answers.
func (s *slotTest) answers() (names string, list []SlotAnswer) {
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	names, list = strings.Join(s.names, ","), s.got
	s.names, s.got = nil, nil
	return names, list
}

func (s *slotTest) want(what, names string) []SlotAnswer {
	s.t.Helper()
	got, list := s.answers()
	if got != names {
		s.t.Errorf("%s: %q are answered, want %q", what, got, names)
	}
	return list
}

func slotsTest(t *testing.T, f func(t *testing.T, s *slotTest)) {
	synctest.Test(t, func(t *testing.T) { f(t, newSlotTest(t)) })
}

var waiting = SlotRequest{Units: 1, Wait: true}

func TestSlots(t *testing.T) {
	slotsTest(t, func(t *testing.T, s *slotTest) {
		for _, name := range []string{"a", "b", "c", "d"} {
			s.ask(name, "queue", waiting)
		}
		held := s.want("two are free", "a,b")
		if held[0].Fence == 0 || held[1].Fence <= held[0].Fence || held[0].ID == "" || time.Until(held[0].Until) != SlotTTL {
			t.Errorf("%+v", held)
		}
		s.ask("e", "queue", SlotRequest{Units: 1})
		s.want("nobody passes others", "e denied")
		s.ReleaseSlots(t.Context(), []Slot{held[0].Slot})
		third := s.want("one is free", "c")
		time.Sleep(SlotTTL - time.Millisecond)
		if ok := s.RenewSlots(t.Context(), []Slot{held[0].Slot, third[0].Slot}); ok[0] || !ok[1] {
			t.Errorf("renewed: %v", ok)
		}
		s.want("they last", "")
		time.Sleep(time.Millisecond)
		s.want("one has ended", "d")
		s.ask("f", "queue", waiting)
		time.Sleep(SlotTTL)
		s.want("a renewed one has ended", "f")
		if n, settled := s.lines.count.Load(), s.Stats().Reservations.Settled; n != 0 || settled != 1 {
			t.Errorf("%d lines are left; %d slots were settled, want the released one", n, settled)
		}
	})
}

func TestInvalidSlots(t *testing.T) {
	slotsTest(t, func(t *testing.T, s *slotTest) {
		for _, c := range []struct {
			key, want string
			r         SlotRequest
		}{
			{"queue", "invalid units", SlotRequest{Units: 0}},
			{"queue", "invalid weight", SlotRequest{Units: 1, Weight: -1}},
			{"queue", "invalid tenant", SlotRequest{Units: 1, Tenant: strings.Repeat("t", MaxTenant+1)}},
			{"queue", "invalid units", SlotRequest{Units: 3, Wait: true}}, // more than there are
			{"rate", "invalid descriptor", waiting},
			{"forbidden", "forbidden", waiting},
			{"unknown", "", waiting}, // no rule, and so no slot
		} {
			s.ask("x", c.key, c.r)
			if a := s.want(c.key, "x")[0]; a.ID != "" || a.Err == nil && c.want != "" || a.Err != nil && told(a.Err, "") != c.want {
				t.Errorf("%+v: %+v, want %s", c, a, c.want)
			}
		}
		if _, err := s.Slot("nobody's"); err == nil {
			t.Error("a slot of nobody")
		}
		s.ask("held", "queue", SlotRequest{Units: 2, Wait: true})
		for range MaxWaiting {
			s.Acquire(slotBatch("queue"), waiting, func(b *Batch, _ SlotAnswer) { b.Release() })
		}
		s.want("both units", "held")
		s.ask("x", "queue", waiting)
		if a := s.want("one too many", "x")[0]; a.Err != ErrBusy {
			t.Errorf("%+v", a)
		}
		s.cluster.elsewhere.Store(true)
		s.Wake(nil)
		synctest.Wait()
	})
}

// Those who wait for something of their own do not hold up others, whatever becomes of their owner, their rule or themselves.
func TestTrap13_WaitersGoOn(t *testing.T) {
	slotsTest(t, func(t *testing.T, s *slotTest) {
		s.ask("held", "queue", SlotRequest{Units: 2, Wait: true})
		held := s.want("both", "held")
		gone := s.ask("gone", "queue", waiting)
		s.ask("next", "queue", waiting)
		if !gone.Cancel() || gone.Cancel() {
			t.Error("a request is canceled once")
		}
		asked := s.asked.Load()
		s.ReleaseSlots(t.Context(), []Slot{held[0].Slot})
		next := s.want("the canceled one is passed over", "next")
		if n := s.asked.Load() - asked; n != 2 { // settle and reserve
			t.Errorf("%d decisions for a slot", n)
		}
		// Its caller goes while it is given a slot: that is given back.
		s.ask("second", "queue", waiting)
		second := s.want("the other unit", "second")
		late := s.ask("late", "queue", waiting)
		cancel := func() { late.Cancel() }
		s.before.Store(&cancel)
		s.ReleaseSlots(t.Context(), []Slot{second[0].Slot})
		synctest.Wait()
		s.before.Store(nil)
		s.want("canceled in time", "")
		// A limit is raised.
		s.ask("b", "queue", waiting)
		s.ask("c", "queue", waiting)
		s.want("one is free", "b")
		s.SetRules(parse(t, strings.Replace(slotRules, "count: 2", "count: 3", 1)))
		s.want("one more", "c")
		// The owner is away for a while, and then another node.
		s.down.Store(true)
		s.ask("d", "queue", waiting)
		s.ask("e", "queue", SlotRequest{Units: 1})
		s.want("no owner", "e denied")
		s.down.Store(false)
		s.RenewSlots(t.Context(), []Slot{next[0].Slot})
		time.Sleep(time.Second)
		s.want("all are held", "")
		s.cluster.elsewhere.Store(true)
		s.Wake(nil)
		if a := s.want("moved", "d")[0]; !a.Moved || !a.Waited || a.Owner != "other" || a.ID != "" {
			t.Errorf("%+v", a)
		}
		s.ask("f", "queue", waiting)
		if a := s.want("elsewhere", "f")[0]; !a.Moved || a.Waited {
			t.Errorf("%+v", a)
		}
	})
}

// Requests that come from another node's line are served by arrival, once all had time to come.
func TestSlotsGather(t *testing.T) {
	slotsTest(t, func(t *testing.T, s *slotTest) {
		now := time.Now()
		for _, name := range []string{"c", "a", "d", "b"} {
			r := waiting
			r.Arrival = now.Add(-time.Hour + time.Duration(name[0])*time.Second)
			s.ask(name, "queue", r)
		}
		s.ask("new", "queue", waiting)
		s.want("others may come", "")
		time.Sleep(gatherFor)
		held := s.want("the first two", "a,b")
		s.ReleaseSlots(t.Context(), []Slot{held[0].Slot, held[1].Slot})
		held = s.want("the next two", "c,d")
		s.ReleaseSlots(t.Context(), []Slot{held[0].Slot})
		s.want("the last one", "new")
	})
	// Those who have waited elsewhere come a moment after the first new one.
	slotsTest(t, func(t *testing.T, s *slotTest) {
		s.cluster.young.Store(true)
		s.ask("new", "queue", waiting)
		s.want("others may come", "")
		time.Sleep(gatherFor / 2)
		for _, name := range []string{"a", "b"} {
			s.ask(name, "queue", SlotRequest{Units: 1, Wait: true, Arrival: time.Now().Add(-time.Second)})
		}
		time.Sleep(gatherFor / 2)
		held := s.want("those that have moved", "a,b")
		s.ReleaseSlots(t.Context(), []Slot{held[0].Slot})
		s.want("and the new one", "new")
	})
}

// However many tenants come, a line remembers no more of them than wait in it, about, and none of
// those that are new passes a request over and over, whatever the weights and the units are that
// they come with.
func TestSlotTenants(t *testing.T) {
	for name, next := range map[string]func(i int) SlotRequest{
		"alike": func(int) SlotRequest { return SlotRequest{Units: 1} },
		"large": func(i int) SlotRequest { return SlotRequest{Units: 1 + int64(i)%2} },
		"heavy": func(i int) SlotRequest { return SlotRequest{Units: 1, Weight: []int64{1, MaxWeight}[i%2]} },
	} {
		slotsTest(t, func(t *testing.T, s *slotTest) {
			var held []Slot
			served, passed, most := map[string]bool{}, 0, 0
			take := func(what string) {
				names, list := s.answers()
				for i, n := range strings.Split(names, ",") {
					if n == "" {
						continue
					}
					if served["first"] && !served["second"] && n != "second" {
						passed++
					}
					served[n] = true
					if list[i].Err != nil || list[i].ID == "" {
						t.Fatalf("%s, %s: %+v", name, what, list[i])
					}
					held = append(held, list[i].Slot)
				}
			}
			s.ask("both", "queue", SlotRequest{Units: 2, Wait: true})
			take("both")
			s.ask("first", "queue", SlotRequest{Units: 2, Wait: true, Tenant: "early"})
			s.ask("second", "queue", SlotRequest{Units: 1, Wait: true, Tenant: "early"})
			for i := range 3000 {
				r := next(i)
				r.Wait, r.Tenant = true, strconv.Itoa(i)
				s.ask(r.Tenant, "queue", r)
				take("added")
				for _, k := range s.lines.byKey {
					if most = max(most, len(k.tenants)); len(served)+k.size > i+4 {
						t.Errorf("%s: %d are served and %d wait of %d", name, len(served), k.size, i+4)
					}
					for k.size > 2 && len(held) > 0 {
						s.ReleaseSlots(t.Context(), held[:1])
						held = held[1:]
						take("released")
					}
				}
			}
			if most > 30 || passed > map[string]int{"alike": 6, "large": 6, "heavy": oldestEach}[name] || !served["second"] {
				t.Errorf("%s: %d tenants are remembered of two or three in the line; %d that came later passed the second of one; it was served: %v", name, most, passed, served["second"])
			}
			s.cluster.elsewhere.Store(true)
			s.Wake(nil)
			synctest.Wait()
		})
	}
}

// A slot with units of other keys: all or none. What is spent of other limits stays spent, slots of all keys end together, and a request that
// another key denies holds nobody up.
func TestSlotWithOthers(t *testing.T) {
	slotsTest(t, func(t *testing.T, s *slotTest) {
		wantLeft := func(what string, queue, both, rate int64) {
			t.Helper()
			if q, b, r := s.left("queue"), s.left("both"), s.left("rate"); q != queue || b != both || r != rate {
				t.Errorf("%s: %d, %d and %d are left, want %d, %d and %d", what, q, b, r, queue, both, rate)
			}
		}
		s.ask("a", "queue", waiting, "both", "rate")
		a := s.want("all are free", "a")[0]
		wantLeft("one", 1, 4, 4)
		s.ReleaseSlots(t.Context(), []Slot{a.Slot})
		wantLeft("released", 2, 4, 4)
		s.ask("b", "queue", SlotRequest{Units: 2}, "both", "rate")
		b := s.want("two units", "b")[0]
		if s.ask("c", "both", SlotRequest{Units: 1}, "queue", "rate"); s.want("denied", "c denied")[0].Check != 0 {
			t.Error("the first check denies it")
		}
		wantLeft("denied", 0, 2, 2)
		s.ReleaseSlots(t.Context(), []Slot{b.Slot})
		if s.ask("d", "queue", SlotRequest{Units: 2}, "tokens", "rate", "both"); s.want("all but its own slots", "d")[0].ID == "" {
			t.Error("nothing is held")
		}
		wantLeft("d", 0, 0, 0)
		time.Sleep(SlotTTL)
		wantLeft("its slots have ended, no more", 2, 0, 0)
		s.ask("e", "queue", SlotRequest{Units: 1}, "rate")
		if a := s.want("the rate", "e denied")[0]; a.Check != 1 || a.ID != "" {
			t.Errorf("%+v", a)
		}
		for others, want := range map[string]string{"smooth": "1 invalid descriptor", strings.Repeat("rate ", MaxBudgets): "0 invalid checks", "forbidden": "1 forbidden"} {
			s.ask("f", "queue", waiting, strings.Fields(others)...)
			if a := s.want(others, "f")[0]; a.Err == nil || fmt.Sprint(a.Check, " ", told(a.Err, "")) != want {
				t.Errorf("with %s: %+v, want %s", others, a, want)
			}
		}
		wantLeft("none of them", 2, 0, 0)
		// One waits for tokens, and others pass it. It is the first again when they are there.
		taken := s.taken.Load()
		s.ask("tokens", "queue", waiting, "tokens")
		if time.Sleep(2500 * time.Millisecond); s.taken.Load() != taken+2 {
			t.Errorf("%d reservations were made and canceled while it waits, want that of its first attempt", s.taken.Load()-taken)
		}
		s.ask("i", "queue", waiting)
		s.ask("j", "queue", waiting)
		held := s.want("they pass it", "i,j")
		time.Sleep(SlotTTL / 2)
		s.RenewSlots(t.Context(), []Slot{held[0].Slot, held[1].Slot})
		gone := s.ask("gone", "queue", waiting, "tokens")
		s.ask("k", "queue", waiting)
		for range 10 {
			time.Sleep(time.Second)
			s.RenewSlots(t.Context(), []Slot{held[0].Slot, held[1].Slot})
		}
		s.want("none is free", "")
		s.ReleaseSlots(t.Context(), []Slot{held[0].Slot})
		tokens := s.want("in order", "tokens")
		gone.Cancel()
		s.ReleaseSlots(t.Context(), []Slot{held[1].Slot, tokens[0].Slot})
		s.want("the last one", "k")
		if time.Sleep(time.Minute); s.lines.count.Load() != 0 {
			t.Error("a line is left")
		}
	})
}

// Reserve with Wait stands in the same line as the sessions, here and at the node that owns the key.
func TestReserveWaits(t *testing.T) {
	slotsTest(t, func(t *testing.T, s *slotTest) {
		s.config.MaxWait = 1500 * time.Millisecond
		s.ask("a", "queue", waiting)
		s.ask("b", "queue", waiting)
		held := s.want("both units", "a,b")
		var all sync.WaitGroup
		reserve := func(name string, r ReserveRequest, keys ...string) {
			all.Go(func() {
				b, began := slotBatch(keys...), time.Now()
				defer b.Release()
				got, err := s.Reserve(t.Context(), b, r)
				if allowed, _, _ := Overall(b.Results); err == nil && allowed != (got.ID != "") {
					t.Errorf("%s: %+v", name, got)
				} else if !allowed {
					name += " denied after " + time.Since(began).String()
				}
				s.mu.Lock()
				s.names, s.got = append(s.names, name), append(s.got, SlotAnswer{ID: got.ID, Until: time.Now().Add(got.ExpiresAfter)})
				s.mu.Unlock()
			})
			synctest.Wait()
		}
		reserve("first", ReserveRequest{Units: 1, TTL: time.Minute, Wait: time.Second}, "queue", "rate")
		s.ask("second", "queue", waiting)
		reserve("third", ReserveRequest{Units: 1, Wait: time.Hour}, "queue")
		s.ReleaseSlots(t.Context(), []Slot{held[0].Slot})
		list := s.want("in order", "first")
		s.ReleaseSlots(t.Context(), []Slot{held[1].Slot})
		list = append(list, s.want("in order", "second")...)
		if got := time.Until(list[0].Until); got != time.Minute {
			t.Errorf("it lasts %v", got)
		}
		if left := s.left("rate"); left != 4 {
			t.Errorf("%d are left of the rate, which is reserved too", left)
		}
		time.Sleep(time.Second)
		s.RenewSlots(t.Context(), []Slot{list[1].Slot})
		s.want("none is free", "")
		time.Sleep(500 * time.Millisecond)
		s.want("no longer than MaxWait", "third denied after 1.5s")
		reserve("fourth", ReserveRequest{Units: 1, Wait: 100 * time.Millisecond}, "queue")
		time.Sleep(100 * time.Millisecond)
		s.want("nor than it says", "fourth denied after 100ms")
		if _, err := s.Settle(t.Context(), list[0].ID, 0); err != nil || s.left("rate") != 5 {
			t.Error(err, "the reservation of the rate is not returned")
		}
		// Another node has the line: it reserves, or has moved it on.
		s.cluster.elsewhere.Store(true)
		var turns []facts.Turn
		s.cluster.turn = func(ctx context.Context, turn *facts.Turn) bool {
			turns = append(turns, *turn)
			if len(turns) == 1 {
				return true
			}
			s.cluster.elsewhere.Store(false)
			return s.AwaitTurn(ctx, turn)
		}
		reserve("elsewhere", ReserveRequest{Units: 1, Least: 1, TTL: time.Minute, Wait: time.Second}, "queue")
		time.Sleep(retrySlot + gatherFor)
		s.want("its turn", "elsewhere")
		if x := turns[1]; len(turns) != 2 || x.Waited != retrySlot || x.Units != 1 || x.Least != 1 || x.TTL != time.Minute || x.Key == "" || x.Checks[0].Descriptor[0] != "queue" {
			t.Errorf("%+v", turns)
		}
		all.Wait()
		if n := s.lines.count.Load(); n != 0 {
			t.Errorf("%d lines are left", n)
		}
		for field, r := range map[string]ReserveRequest{
			"wait": {Units: 1, Wait: -1}, "descriptor": {Units: 1, Wait: 1}, "lease": {Units: 1, Wait: 1, Lease: true},
		} {
			if _, err := s.Reserve(t.Context(), slotBatch("rate", "queue"), r); err == nil || err.(*Error).Field != field {
				t.Errorf("%+v: %v", r, err)
			}
		}
		inline := slotBatch("queue")
		inline.Checks[0].Limits = []bucket.Limit{{Algorithm: bucket.Concurrency, Count: 1}}
		if _, err := s.Reserve(t.Context(), inline, ReserveRequest{Units: 1, Wait: 1}); err == nil || err.(*Error).Field != "wait" {
			t.Error(err)
		}
	})
}

// Requests that want slots of the same keys, the other way round, all get them.
func TestSlotsCrosswise(t *testing.T) {
	slotsTest(t, func(t *testing.T, s *slotTest) {
		const each = 50
		began := time.Now()
		for i := range each {
			s.ask(strconv.Itoa(i), "x", waiting, "y")
			s.ask(strconv.Itoa(i), "y", waiting, "x")
		}
		for n := 0; n < 2*each; {
			_, list := s.answers()
			for _, a := range list {
				if a.ID == "" {
					t.Fatalf("%+v", a)
				}
				s.ReleaseSlots(t.Context(), []Slot{a.Slot})
			}
			n += len(list)
			time.Sleep(time.Millisecond)
		}
		t.Log("after", time.Since(began))
		if took := time.Since(began); took > 2*each*lastPause {
			t.Errorf("after %v", took)
		}
	})
}

// TestSlotWeights: tenants that wait all the time get slots by weight.
func TestSlotWeights(t *testing.T) {
	k, got := &line{tenants: map[string]*tenant{}}, map[string]int{}
	for i := range 800 {
		w := &Waiter{request: SlotRequest{Tenant: []string{"a", "b"}[i%2], Weight: []int64{1, 3}[i%2]}, number: uint64(i)}
		k.addLocked(w)
	}
	for range 400 {
		w := k.nextLocked()
		w.removeLocked(2)
		got[w.request.Tenant]++
	}
	if got["a"] < 99 || got["a"] > 101 || k.size != 400 || k.weight != 4 {
		t.Errorf("%v of 400, %d wait with a weight of %v", got, k.size, k.weight)
	}
}
