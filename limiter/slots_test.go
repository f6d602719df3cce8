package limiter

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/rules"
)

const slotRules = `
domain: jobs
descriptors:
  - key: queue
    limits: [{algorithm: concurrency, count: 2}]
  - key: rate
    limits: [5/1h]
`

// placed is a Cluster in which another node may own all keys.
type placed struct {
	*fakeCluster
	elsewhere atomic.Bool
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
	cluster placed
	down    atomic.Bool // no owner decides
	asked   atomic.Int64
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
	s := &slotTest{t: t}
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
			q.Answers[i] = check.Answer{Decision: table.Do(time.Now().UnixNano(), &r.Request), Source: check.Owned}
			if r.Verb == bucket.Settle {
				s.Wake(&r.Key) // as the node does
			}
		}
	}))
	s.cluster.fakeCluster = s.Limiter.config.Cluster.(*fakeCluster)
	s.Limiter.config.Cluster = &s.cluster
	s.SetRules(parse(t, slotRules))
	return s
}

// ask asks for a slot of jobs/key, and keeps the answer under a name.
func (s *slotTest) ask(name, key string, r SlotRequest) *Waiter {
	b := NewBatch()
	c := b.Add()
	c.Domain, c.Descriptor = "jobs", append(c.Descriptor, rules.Entry{Key: key, Value: "v"})
	if key == "forbidden" {
		c.Err = &Error{Code: Forbidden}
	}
	w := s.Acquire(b, r, func(b *Batch, a SlotAnswer) {
		if a.Err == nil && !a.Moved && !b.Results[0].Allowed {
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
		if n := s.lines.count.Load(); n != 0 {
			t.Errorf("%d lines are left", n)
		}
	})
}

func TestInvalidSlots(t *testing.T) {
	slotsTest(t, func(t *testing.T, s *slotTest) {
		for field, r := range map[string]SlotRequest{
			"units": {Units: 0}, "weight": {Units: 1, Weight: -1}, "tenant": {Units: 1, Tenant: strings.Repeat("t", MaxTenant+1)},
		} {
			s.ask("x", "queue", r)
			if a := s.want(field, "x")[0]; a.Err == nil || a.Err.Code != Invalid || a.Err.Field != field {
				t.Errorf("%s: %+v", field, a)
			}
		}
		s.ask("x", "rate", waiting)
		if a := s.want("no slots", "x")[0]; a.Err == nil || a.Err.Field != "descriptor" {
			t.Errorf("%+v", a)
		}
		s.ask("x", "forbidden", waiting)
		if a := s.want("forbidden", "x")[0]; a.Err == nil || a.Err.Code != Forbidden {
			t.Errorf("%+v", a)
		}
		s.ask("x", "unknown", waiting)
		if a := s.want("no rule", "x")[0]; a.ID != "" || a.Err != nil {
			t.Errorf("%+v", a)
		}
		s.ask("x", "queue", SlotRequest{Units: 3, Wait: true})
		if a := s.want("more than there are", "x")[0]; a.Err == nil || a.Err.Field != "units" {
			t.Errorf("%+v", a)
		}
		if _, err := s.Slot("nobody's"); err == nil {
			t.Error("a slot of nobody")
		}
		s.ask("held", "queue", SlotRequest{Units: 2, Wait: true})
		for range MaxWaiting {
			b := NewBatch()
			b.Add().Domain = "jobs"
			b.Checks[0].Descriptor = append(b.Checks[0].Descriptor, rules.Entry{Key: "queue", Value: "v"})
			s.Acquire(b, waiting, func(b *Batch, _ SlotAnswer) { b.Release() })
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
}
