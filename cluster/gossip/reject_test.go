package gossip

import (
	"testing"
	"time"
)

// A peer that does not fit is rejected on both sides, each naming both values.
func TestPeersThatDoNotFitAreRejected(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Config)
		log    [2][]string // what pod-1, and the outsider, must say
	}{
		{
			"placement", func(c *Config) { c.Placement = 2 },
			[2][]string{
				{"node=pod-1", "placement is 2, ours is 1"},
				{"node=outsider", "address=" + address(1), "placement is 1, ours is 2"},
			},
		},
		{
			"region", func(c *Config) { c.Region = "us" },
			[2][]string{
				{"node=pod-1", `region is \"us\", ours is \"eu\"`},
				{"node=outsider", "address=" + address(1), `region is \"eu\", ours is \"us\"`},
			},
		},
	} {
		simulateAs(t, c.name, func(w *simulation) {
			for i, label := range []string{"pod-1", "pod-2"} {
				fits := w.config(label, address(1), address(2))
				fits.Region = "eu"
				w.serve(label, address(i+1), fits)
			}
			w.agree(quiet)
			bad := w.config("outsider", address(1))
			bad.Region = "eu"
			c.change(&bad)
			start := time.Now()
			w.serve("outsider", address(9), bad)
			if waited := time.Since(start); waited < 5*time.Second {
				w.Errorf("the outsider was ready after %v, as if it had been answered", waited)
			}
			time.Sleep(20 * time.Second)
			w.agreeAmong(0, "pod-1", "pod-2")
			w.agreeAmong(0, "outsider")
			for _, words := range c.log {
				if n := w.log.count(append(words, "rejected a peer", "WARN")...); n != 1 {
					w.Errorf("%v is logged %d times in 25 s, want once\n%s", words, n, w.log)
				}
			}
			if n := w.log.count("no join target answered", "WARN", "node=outsider"); n != 1 {
				w.Errorf("the outsider does not say that nobody answered\n%s", w.log)
			}
			if s := w.nodes["pod-1"].Stats(); s.Rejected == 0 || s.Members != 2 {
				w.Errorf("pod-1: %+v", s)
			}
		})
	}
}

// A member with another placement cannot slip in through a node that fits.
func TestTwoClustersStayApart(t *testing.T) {
	simulate(t, func(w *simulation) {
		for i, label := range []string{"a1", "b1", "a2", "b2", "a3", "b3"} {
			c := w.config(label, address(1), address(2), address(3), address(4))
			c.Placement = 1 + i%2
			w.open(label, address(i+1), c)
		}
		for _, n := range w.nodes {
			w.toServing(n)
		}
		time.Sleep(30 * time.Second)
		w.agreeAmong(0, "a1", "a2", "a3")
		w.agreeAmong(0, "b1", "b2", "b3")
	})
}
