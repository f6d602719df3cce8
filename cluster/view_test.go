package cluster

import (
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
	"github.com/sluice-project/sluice/internal/member"
)

// TestSetView: what a view does to a node.
func TestSetView(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "a")
		a := w.nodes["a"]
		if !a.InRing() || a.Stats().Partitions != 31 || a.Stats().Seq != 1 {
			t.Fatalf("alone: %+v", a.Stats())
		}
		three := viewOf(3, "a", "b", "c")
		three.Members[1].State = member.Leaving
		a.SetView(three)
		if got := a.Ring().Members(); !slices.Equal(got, []string{"a", "c"}) {
			t.Errorf("the ring is built from %v, want those that serve", got)
		}
		if got := w.mu.retained["a"]; !slices.Equal(got, []string{"b:7462", "c:7462"}) {
			t.Errorf("retained %v, want all others", got)
		}
		before, builds := a.Ring(), a.Stats().RingBuilds
		moved := viewOf(4, "a", "c")
		moved.Members[1].Peer = "c2:7462"
		a.SetView(moved)
		if a.Ring() != before || a.Stats().RingBuilds != builds {
			t.Error("the same serving members give another table")
		}
		if got := w.mu.retained["a"]; !slices.Equal(got, []string{"c2:7462"}) {
			t.Errorf("retained %v, want the new address alone", got)
		}
		a.SetView(viewOf(3, "a"))
		if n := a.Stats().Seq; n != 4 {
			t.Errorf("an older view was taken: %d", n)
		}
		a.SetView(viewOf(5, "a", ""))
		if s := a.Stats(); s.Seq != 4 || s.ViewsRefused != 1 {
			t.Errorf("a view with a nameless member: %+v", s)
		}
		twin := viewOf(6, "a", "c")
		twin.Members[0].Boot = "another process"
		a.SetView(twin)
		if a.InRing() || a.Stats().Partitions != 0 {
			t.Error("another process under this node's name is taken for this node")
		}
		a.SetView(viewOf(7, "c"))
		if a.InRing() {
			t.Error("in the ring without being a member")
		}
	})
}

// TestEqualViews: members in any order give the same table on all nodes.
func TestEqualViews(t *testing.T) {
	w := newWorld(t, "a", "b", "c")
	shuffled := viewOf(2, "c", "a", "b")
	w.nodes["a"].SetView(shuffled)
	if a, b := w.nodes["a"].Ring().Hash(), w.nodes["b"].Ring().Hash(); a != b {
		t.Errorf("hashes %x and %x", a, b)
	}
	total := 0
	for _, n := range w.nodes {
		total += n.Stats().Partitions
	}
	if total != 31 {
		t.Errorf("%d partitions are owned, want 31", total)
	}
}

// TestMoved: a partition that moves starts afresh, also when it comes back; what
// stays keeps its counters.
func TestMoved(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "a", "b")
		a := w.nodes["a"]
		var requests []check.Request
		for i := range 200 {
			requests = append(requests, request(a, "a", i, hourly(10)))
		}
		decide(t.Context(), a, requests...)
		w.add("c", nil)
		w.agree(2)
		gone := 0
		for i, a := range decide(t.Context(), w.nodes["b"], requests...) {
			want := int64(8)
			if a.Holder != "a" {
				gone++
				want = 9
			}
			if a.Err != nil || a.Remaining != want {
				t.Errorf("key %d: %+v, want %d remaining", i, a, want)
			}
		}
		if s := a.Stats(); gone == 0 || gone == 200 || s.MovedAway == 0 {
			t.Fatalf("%d of 200 keys moved, in %d partitions: the test shows nothing", gone, s.MovedAway)
		}
		if n := a.table.Stats().Entries; n != int64(200-gone) {
			t.Errorf("a has %d counters, want the %d it holds", n, 200-gone)
		}
		delete(w.nodes, "c")
		w.agree(3)
		back := 0
		for _, a := range decide(t.Context(), w.nodes["b"], requests...) {
			if a.Remaining == 9 {
				back++
			}
		}
		if back != gone {
			t.Errorf("%d keys are fresh after coming back, want the %d that had gone", back, gone)
		}
	})
}

// TestMovesUnderLoad: while members come and go, every check is decided by a holder,
// nobody panics, and afterwards each key has one.
func TestMovesUnderLoad(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w := newWorld(t, "a", "b", "c", "d", "e")
		a := w.nodes["a"]
		var requests []check.Request
		for i := range 50 {
			requests = append(requests, request(a, string("abcde"[i%5]), i, hourly(1_000_000)))
		}
		var stop atomic.Bool
		var load sync.WaitGroup
		for name, n := range w.nodes {
			load.Go(func() {
				for i := 0; !stop.Load(); i++ {
					answers := decide(t.Context(), n, requests...)
					if i%2 == 1 {
						answers = decideAll(t.Context(), n, requests...)
					}
					for _, answer := range answers {
						if answer.Source != check.Held && answer.Source != check.Forwarded {
							t.Errorf("asked at %s: %+v", name, answer)
							return
						}
					}
					time.Sleep(time.Millisecond)
				}
			})
		}
		all := []string{"a", "b", "c", "d", "e"}
		for round := range 20 {
			serving := slices.Delete(slices.Clone(all), round%5, round%5+1)
			if round%3 == 0 {
				serving = all
			}
			v := viewOf(uint64(2+round), all...)
			for i := range v.Members {
				if !slices.Contains(serving, v.Members[i].Name) {
					v.Members[i].State = member.Leaving
				}
			}
			// Views arrive one after the other, so that nodes disagree for a while.
			for _, name := range all {
				w.nodes[name].SetView(v)
				time.Sleep(3 * time.Millisecond)
			}
		}
		stop.Store(true)
		load.Wait()
		for i, r := range requests {
			holders := 0
			for _, n := range w.nodes {
				if n.routing.Load().holds(r.Key) {
					holders++
				}
			}
			if holders != 1 {
				t.Errorf("key %d has %d holders", i, holders)
			}
		}
		for _, n := range w.nodes {
			n.returning.Wait()
		}
	})
}

// TestConfig: every wrong field is named.
func TestConfig(t *testing.T) {
	table, err := bucket.NewTable(bucket.Config{Shards: 31})
	if err != nil {
		t.Fatal(err)
	}
	good := newWorld(t, "a").nodes["a"].cfg
	for field, change := range map[string]func(*Config){
		"Name":            func(c *Config) { c.Name = "" },
		"Boot":            func(c *Config) { c.Boot = "" },
		"Peers":           func(c *Config) { c.Peers = nil },
		"CheckTimeout":    func(c *Config) { c.CheckTimeout = -1 },
		"GiveBackTimeout": func(c *Config) { c.GiveBackTimeout = -1 },
		"SweepPeriod":     func(c *Config) { c.SweepPeriod = -1 },
		"ApartEntries":    func(c *Config) { c.ApartEntries = -1 },
		"Partitions":      func(c *Config) { c.Ring.Partitions = -1 },
	} {
		c := good
		change(&c)
		if _, err := New(c, table); err == nil || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
	if _, err := New(good, table); err != nil {
		t.Errorf("the good one: %v", err)
	}
}
