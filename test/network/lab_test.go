//go:build linux

package network

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluicecluster/sluice/test/faultnet"
	"github.com/sluicecluster/sluice/test/process"
)

// lab is a small network of hosts, each a network namespace with one interface
// on a switch in a namespace of its own. It needs root, ip and Linux. Nothing of it is
// in the namespace of the test, which meets a host as somebody on it would: see dial.
type lab struct {
	t      *testing.T
	prefix string
	hosts  []string // addresses
}

func newLab(t *testing.T, hosts int) *lab {
	t.Helper()
	l := &lab{t: t, prefix: fmt.Sprintf("sl%d", time.Now().UnixNano()%100000)}
	sw := l.prefix + "sw"
	l.addNamespace(sw)
	l.ip("-n", sw, "link", "add", "br0", "type", "bridge")
	l.ip("-n", sw, "link", "set", "br0", "up")
	for i := 1; i <= hosts; i++ {
		ns, port := l.namespace(i), fmt.Sprintf("p%d", i)
		l.addNamespace(ns)
		l.ip("-n", sw, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", ns)
		l.ip("-n", sw, "link", "set", port, "master", "br0", "up")
		addr := fmt.Sprintf("10.77.0.%d", i)
		l.ip("-n", ns, "addr", "add", addr+"/24", "dev", "eth0")
		l.ip("-n", ns, "link", "set", "eth0", "up")
		l.ip("-n", ns, "link", "set", "lo", "up")
		l.hosts = append(l.hosts, addr)
	}
	return l
}

func (l *lab) namespace(host int) string { return fmt.Sprintf("%sh%d", l.prefix, host) }

func (l *lab) addNamespace(name string) {
	l.t.Helper()
	l.ip("netns", "add", name)
	l.t.Cleanup(func() { exec.Command("ip", "netns", "del", name).Run() })
}

func (l *lab) ip(args ...string) {
	l.t.Helper()
	if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
		l.t.Fatalf("ip %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// cut takes a host off the network, or puts it back. It returns between which times.
func (l *lab) cut(host int, cut bool) (from, to time.Time) {
	l.t.Helper()
	from = time.Now()
	state := "up"
	if cut {
		state = "down"
	}
	l.ip("-n", l.prefix+"sw", "link", "set", fmt.Sprintf("p%d", host), state)
	return from, time.Now()
}

// dialOptions connect to the lab's hosts.
func (l *lab) dialOptions() []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(l.dial),
	}
}

// dial connects to an address of one of the hosts from that host itself, so that callers
// reach a node whatever it is cut off from.
func (l *lab) dial(ctx context.Context, addr string) (net.Conn, error) {
	target, _, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	for i, host := range l.hosts {
		if host == target {
			return faultnet.Dial(ctx, l.namespace(i+1), addr)
		}
	}
	return nil, fmt.Errorf("%s: no host of the lab", addr)
}

// labNode is a node on a host of the lab.
type labNode struct {
	lab  *lab
	host int // from 1
	name string
	grpc string // address
	conn *grpc.ClientConn
	log  *process.LogBuffer
	cmd  *exec.Cmd
}

// kill ends the process at once, and waits for its end.
func (n *labNode) kill() {
	n.cmd.Process.Kill()
	n.cmd.Wait()
}

func (l *lab) start(host int, args ...string) *labNode {
	l.t.Helper()
	n := &labNode{lab: l, host: host, name: fmt.Sprintf("pod-%d", host), grpc: l.hosts[host-1] + ":7460", log: &process.LogBuffer{}}
	dir := l.t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("s", 32)), 0o600); err != nil {
		l.t.Fatal(err)
	}
	serve := append([]string{"netns", "exec", l.namespace(host), process.Binary, "serve", "--name", n.name,
		"--bind", "0.0.0.0", "--secret-file", secret, "--operators-dir", filepath.Join(dir, "operators")}, args...)
	cmd := exec.Command("ip", serve...)
	cmd.Stdout, cmd.Stderr = n.log, n.log
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	n.cmd = cmd
	var err error
	if n.conn, err = grpc.NewClient(n.grpc, l.dialOptions()...); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		n.conn.Close()
		n.kill()
		if l.t.Failed() {
			l.t.Logf("log of %s:\n%s", n.name, n.log.Tail(6000))
		}
	})
	return n
}

// startThree starts a node on each of three hosts, addressed without any setting but the
// join target, and waits until they are one cluster.
func startThree(t *testing.T, args ...string) (*lab, []*labNode) {
	t.Helper()
	l := newLab(t, 3)
	var nodes []*labNode
	for host := range l.hosts {
		nodes = append(nodes, l.start(host+1, append([]string{"--join", strings.Join(l.hosts, ","), "--bootstrap-expect", "3"}, args...)...))
	}
	l.waitWhole(nodes, 20*time.Second)
	return l, nodes
}

func peers(nodes []*labNode) (list []process.Peer) {
	for _, n := range nodes {
		list = append(list, process.Peer{Name: n.name, Conn: n.conn})
	}
	return list
}

// waitSide waits until the nodes of one side of a cut list nobody else, and have quorum
// to decide or not.
func (l *lab) waitSide(nodes []*labNode, right bool, within time.Duration) {
	l.t.Helper()
	process.Eventually(l.t, within, fmt.Sprintf("%d nodes agree", len(nodes)), func() error {
		all, err := process.Agree(peers(nodes))
		for i, m := range all {
			if m.MayDecide != right {
				return fmt.Errorf("%s: may decide: %v %s", nodes[i].name, m.MayDecide, m.Reason)
			}
		}
		return err
	})
}

// waitWhole waits until the nodes are one cluster, and nothing is under way.
func (l *lab) waitWhole(nodes []*labNode, within time.Duration) {
	l.t.Helper()
	process.Eventually(l.t, within, fmt.Sprintf("%d nodes are one cluster", len(nodes)), func() error { return process.Whole(peers(nodes)) })
}
