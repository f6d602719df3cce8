package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluicecluster/sluice/internal/facts"
	"github.com/sluicecluster/sluice/internal/member"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
)

// testCluster is a cluster of n1, which has the hub, and n2. Both admit ten and n2 denies two checks a second.
type testCluster struct {
	*Hub
	began         time.Time
	asked, topped atomic.Int64
	dead, off     atomic.Bool
}

func (w *testCluster) node(name string, slots int) facts.Node {
	s := uint64(time.Since(w.began) / time.Second)
	n := facts.Node{Name: name, Boot: name + "-1", Rules: "abc", MayDecide: true, All: facts.Counts{Allowed: 10 * s, Denied: 2 * s}}
	n.Latency = facts.Latency{Bounds: []time.Duration{time.Millisecond, time.Second}}
	n.ByRule = []facts.Rule{{Domain: "shop", Name: "user", Counts: n.All}, {Domain: "shop", Name: "idle"}}
	n.Region, n.Decides, n.DecidedBy, n.Weight = "eu", []string{"eu"}, "eu", 2
	n.Regions = []facts.Region{{Name: "us", State: facts.RegionUnusable, InState: 2500 * time.Millisecond, RTT: 60_123 * time.Microsecond, Reason: "rules", Weight: 1, DecidedBy: "us"}}
	if slots > 0 { // it has counted since the slot after it began
		n.Slot = time.Now().UnixNano()/int64(facts.SlotTime) - 1
		for at := n.Slot - int64(slots) + 1; at <= n.Slot; at++ {
			c, calls, members := facts.Counts{Allowed: 50, Denied: 10}, []uint64{40, 19, 1}, 2
			if at*int64(facts.SlotTime) < w.began.UnixNano() {
				c, calls, members = facts.Counts{}, nil, 0
			}
			n.History, n.Calls, n.Members = append(n.History, c), append(n.Calls, calls), append(n.Members, members)
		}
		n.ByRule[0].History = n.History
	}
	return n
}

func newTestCluster(t *testing.T, ctx context.Context) *testCluster {
	w := &testCluster{began: time.Now()}
	w.Hub = NewHub(Config{
		Members: func(context.Context) limiter.Members {
			m := limiter.Members{Self: "n1", Partitions: 7, Members: []limiter.Member{
				{Member: member.Member{Name: "n1", Boot: "n1-1", State: member.Serving}, Alive: true},
				{Member: member.Member{Name: "n2", Boot: "n2-1", State: member.Serving}, Alive: !w.dead.Load(), Silent: -1},
			}}
			return m
		},
		Here: func(_ context.Context, slots int) facts.Node { w.asked.Add(1); return w.node("", slots) },
		Others: func(_ context.Context, slots int) ([]facts.Node, []string) {
			if w.dead.Load() {
				return nil, []string{"n2"}
			}
			return []facts.Node{w.node("n2", slots)}, nil
		},
		Top: func(_ context.Context, q limiter.TopQuery) (limiter.Top, error) {
			w.topped.Add(1)
			k := limiter.TopKey{Domain: "shop", Descriptor: []rules.Entry{{Key: "user", Value: q.By.String()}}, PerSecond: 2}
			if w.off.Load() {
				return limiter.Top{}, errors.New("off")
			}
			return limiter.Top{Covers: time.Minute, Keys: []limiter.TopKey{k}}, nil
		},
	})
	go w.Run(ctx)
	synctest.Wait()
	return w
}

// event takes the next one, which must have this name.
func event(t *testing.T, w *Watcher, name string, body any) {
	t.Helper()
	e, ok := <-w.Events()
	if !ok {
		t.Fatalf("no %s: %v", name, w.Err())
	}
	data, ok := strings.CutPrefix(string(e), "event: "+name+"\ndata: ")
	if !ok || !strings.HasSuffix(data, "\n\n") || strings.Count(data, "\n") != 2 {
		t.Fatalf("want an event %s, got %q", name, e)
	}
	reflect.ValueOf(body).Elem().SetZero()
	if err := json.Unmarshal([]byte(data), body); err != nil {
		t.Fatal(err)
	}
}

