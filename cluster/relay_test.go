package cluster

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
)

// cutLinks lets nothing pass between the nodes of each pair.
func (f *fleet) cutLinks(pairs ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.cut = func(from, to string) bool {
		for _, p := range pairs {
			if from != to && strings.Contains(p, from) && strings.Contains(p, to) {
				return true
			}
		}
		return false
	}
}

// TestRelay: where the links between some nodes are cut, a third asks the owner for them: all checks are decided, exactly and soon,
// and none by fallback.
func TestRelay(t *testing.T) {
	for _, c := range []struct {
		nodes string
		cuts  []string
	}{
		{"abc", []string{"ab"}},
		{"abcde", []string{"ab"}},
		{"abcde", []string{"ab", "bc", "de"}},
	} {
		bubbleAs(t, fmt.Sprint(c.nodes, c.cuts), func(t *testing.T) {
			var names []string
			for _, n := range c.nodes {
				names = append(names, string(n))
			}
			f := newFleet(t, names...)
			keys := requests(90, hourly(30))
			for i := range keys {
				keys[i].Sync = i%3 == 0
			}
			f.cutLinks(c.cuts...)
			time.Sleep(2 * time.Second)
			admitted := make([]int64, len(keys))
			for range 20 {
				for _, name := range names {
					start := time.Now()
					for i, a := range decide(t.Context(), f.nodes[name].Node, keys...) {
						if a.Err != nil || a.Source != check.Owned && a.Source != check.Forwarded {
							t.Fatalf("asked at %s, key %d: %+v", name, i, a)
						}
						if a.Allowed {
							admitted[i]++
						}
					}
					if took := time.Since(start); took > 100*time.Millisecond {
						t.Errorf("asked at %s: it took %v", name, took)
					}
				}
			}
			for i, n := range admitted {
				if n != 30 {
					t.Errorf("key %d: %d admitted of 30", i, n)
				}
			}
			relayed, shares := f.sum(func(s Stats) int { return int(s.Relayed) }), f.sum(func(s Stats) int { return int(s.Share + s.MinorityShare) })
			if relayed == 0 || shares > 0 {
				t.Errorf("%d relayed, %d shares", relayed, shares)
			}
		})
	}
}

// TestRelayOnce: what is relayed is not relayed again, and a node asks nobody for what it owns.
func TestRelayOnce(t *testing.T) {
	posed(t, "a b c", func(t *testing.T, w *testCluster) {
		rec := func(owner string) check.Record {
			r := request(w.nodes["a"], owner, 1, hourly(10))
			return check.Record{Request: r.Request, Relay: true, For: time.Second}
		}
		records := []check.Record{rec("a"), rec("b"), rec("c")}
		replies := make([]check.Reply, len(records))
		w.nodes["b"].Serve(bootOf("a"), records, replies)
		if a := replies[0]; a.Status != check.NotOwner || a.Owner != "a" {
			t.Errorf("owned by the node that asks: %+v", a)
		}
		if b := replies[1]; b.Status != check.Decided || b.Owner != "b" {
			t.Errorf("owned by the node that is asked: %+v", b)
		}
		if c := replies[2]; c.Status != check.Decided || c.Owner != "c" || c.Remaining != 9 {
			t.Errorf("owned by a third: %+v", c)
		}
		calls := w.callsSoFar()
		if len(calls) != 1 || calls[0].to != "c" || len(calls[0].records) != 1 || calls[0].records[0].Relay {
			t.Errorf("%+v", calls)
		}
		w.decides(always(hung))
		start := time.Now()
		w.nodes["b"].Serve(bootOf("a"), records, replies)
		if took := time.Since(start); took != maxRelayWait || replies[2].Status != 0 {
			t.Errorf("an owner that hangs: after %v %+v", took, replies[2])
		}
		w.decides(always(unsent))
		w.nodes["b"].Serve(bootOf("a"), records, replies)
		if replies[2].Status != check.NotReady {
			t.Errorf("an owner that is away: %+v", replies[2])
		}
	})
}
