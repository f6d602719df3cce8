//go:build linux

package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/sluicecluster/sluice/test/faultnet"
)

// node is `sluice serve` in a namespace of its own, started and ended any number of times.
type node struct {
	c      *cell
	host   int // from 1
	name   string
	addr   string
	args   []string
	data   string // its directory, "" for none
	files  int    // ulimit -n; 0 leaves it
	starts int
	cmd    *exec.Cmd
	done   chan struct{} // closed when the process has ended
}

// log is the path of what the last process says.
func (n *node) log() string {
	return filepath.Join(n.c.logs, fmt.Sprintf("%s-%s-%d.log", n.name, n.addr, n.starts))
}

func (n *node) start() {
	n.c.t.Helper()
	n.starts++
	log, err := os.Create(n.log())
	if err != nil {
		n.c.t.Fatal(err)
	}
	defer log.Close()
	args := []string{"netns", "exec", n.c.namespace(n.host)}
	if n.files > 0 {
		args = append(args, "prlimit", "--nofile="+strconv.Itoa(n.files))
	}
	in := func(name string) string { return filepath.Join(n.c.dir, name) }
	args = append(args, n.c.binary, "serve", "--name", n.name, "--bind", "0.0.0.0", "--secret-file", in("secret"), "--rules", in("rules.yaml"))
	if n.c.sockets { // namespaces share the file system
		args = append(args, "--operators-dir", in(n.name+"-"+n.addr))
	}
	n.cmd = exec.Command("ip", append(args, n.args...)...)
	n.cmd.Stdout, n.cmd.Stderr = log, log
	if err := n.cmd.Start(); err != nil {
		n.c.t.Fatal(err)
	}
	n.done = make(chan struct{})
	go func(cmd *exec.Cmd, done chan struct{}) {
		cmd.Wait()
		close(done)
	}(n.cmd, n.done)
}

func (n *node) signal(s os.Signal) {
	n.c.t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		n.c.t.Fatalf("%s: signal %v: %v", n.name, s, err)
	}
}

// kill ends the process as a crash would.
func (n *node) kill() {
	n.c.t.Helper()
	n.signal(syscall.SIGKILL)
	<-n.done
}

// stop ends the process in order.
func (n *node) stop() {
	n.c.t.Helper()
	n.signal(syscall.SIGTERM)
	n.ended()
}

// ended waits for the end of a process that was told to stop: a second signal would make it hurry.
func (n *node) ended() {
	n.c.t.Helper()
	select {
	case <-n.done:
	case <-time.After(40 * time.Second):
		n.c.t.Fatalf("%s did not end within 40 s of SIGTERM", n.name)
	}
}

// pause stops the processes for a time.
func (c *cell) pause(d time.Duration, nodes ...*node) {
	c.t.Helper()
	for _, n := range nodes {
		n.signal(syscall.SIGSTOP)
	}
	c.wait(d)
	for _, n := range nodes {
		n.signal(syscall.SIGCONT)
	}
}

// idleClients opens connections to a node's gRPC port and says nothing on them, until they leave.
func (c *cell) idleClients(number int, n *node) (leave func()) {
	var conns []net.Conn
	for range number {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		conn, err := faultnet.Dial(ctx, c.namespace(clientHost), n.addr+":7460")
		cancel()
		if err == nil { // the node's backlog is full
			conns = append(conns, conn)
		}
	}
	return func() {
		for _, conn := range conns {
			conn.Close()
		}
	}
}
