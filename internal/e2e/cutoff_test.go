//go:build linux && netns

package e2e

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

// lab is a small network of hosts, each a network namespace with one interface
// on a switch in a namespace of its own. It needs root, ip and Linux.
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

// cut takes a host off the network, or puts it back.
func (l *lab) cut(host int, cut bool) {
	l.t.Helper()
	state := "up"
	if cut {
		state = "down"
	}
	l.ip("-n", l.prefix+"sw", "link", "set", fmt.Sprintf("p%d", host), state)
}

// labNode is a node on a host of the lab.
type labNode struct {
	lab  *lab
	host int
	name string
	cmd  *exec.Cmd
	log  *logBuffer
}

func (l *lab) start(host int, args ...string) *labNode {
	l.t.Helper()
	n := &labNode{lab: l, host: host, name: fmt.Sprintf("pod-%d", host), log: &logBuffer{}}
	serve := append([]string{"netns", "exec", l.namespace(host), binary, "serve", "--name", n.name}, args...)
	n.cmd = exec.Command("ip", serve...)
	n.cmd.Stdout, n.cmd.Stderr = n.log, n.log
	if err := n.cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.t.Cleanup(func() {
		n.cmd.Process.Signal(syscall.SIGTERM)
		n.cmd.Wait()
		if l.t.Failed() {
			l.t.Logf("log of %s:\n%s", n.name, n.log.tail(6000))
		}
	})
	return n
}

// members asks the node, on its own host, which members serve and what its ring is.
func (n *labNode) members() (serving []string, ring string, err error) {
	out, err := exec.Command("ip", "netns", "exec", n.lab.namespace(n.host), binary, "members", "-o", "json", "--timeout", "1s").Output()
	if err != nil {
		return nil, "", err
	}
	var answer struct {
		Ring    string
		Members []struct{ Name, State string }
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return nil, "", err
	}
	for _, m := range answer.Members {
		if m.State == "serving" {
			serving = append(serving, m.Name)
		}
	}
	return serving, answer.Ring, nil
}

func (l *lab) waitAgreed(nodes []*labNode, within time.Duration) time.Duration {
	l.t.Helper()
	began := time.Now()
	eventually(l.t, within, fmt.Sprintf("%d nodes agree", len(nodes)), func() error {
		want := ""
		for _, n := range nodes {
			serving, ring, err := n.members()
			if err != nil {
				return fmt.Errorf("%s: %w", n.name, err)
			}
			if len(serving) != len(nodes) {
				return fmt.Errorf("%s lists %v", n.name, serving)
			}
			if want == "" {
				want = ring
			}
			if ring != want {
				return fmt.Errorf("%s has ring %s, want %s", n.name, ring, want)
			}
		}
		return nil
	})
	return time.Since(began)
}

// TestCutOff takes one of three hosts, addressed without any setting but the
// join target, off the network for 60 s: both sides go on with whom they see,
// and all agree within 5 s of the cut's end.
func TestCutOff(t *testing.T) {
	l := newLab(t, 3)
	var nodes []*labNode
	for host := 1; host <= 3; host++ {
		nodes = append(nodes, l.start(host, "--join", strings.Join(l.hosts, ",")))
	}
	l.waitAgreed(nodes, 15*time.Second)

	l.cut(3, true)
	cutAt := time.Now()
	t.Logf("majority agrees %v after the cut", l.waitAgreed(nodes[:2], 10*time.Second).Round(time.Millisecond))
	t.Logf("minority agrees %v after that", l.waitAgreed(nodes[2:], 10*time.Second).Round(time.Millisecond))
	time.Sleep(time.Until(cutAt.Add(60 * time.Second))) // the length of the cut is what is tested
	l.cut(3, false)
	t.Logf("all agree %v after the cut's end", l.waitAgreed(nodes, quiet).Round(time.Millisecond))
}
