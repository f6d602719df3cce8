package node

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A directory in which the node is the only voter may be a copy from before others joined. A node
// that has other join targets decides with it only when they answer, or the operator says that
// there are no others, and then has its counters.
func TestAloneOnDisk(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	s.DataDir = filepath.Join(t.TempDir(), "n1")
	n := startNode(t, s)
	n.check(t, "a")
	n.stop()

	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	target := nobody.Addr().String()
	nobody.Close()
	lone := s
	lone.Join, lone.JoinTimeout = []string{target}, 50*time.Millisecond
	n = startNodeUnready(t, lone)
	reasons := func() string { _, list := n.Ready(); return strings.Join(list, "; ") }
	await(t, "saying what it waits for", func() bool {
		text := reasons()
		return strings.Contains(text, "a voter set of this node alone") && strings.Contains(text, target)
	})
	if n.cluster.Stats().HasQuorum || n.holding() > 0 {
		t.Errorf("it decides: %+v", n.cluster.Stats())
	}
	do(t, n.cluster.Bootstrap(t.Context()))
	await(t, "ready", func() bool { ok, _ := n.Ready(); return ok })
	if got := n.left(t, "a"); got != 1 {
		t.Errorf("after bootstrap: %d are left", got)
	}
	n.stop()

	// The join target of a StatefulSet of one is the node itself.
	s.Join, s.GossipPort = []string{"127.0.0.1"}, freePort(t)
	s.JoinTimeout = 50 * time.Millisecond
	n = startNode(t, s)
	if got := n.left(t, "a"); got != 1 {
		t.Errorf("with itself as the join target: %d are left", got)
	}
}

// freePort returns a port that is free now.
func freePort(t *testing.T) uint16 {
	t.Helper()
	for range 100 {
		port := uint16(10_000 + rand.IntN(20_000)) // not one that the system gives to connections of other tests
		if l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no free port")
	return 0
}

// A node that stops and finds no other voter loses its counters, if no snapshot has them.
func TestNoNodeToHandOverTo(t *testing.T) {
	for _, kept := range []bool{false, true} {
		t.Run(fmt.Sprint("with a snapshot ", kept), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			nodes := together(t, 2, func(c *Config) {
				if kept && c.Name == "n1" {
					c.DataDir = filepath.Join(dir, "n1")
				}
			})
			a, b := nodes[0], nodes[1]
			for _, user := range strings.Fields("a b c d e f") {
				a.check(t, user)
			}
			if err := b.gossip.Close(); err != nil { // it ends as in a crash
				t.Fatal(err)
			}
			b.stop()
			err := a.stop()
			lost := errors.Is(err, ErrNotHandedOver)
			if lost == kept || lost && !strings.Contains(err.Error(), "n2") || a.warned.count("no node took over") != 1 {
				t.Errorf("%v; the log: %s", err, a.warned.text.String())
			}
		})
	}
}