// await takes events until the next one with this name.
func await(t *testing.T, w *Watcher, name string, body any) {
	t.Helper()
	for e := range w.Events() {
		if data, ok := strings.CutPrefix(string(e), "event: "+name+"\ndata: "); ok {
			reflect.ValueOf(body).Elem().SetZero()
			if err := json.Unmarshal([]byte(data), body); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("no %s: %v", name, w.Err())
}

func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := newTestCluster(t, ctx)
		time.Sleep(time.Minute)
		if w.asked.Load() != 0 {
			t.Errorf("asked %d times while nobody watches", w.asked.Load())
		}
		one, err := w.Watch()
		if err != nil {
			t.Fatal(err)
		}
		var h history
		var s state
		var k top
		event(t, one, EventHistory, &h)
		event(t, one, EventState, &s)
		event(t, one, EventTop, &k)
		// The cluster is 60 s old: of the slots before, nothing is known.
		known := int(time.Minute/facts.SlotTime) - 1 // one has not settled
		for i, n := range h.Nodes {
			rate, quantile := 20.0, h.P50[i]
			if i < shown-known {
				rate = 0
			}
			if n > 0 != (rate > 0) || h.Total.Allowed[i] != rate || h.ByRule[0].Denied[i] != rate/5 || (quantile != nil) != (n > 0) || n > 0 && (n != 2 || h.Members[i] != 2) {
				t.Fatalf("slot %d: %d of %d nodes, %v allowed, rules %+v, p50 %v", i, n, h.Members[i], h.Total.Allowed[i], h.ByRule, quantile)
			}
		}
		last := shown - 1
		if h.Slot != 5 || len(h.Nodes) != shown || len(h.ByRule) != 1 || *h.P50[last] != 0.00075 || math.Abs(*h.P95[last]-0.895) > 0.001 || *h.P99[last] != 1 {
			t.Errorf("history %+v, p50 %v, p95 %v, p99 %v", h, *h.P50[last], *h.P95[last], *h.P99[last])
		}
		if s.Total != nil || len(s.Members) != 2 || s.Members[1].Own == nil || s.Members[0].Own.Checks != nil || s.Members[0].Own.Rules != "abc" || s.Rules != "abc" || len(s.ByRule) != 2 {
			t.Errorf("first state %+v", s)
		}
		if want := []regionJSON{
			{Name: "eu", Self: true, Weight: 2, DecidedBy: "eu"},
			{Name: "us", State: "unusable", InState: 2, Of: 2, RTT: 0.060123, Weight: 1, DecidedBy: "us", Reason: "n2: rules"},
		}; !slices.Equal(s.Regions, want) {
			t.Errorf("regions %+v, want %+v", s.Regions, want)
		}
		if k.Limited[0].Descriptor[0].Value != "limited" || k.Frequent[0].Descriptor[0].Value != "frequent" || k.Covers != 60 {
			t.Errorf("top %+v", k)
		}
		await(t, one, EventState, &s)
		if s.Total == nil || *s.Total != (rates{Allowed: 20, Denied: 4}) || s.ByRule[1].rates != *s.Total || s.ByRule[0].Name != "idle" || *s.Members[0].Own.Checks != 12 {
			t.Errorf("state %+v", s)
		}

		two, _ := w.Watch()
		asked := w.asked.Load()
		event(t, two, EventHistory, &h)
		event(t, two, EventState, &s)
		event(t, two, EventTop, &k)
		if w.asked.Load() != asked {
			t.Error("nodes were asked again for who came second")
		}
		// Every slot has the rate, also those that the watcher did not see from their beginning.
		for range 3 {
			await(t, one, EventSlot, &h)
			if !slices.Equal(h.Total.Allowed, []float64{20, 20, 20}) || !slices.Equal(h.ByRule[0].Denied, []float64{4, 4, 4}) || !slices.Equal(h.Nodes, []int{2, 2, 2}) || h.Until > float64(time.Now().Unix()) {
				t.Errorf("slots %+v", h)
			}
		}
		two.Close()

		w.dead.Store(true)
		for s.Missing = nil; len(s.Missing) == 0; {
			await(t, one, EventState, &s)
		}
		if s.Missing[0] != "n2" || s.Total.Allowed != 10 || s.Members[1].Own != nil || s.Members[1].Alive || s.Members[1].Silent != nil {
			t.Errorf("n2 is dead: %+v", s)
		}

		one.Close()
		time.Sleep(2 * time.Second)
		asked = w.asked.Load()
		time.Sleep(time.Minute)
		if w.asked.Load() != asked {
			t.Error("nodes are asked although nobody watches any more")
		}
		w.off.Store(true)
		again, _ := w.Watch()
		event(t, again, EventHistory, &h)
		if h.Nodes[last] != 1 || h.Members[last] != 2 || h.Total.Allowed[last] != 10 {
			t.Errorf("without n2: %d of %d nodes, %v allowed", h.Nodes[last], h.Members[last], h.Total.Allowed[last])
		}
		event(t, again, EventState, &s)
		event(t, again, EventTop, &k)
		if !k.Off {
			t.Errorf("keys are not counted: %+v", k)
		}
		cancel()
		for range again.Events() {
		}
		if again.Err() != ErrClosed {
			t.Errorf("at the end: %v", again.Err())
		}
		if _, err := w.Watch(); err != ErrClosed {
			t.Errorf("after the end: %v", err)
		}
	})
}

