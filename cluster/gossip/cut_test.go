package gossip

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/sluicecluster/sluice/internal/member"
)

// A cut of any length heals within seconds after the network is back: shorter
// than detection, while the dead are still remembered, and long after.
func TestCutHeals(t *testing.T) {
	for _, c := range []struct {
		nodes, isolated int
		length          time.Duration
	}{
		{5, 2, time.Second}, {5, 2, 4 * time.Second}, {5, 2, 10 * time.Second}, {5, 2, 20 * time.Second}, {5, 2, time.Minute}, {5, 2, 30 * time.Minute},
		{7, 1, time.Minute},
	} {
		simulateAs(t, fmt.Sprintf("%d of %d, %v", c.isolated, c.nodes, c.length), func(w *simulation) {
			w.cluster(c.nodes)
			var labels, isolated []string
			for i := range c.nodes {
				labels = append(labels, fmt.Sprintf("pod-%d", i+1))
				if i >= c.nodes-c.isolated {
					isolated = append(isolated, address(i+1))
				}
			}
			w.net.Isolate(isolated...)
			time.Sleep(c.length)
			if c.length >= 10*time.Second {
				w.agreeAmong(0, labels[:c.nodes-c.isolated]...)
				w.agreeAmong(0, labels[c.nodes-c.isolated:]...)
			}
			w.net.Cut(nil)
			w.agree(quiet)
			if lost := w.nodes[labels[c.nodes-1]].Stats().Lost; lost != 0 {
				w.Errorf("after healing it still looks for %d members", lost)
			}
		})
	}
}

// Two halves without a join target on one side: only the addresses of lost
// members lead back.
func TestCutHealsWithoutTargets(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.serve("a", address(1), w.config("a"))
		w.serve("b", address(2), w.config("b", address(1)))
		w.serve("c", address(3), w.config("c", address(1)))
		w.agree(quiet)
		w.crash("a") // the only target is gone for good
		w.agree(quiet)
		w.net.Isolate(address(3))
		time.Sleep(time.Minute)
		w.agreeAmong(0, "b")
		w.agreeAmong(0, "c")
		w.net.Cut(nil)
		w.agree(quiet)
	})
}

// A way that is open in one direction only, and a network that flaps.
func TestCrookedCuts(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.cluster(5)
		isolated := netip.MustParseAddrPort(address(5))
		w.net.Cut(func(_, to netip.AddrPort) bool { return to == isolated })
		time.Sleep(30 * time.Second)
		w.net.Cut(nil)
		w.agree(quiet)

		w.net.Cut(func(from, _ netip.AddrPort) bool { return from == isolated })
		time.Sleep(30 * time.Second)
		w.net.Cut(nil)
		w.agree(quiet)

		for range 10 {
			w.net.Isolate(address(1), address(2))
			time.Sleep(3 * time.Second)
			w.net.Cut(nil)
			time.Sleep(time.Second)
		}
		w.agree(quiet)
	})
}

// Memory stays bounded over many restarts, and nodes that left are not looked for.
func TestTheDeadAreForgotten(t *testing.T) {
	simulate(t, func(w *simulation) {
		w.cluster(3)
		for i := range 20 {
			label := fmt.Sprintf("passer-%d", i)
			w.serve(label, address(50+i), w.config(label, address(1)))
			w.agree(quiet)
			if i%2 == 0 {
				// As a node does: it says so, hands off its work, and is gone.
				must(w, w.nodes[label].SetState(member.Leaving))
				time.Sleep(time.Second)
				w.leave(label)
			} else {
				w.crash(label)
			}
			w.agree(quiet)
		}
		s := w.nodes["pod-1"].Stats()
		if s.Lost != 10 {
			w.Errorf("pod-1 looks for %d members, want the 10 that crashed", s.Lost)
		}
		time.Sleep(time.Minute)
		if known := w.stateOf(address(1)); len(known) != 3 {
			w.Errorf("pod-1 remembers %d nodes: %v", len(known), known)
		}
	})
}

// stateOf asks a node as any outsider may for all that its memberlist remembers,
// the dead included, and returns their names.
func (w *simulation) stateOf(address string) []string {
	w.Helper()
	transport, err := w.net.Listen("10.1.1.1:7463")
	must(w, err)
	c := memberlist.DefaultLANConfig()
	c.Name, c.Transport, c.LogOutput = "outsider", transport, io.Discard
	asked := &outsider{}
	c.Merge = asked
	m, err := memberlist.Create(c)
	must(w, err)
	defer func() { _ = m.Shutdown() }()
	_, _ = m.Join([]string{address}) // rejected, but by then it has answered
	return asked.names
}

type outsider struct{ names []string }

func (s *outsider) NotifyMerge(nodes []*memberlist.Node) error {
	for _, n := range nodes {
		s.names = append(s.names, n.Name)
	}
	return errors.New("just looking")
}

func TestLostMembersAreForgotten(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRegistry("self/1", time.Hour)
		m := memberAt("m", 1, member.Serving)
		r.put(m)
		r.remove(fullName(m.Name, m.Boot))
		time.Sleep(time.Hour)
		if _, gone := r.addresses(); len(gone) != 1 {
			t.Errorf("after an hour %v are looked for", gone)
		}
		time.Sleep(time.Second)
		if _, gone := r.addresses(); len(gone) != 0 {
			t.Errorf("after more than an hour %v are looked for", gone)
		}
	})
}

func TestLostMembersAreBounded(t *testing.T) {
	r := newRegistry("self/1", time.Hour)
	for i := range 2 * maxLost {
		m := memberAt(fmt.Sprintf("m%d", i), 1, 0)
		r.put(m)
		r.remove(fullName(m.Name, m.Boot))
	}
	if _, gone := r.addresses(); len(gone) != maxLost {
		t.Errorf("%d lost members are kept, want %d", len(gone), maxLost)
	} else if slices.ContainsFunc(gone, func(a string) bool { return strings.HasPrefix(a, "m0:") }) {
		t.Error("the oldest is kept")
	}
}

// A member that has left in order is not one that is lost.
func TestMembersThatLeave(t *testing.T) {
	r := newRegistry("self/1", time.Hour)
	for _, state := range []member.State{member.Joining, member.Serving, member.Leaving} {
		m := memberAt("m", 1+int64(state), state)
		r.put(m)
		if got := r.leaves("m"); got != (state == member.Leaving) {
			t.Errorf("%s: leaves %v", state, got)
		}
		r.remove(fullName(m.Name, m.Boot))
		if got := r.leaves("m"); got != (state == member.Leaving) {
			t.Errorf("%s: has left %v", state, got)
		}
	}
	r.put(memberAt("m", 9, member.Joining))
	if r.leaves("m") {
		t.Error("it is back")
	}
}
