package watch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-project/sluice/internal/facts"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/rules"
)

// testCluster is a cluster of n1, which has the hub, and n2. Both admit ten and n2 denies two checks a second.
type testCluster struct {
	*Hub
	began         time.Time
	asked, topped atomic.Int64
	dead, off     atomic.Bool
}

func (w *testCluster) node(name string, history bool) facts.Node {
	s := uint64(time.Since(w.began) / time.Second)
	n := facts.Node{Name: name, Boot: name + "-1", Rules: "abc", MayDecide: true, All: facts.Counts{Allowed: 10 * s, Denied: 2 * s}}
	n.Latency = facts.Latency{Bounds: []time.Duration{time.Millisecond, time.Second}, Counts: []uint64{11 * s, s, 0}, Sum: time.Duration(12*s) * time.Millisecond}
	n.ByRule = []facts.Rule{{Domain: "shop", Name: "user", Counts: n.All}, {Domain: "shop", Name: "idle"}}
	if history {
		n.Slot = slotOf(time.Now()) - 1
		n.History = []facts.Counts{{Allowed: 5}, {Denied: 50}}
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
		Here: func(_ context.Context, history bool) facts.Node { w.asked.Add(1); return w.node("", history) },
		Others: func(_ context.Context, history bool) ([]facts.Node, []string) {
			if w.dead.Load() {
				return nil, []string{"n2"}
			}
			return []facts.Node{w.node("n2", history)}, nil
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
		last := facts.Slots - 1
		if h.Slot != 5 || h.Total.Denied[last] != 20 || h.Total.Allowed[last-1] != 2 || len(h.ByRule) != 1 || h.ByRule[0].Denied[last] != 20 || len(h.Total.Failed) != facts.Slots {
			t.Errorf("history %+v", h)
		}
		if s.Total != (rates{}) || len(s.Members) != 2 || s.Members[1].Own == nil || s.Members[0].Own.Rules != "abc" || s.Rules != "abc" || len(s.ByRule) != 2 {
			t.Errorf("first state %+v", s)
		}
		if k.Limited[0].Descriptor[0].Value != "limited" || k.Frequent[0].Descriptor[0].Value != "frequent" || k.Covers != 60 {
			t.Errorf("top %+v", k)
		}
		event(t, one, EventState, &s)
		if s.Total != (rates{Allowed: 20, Denied: 4}) || s.ByRule[1].rates != s.Total || s.ByRule[0].Name != "idle" || s.Members[0].Own.Checks != 12 {
			t.Errorf("state %+v", s)
		}
		if l := s.Latency; l.P50 != 0.001 || l.P99 != 1 || l.Mean != 0.001 || l.Calls != 24 {
			t.Errorf("latency %+v", l)
		}

		two, _ := w.Watch()
		asked := w.asked.Load()
		event(t, two, EventHistory, &h)
		event(t, two, EventState, &s)
		event(t, two, EventTop, &k)
		if w.asked.Load() != asked {
			t.Error("nodes were asked again for who came second")
		}
		for range 3 {
			event(t, one, EventState, &s)
		}
		event(t, one, EventSlot, &h)
		if len(h.Total.Allowed) != 1 || h.Total.Allowed[0] != 16 || h.ByRule[0].Denied[0] != 3.2 { // of 5 s, 4 were watched
			t.Errorf("slot %+v", h)
		}
		two.Close()

		w.dead.Store(true)
		event(t, one, EventState, &s)
		event(t, one, EventTop, &k)
		for len(s.Missing) == 0 {
			event(t, one, EventState, &s)
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
	s := newSum(at, nil)
	total := func(after time.Duration, nodes []facts.Node) string {
		at = at.Add(after)
		st := s.state(at, limiter.Members{Self: "n1"}, nodes, nil)
		return fmt.Sprint(st.Total.Allowed)
	}
	got := []string{
		total(0, node("a", 100)), total(time.Second, node("a", 110)), total(time.Second, nil), total(3*time.Second, node("a", 150)),
		total(time.Second, node("b", 3)), total(time.Second, node("b", 5)), total(time.Minute, nil), total(time.Second, node("b", 65)),
	}
	if want := "0 10 0 10 0 2 0 0"; strings.Join(got, " ") != want {
		t.Errorf("%v, want %s", got, want)
	}
	if got := s.total.now.Allowed; got != 52 {
		t.Errorf("%d in the slot, want 52", got)
	}
}