// TestBounds: watchers are so many, and who does not take its events is left without holding up the others.
func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		w := newTestCluster(t, ctx)
		var list []*Watcher
		for range MaxWatchers {
			one, err := w.Watch()
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, one)
		}
		if _, err := w.Watch(); err != ErrTooMany {
			t.Errorf("one too many: %v", err)
		}
		states := 0
		for range 30 {
			time.Sleep(time.Second)
			for len(list[0].Events()) > 0 {
				if e := <-list[0].Events(); strings.HasPrefix(string(e), "event: "+EventState) {
					states++
				}
			}
		}
		if states < 30 || w.Watchers() != 1 {
			t.Errorf("%d states in 30 s for who takes them, %d watchers are left", states, w.Watchers())
		}
		n := 0
		for range list[1].Events() {
			n++
		}
		if n != maxBehind || list[1].Err() != ErrSlow {
			t.Errorf("a slow one got %d events, %v", n, list[1].Err())
		}
		for _, one := range list {
			one.Close()
		}
	})
}

// TestRestart: a process that was started anew counts from 0, which is no negative rate; and one that is heard again
// after a gap has the rate of the gap.
func TestRestart(t *testing.T) {
	at := time.Unix(1_700_000_000, 0)
	node := func(boot string, n uint64) []facts.Node {
		c := facts.Counts{Allowed: n}
		return []facts.Node{{Name: "n1", Boot: boot, All: c, ByRule: []facts.Rule{{Domain: "d", Name: "r", Counts: c}}}}
	}
	s := newSum()
	total := func(after time.Duration, nodes []facts.Node) string {
		at = at.Add(after)
		st := s.state(at, limiter.Members{Self: "n1"}, nodes, nil)
		if st.Total == nil {
			return "-"
		}
		return fmt.Sprint(st.Total.Allowed)
	}
	got := []string{
		total(0, node("a", 100)), total(time.Second, node("a", 110)), total(time.Second, nil), total(3*time.Second, node("a", 150)),
		total(time.Second, node("b", 3)), total(time.Second, node("b", 5)), total(time.Minute, nil), total(time.Second, node("b", 65)),
	}
	if want := "- 10 - 10 - 2 - -"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
}

// TestSlots: a node that reports late is added to the slots that it was missing in, each once, and the clock may be set.
func TestSlots(t *testing.T) {
	at := time.Unix(1_700_000_000, 0).Add(settle)
	report := func(boot string, slot int64, counts ...uint64) *facts.Node {
		n := &facts.Node{Boot: boot, Slot: slot}
		for _, c := range counts {
			n.History, n.Members = append(n.History, facts.Counts{Allowed: c * 5}), append(n.Members, 2)
		}
		return n
	}
	s := newSum()
	if n := s.due(at); n != facts.Slots {
		t.Errorf("at first %d slots are due", n)
	}
	last := s.newest
	s.addHistory(report("a", last, 1, 2, 3))
	s.addHistory(report("b", last-1, 10, 20)) // its clock is behind
	told := func(n int) string {
		h := s.history(n)
		return fmt.Sprint(h.Nodes, h.Members, h.Total.Allowed)
	}
	if got := told(4); got != "[0 2 2 1] [0 2 2 2] [0 11 22 3]" {
		t.Error(got)
	}
	if n := s.due(at.Add(4 * time.Second)); n != 0 {
		t.Errorf("within a slot %d slots are due", n)
	}
	if n := s.due(at.Add(5 * time.Second)); n != 3 {
		t.Errorf("after a slot %d slots are due", n)
	}
	s.addHistory(report("a", last+1, 2, 3, 4))
	s.addHistory(report("b", last+1, 20, 30, 40))
	if got := told(4); got != "[2 2 2 2] [2 2 2 2] [11 22 33 44]" {
		t.Error(got)
	}
	if n := s.due(at.Add(-time.Hour)); n != facts.Slots || told(1) != "[0] [0] [0]" {
		t.Errorf("after the clock was set back: %d slots are due, %s is known", n, told(1))
	}
}
