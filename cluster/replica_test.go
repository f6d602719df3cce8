package cluster

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/internal/message"
)

// TestSyncWithoutReplica: while no node confirms anything, however long, no check of a sync rule is answered by its owner. It
// is as soon as a replica is complete again.
func TestSyncWithoutReplica(t *testing.T) {
	running(t, "a b c", func(t *testing.T, f *fleet) {
		time.Sleep(3 * time.Second)
		a := f.nodes["a"]
		r := request(a.Node, "a", 1, hourly(1000))
		r.Sync = true
		wantAnswer(t, "before", decide(t.Context(), a.Node, r)[0], true, check.Owned, "a")
		f.loses(losing[*message.Receipt])
		for range 10 {
			if answer := decide(t.Context(), a.Node, r)[0]; answer.Source == check.Owned && answer.Allowed {
				t.Errorf("answered by the owner, though no replica has the charge: %+v", answer)
			}
		}
		f.loses(nil)
		began := time.Now()
		for decide(t.Context(), a.Node, r)[0].Source != check.Owned {
			if time.Since(began) > 5*time.Second {
				t.Fatal("not answered by the owner 5 s after nodes confirm again")
			}
		}
	})
}

// TestSyncInPlannedChange: nodes that join and leave in order, down to one and up again, neither deny a check of a sync rule
// that has room nor answer it without the owner.
func TestSyncInPlannedChange(t *testing.T) {
	for _, replicas := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d replicas", replicas), func(t *testing.T) {
			bubble(t, func(t *testing.T) { syncInPlannedChange(t, func(c *Config) { c.Replicas = replicas }) })
		})
	}
}

func syncInPlannedChange(t *testing.T, wanted func(*Config)) {
	f := newFleet(t)
	a := f.join("a", wanted, func(c *Config) { c.CheckTimeout = 100 * time.Millisecond })
	keys := requests(40, hourly(1_000_000))
	for i := range keys {
		keys[i].Sync = true
	}
	var l load
	l.ask(a.Node, keys)
	denied := make(chan check.Answer, 1)
	l.all.Go(func() {
		for !l.stop.Load() {
			time.Sleep(7 * time.Millisecond)
			for _, answer := range decide(context.Background(), a.Node, keys...) {
				if !answer.Allowed || answer.Err != nil {
					select {
					case denied <- answer:
					default:
					}
				}
			}
		}
	})
	f.join("b", wanted)
	time.Sleep(2 * time.Second)
	f.join("c", wanted)
	time.Sleep(2 * time.Second)
	f.leave("c")
	f.leave("b")
	time.Sleep(2 * time.Second)
	_, apart := l.end()
	select {
	case answer := <-denied:
		t.Errorf("denied: %+v", answer)
	default:
	}
	if apart > 0 {
		t.Errorf("%d checks were answered without an owner", apart)
	}
}

// TestTwoLostAtOnce: with two replicas, two of five nodes may be lost at once, and with zones all of a zone; what has been charged is
// not forgotten. The first row shows that without either it would be.
func TestTwoLostAtOnce(t *testing.T) {
	none := map[string]string{}
	for _, c := range []struct {
		name     string
		replicas int
		zones    map[string]string
		forgets  bool
	}{
		{"one replica, no zones", 1, none, true},
		{"two replicas", 2, none, false},
		{"one replica, a zone is lost", 1, map[string]string{"a": "x", "b": "x", "c": "y", "d": "y", "e": "z"}, false},
	} {
		bubbleAs(t, c.name, func(t *testing.T) {
			f := newFleet(t)
			for _, name := range []string{"a", "b", "c", "d", "e"} {
				n := f.start(name, func(x *Config) { x.Replicas = c.replicas })
				m := f.members[name]
				m.Zone = c.zones[name]
				f.show(m)
				f.serve(n)
				f.within(30*time.Second, name+" is settled", n.Settled)
			}
			time.Sleep(3 * time.Second)
			for name, n := range f.nodes {
				if s := n.Stats().Partitions; s.BelowReplicas != 0 || s.Owned == 0 {
					t.Fatalf("%s has %+v, want nothing below its number of replicas", name, s)
				}
			}
			keys := requests(60, hourly(1))
			for i := range keys {
				keys[i].Sync = !c.forgets
			}
			for i, answer := range decide(t.Context(), f.nodes["e"].Node, keys...) {
				if !answer.Allowed || answer.Err != nil {
					t.Fatalf("key %d: %+v", i, answer)
				}
			}
			if c.forgets {
				time.Sleep(100 * time.Millisecond) // replicas have all
			}
			f.crash("a", "b")
			time.Sleep(3 * time.Second)
			again := 0
			for i, answer := range decide(t.Context(), f.nodes["e"].Node, keys...) {
				if answer.Err != nil {
					t.Errorf("key %d: %v", i, answer.Err)
				}
				if answer.Allowed {
					again++
				}
			}
			if forgets := again > 0; forgets != c.forgets {
				t.Errorf("%d of %d spent keys are allowed again", again, len(keys))
			}
		})
	}
}
