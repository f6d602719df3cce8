package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-project/sluice/internal/member"
)

// shut is a listener that drops every connection as long as it is shut.
type shut struct {
	net.Listener
	open *atomic.Bool
}

func (l shut) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil || l.open.Load() {
			return conn, err
		}
		conn.Close()
	}
}

// TestPeerPortsClosed is review finding V9: gossip gets through, and no peer port is reached. No node is ready or founds a cluster, each says which
// port fails; when the ports are open there is one cluster. A node that is ready stays so when a port fails again.
func TestPeerPortsClosed(t *testing.T) {
	var open atomic.Bool
	var nodes []*running
	for _, name := range []string{"n1", "n2", "n3"} {
		s := testSettings(t)
		s.name, s.bootstrapExpect, s.joinTimeout = name, 2, 200*time.Millisecond
		s.bind, s.right = "127.0.0.1", 600*time.Millisecond
		for _, n := range nodes {
			s.join = append(s.join, n.gossip.Addr())
		}
		nodes = append(nodes, startNodeUnready(t, s, func(n *node) { n.listen.peer = shut{n.listen.peer, &open} }))
	}
	for i, n := range nodes {
		other := nodes[(i+1)%3]
		want := "gossip shows " + other.settings.name + ", and nothing is heard over the peer ports, its " + other.listen.peer.Addr().String()
		await(t, n.settings.name+" waiting", func() bool {
			code, body := n.get(t, "/readyz")
			return code == http.StatusServiceUnavailable && strings.Contains(body, want)
		})
		if code, _ := n.get(t, "/healthz"); code != http.StatusOK {
			t.Errorf("/healthz answers %d", code)
		}
	}
	time.Sleep(time.Second) // longer than it takes to found a cluster
	for _, n := range nodes {
		if s := n.cluster.Stats(); !s.Set.Zero() || s.Unreachable != 2 {
			t.Errorf("%s knows the set %+v and does not hear %d", n.settings.name, s.Set, s.Unreachable)
		}
	}
	open.Store(true)
	for _, n := range nodes {
		await(t, n.settings.name+" ready", func() bool { ok, _ := n.ready(); return ok })
	}
	set := nodes[0].cluster.Stats().Set
	for _, n := range nodes {
		if s := n.cluster.Stats().Set; s.ID != set.ID {
			t.Errorf("%s has the set %+v, n1 %+v", n.settings.name, s, set)
		}
	}
	nodes[2].peerServer.Close()
	await(t, "n3 is not heard", func() bool {
		return nodes[0].cluster.Stats().Unreachable > 0 || len(nodes[0].gossip.View().Members) < 3
	})
	for _, n := range nodes[:2] {
		if ok, reasons := n.ready(); !ok {
			t.Errorf("%s is not ready for one peer: %v", n.settings.name, reasons)
		}
	}
}

// TestNewcomerOfALeavingName: a process of a name whose last process is leaving is alive, not ready, and says what it waits for. It can be
// stopped, and others notice nothing: the voter set stays as it is.
func TestNewcomerOfALeavingName(t *testing.T) {
	nodes := together(t, 2)
	first, other := nodes[1], nodes[0]
	if err := first.gossip.SetState(member.Leaving); err != nil {
		t.Fatal(err)
	}
	next := testSettings(t)
	next.name, next.join = first.settings.name, []string{other.gossip.Addr()}
	second := startNodeUnready(t, next)
	await(t, "waiting", func() bool {
		code, body := second.get(t, "/readyz")
		return code == http.StatusServiceUnavailable && strings.Contains(body, first.gossip.Addr()) && strings.Contains(body, "it is leaving: this node joins when it is gone")
	})
	if code, _ := second.get(t, "/healthz"); code != http.StatusOK {
		t.Errorf("/healthz answers %d", code)
	}
	set := other.cluster.Stats().Set
	if err := second.stop(); err != nil {
		t.Fatal(err)
	}
	if p := second.peers.Stats(); p.Posted+p.Dropped+p.Dialled+p.Failed > 0 { // else others take no more messages of the first
		t.Errorf("the second has spoken to peers: %+v", p)
	}
	view := other.gossip.View()
	if m, _ := view.Lookup(next.name); m.Boot != first.boot {
		t.Errorf("the other shows %+v", m)
	}
	if now := other.cluster.Stats().Set; now.Version != set.Version || len(now.Members) != 2 {
		t.Errorf("the voter set was %+v and is %+v", set, now)
	}
}

// cliWith is cli with something to read.
func cliWith(in string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(strings.NewReader(in))
	root.SetOut(&out)
	root.SetErr(&errs)
	if err := root.ExecuteContext(context.Background()); err != nil {
		code = exitUsage
		if coded, ok := errors.AsType[*codedError](err); ok {
			code = coded.code
		}
		fmt.Fprintln(&errs, err)
	}
	return code, out.String(), errs.String()
}

// TestBootstrapCommand: a node that waits in vain founds a cluster when it is told to, after a warning and a yes.
func TestBootstrapCommand(t *testing.T) {
	s := testSettings(t)
	s.bootstrapExpect = 3
	n := startNodeUnready(t, s)
	addr := n.listen.grpc.Addr().String()
	await(t, "waiting", func() bool {
		_, reasons := n.ready()
		return strings.Contains(strings.Join(reasons, "; "), "waiting for 2 more nodes to bootstrap with: --bootstrap-expect is 3, have n1")
	})
	if code, out, errs := cliWith("no\n", "members", "bootstrap", "--addr", addr); code != exitUsage || out != "" || !strings.Contains(errs, "there are two clusters") ||
		!strings.Contains(errs, "nothing was done") {
		t.Errorf("without a yes: %d %s %s", code, out, errs)
	}
	if code, out, errs := cliWith("yes\n", "members", "bootstrap", "--addr", addr); code != 0 || !strings.Contains(out, "founded a new cluster\nstable set: n1 (version 1") {
		t.Errorf("with a yes: %d %s %s", code, out, errs)
	}
	await(t, "ready", func() bool { ok, _ := n.ready(); return ok })
	if code, _, errs := cli("members", "bootstrap", "--yes", "--addr", addr); code != exitDenied || !strings.Contains(errs, "this node has quorum") {
		t.Errorf("with quorum: %d %s", code, errs)
	}
}
