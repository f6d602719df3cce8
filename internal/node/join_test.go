package node

import (
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/member"
)

// shut is a listener that drops every connection as long as it is shut.
type shut struct {
	net.Listener
	open    *atomic.Bool
	dropped *atomic.Int64
}

func (l shut) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || l.open.Load() {
			return conn, err
		}
		l.dropped.Add(1)
		conn.Close()
	}
}

// TestPeerPortsClosed is review finding V9: gossip gets through, and no peer port is reached. No node is ready or founds a cluster, each says which
// port fails; when the ports are open there is one cluster. A node that is ready stays so when a port fails again.
func TestPeerPortsClosed(t *testing.T) {
	t.Parallel()
	var open atomic.Bool
	var dropped [3]atomic.Int64
	var nodes []*running
	for i, name := range []string{"n1", "n2", "n3"} {
		s := testConfig(t)
		s.Name, s.BootstrapExpect, s.JoinTimeout = name, 2, 200*time.Millisecond
		s.Bind, s.QuorumTimeout = "127.0.0.1", 600*time.Millisecond
		for _, n := range nodes {
			s.Join = append(s.Join, n.gossip.Addr())
		}
		nodes = append(nodes, startNodeUnready(t, s, func(n *Node) { n.listen.peer = shut{n.listen.peer, &open, &dropped[i]} }))
	}
	for i, n := range nodes {
		other := nodes[(i+1)%3]
		want := "gossip shows " + other.config.Name + ", and nothing is heard over the peer ports, its " + other.listen.peer.Addr().String()
		await(t, n.config.Name+" waiting", func() bool {
			code, body := n.get(t, "/readyz")
			return code == http.StatusServiceUnavailable && strings.Contains(body, want)
		})
		if code, _ := n.get(t, "/healthz"); code != http.StatusOK {
			t.Errorf("/healthz answers %d", code)
		}
	}
	for i := range dropped {
		before := dropped[i].Load()
		await(t, "tried again", func() bool { return dropped[i].Load() >= before+4 })
	}
	for _, n := range nodes {
		if s := n.cluster.Stats(); !s.Set.Zero() || s.Unreachable != 2 {
			t.Errorf("%s knows the set %+v and does not hear %d", n.config.Name, s.Set, s.Unreachable)
		}
	}
	open.Store(true)
	for _, n := range nodes {
		await(t, n.config.Name+" ready", func() bool { ok, _ := n.Ready(); return ok })
	}
	set := nodes[0].cluster.Stats().Set
	for _, n := range nodes {
		if s := n.cluster.Stats().Set; s.ID != set.ID {
			t.Errorf("%s has the set %+v, n1 %+v", n.config.Name, s, set)
		}
	}
	nodes[2].peerServer.Close()
	await(t, "n3 is not heard", func() bool {
		return nodes[0].cluster.Stats().Unreachable > 0 || len(nodes[0].gossip.View().Members) < 3
	})
	for _, n := range nodes[:2] {
		if ok, reasons := n.Ready(); !ok {
			t.Errorf("%s is not ready for one peer: %v", n.config.Name, reasons)
		}
	}
}

// TestNewcomerOfALeavingName: a process of a name whose last process is leaving is alive, not ready, and says what it waits for. It can be
// stopped, and others notice nothing: the voter set stays as it is.
func TestNewcomerOfALeavingName(t *testing.T) {
	t.Parallel()
	nodes := together(t, 2)
	first, other := nodes[1], nodes[0]
	do(t, first.gossip.SetState(member.Leaving))
	await(t, "leaving, as the other sees it", func() bool {
		view := other.gossip.View()
		m, _ := view.Lookup(first.config.Name)
		return m.State == member.Leaving
	})
	next := testConfig(t)
	next.Name, next.Join = first.config.Name, []string{other.gossip.Addr()}
	second := startNodeUnready(t, next)
	await(t, "waiting", func() bool {
		code, body := second.get(t, "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, first.gossip.Addr()) && strings.Contains(body, "it is leaving: this node joins when it is gone")
	})
	if code, _ := second.get(t, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d", code)
	}
	set := other.cluster.Stats().Set
	do(t, second.stop())
	if p := second.peers.Stats(); p.Posted+p.Dropped+p.Dialled+p.Failed > 0 { // else others take no more messages of the first
		t.Errorf("the second has spoken to peers: %+v", p)
	}
	view := other.gossip.View()
	if m, _ := view.Lookup(next.Name); m.Boot != first.boot {
		t.Errorf("the other shows %+v", m)
	}
	if now := other.cluster.Stats().Set; now.Version != set.Version || len(now.Members) != 2 {
		t.Errorf("the voter set was %+v and is %+v", set, now)
	}
}
