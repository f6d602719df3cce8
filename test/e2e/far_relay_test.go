//go:build linux

package e2e

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	adminv1alpha1 "github.com/sluicecluster/sluice/proto/sluice/admin/v1alpha1"
	"github.com/sluicecluster/sluice/test/process"
)

// relay stands between a node and all others, at the address that the node advertises: what goes to the
// node's peer port takes longer, and nothing passes while it is cut. Gossip is not delayed.
type relay struct {
	t       *testing.T
	host    string // advertised
	to      string // where the node listens
	delay   time.Duration
	rejects atomic.Pointer[func(pid int) bool]
	mu      struct {
		sync.Mutex
		conns map[net.Conn]int // and the process at the other end
	}
	done sync.WaitGroup
}

// piece is bytes on their way.
type piece struct {
	due   time.Time
	bytes []byte
}

// listen relays TCP of a port, and UDP if datagrams says so, until ctx ends.
func (r *relay) listen(ctx context.Context, port int, delay time.Duration, datagrams bool) {
	r.t.Helper()
	addr := net.JoinHostPort(r.host, strconv.Itoa(port))
	in, err := net.Listen("tcp", addr)
	if err != nil {
		r.t.Fatal(err)
	}
	context.AfterFunc(ctx, func() { in.Close(); r.hangUp(func(int) bool { return true }) })
	r.done.Go(func() {
		for {
			conn, err := in.Accept()
			if err != nil {
				return
			}
			r.done.Go(func() { r.carry(conn, port, delay) })
		}
	})
	if !datagrams {
		return
	}
	packets, err := net.ListenPacket("udp", addr)
	if err != nil {
		r.t.Fatal(err)
	}
	context.AfterFunc(ctx, func() { packets.Close() })
	target := &net.UDPAddr{IP: net.ParseIP(r.to), Port: port}
	r.done.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, from, err := packets.ReadFrom(buf)
			if err != nil {
				return
			}
			if rejects := r.rejects.Load(); rejects == nil || !(*rejects)(udpOwner(from)) {
				packets.WriteTo(buf[:n], target)
			}
		}
	})
}

// carry relays one connection.
func (r *relay) carry(near net.Conn, port int, delay time.Duration) {
	defer near.Close()
	pid := tcpOwner(near.RemoteAddr())
	r.mu.Lock()
	r.mu.conns[near] = pid
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.mu.conns, near)
		r.mu.Unlock()
	}()
	if rejects := r.rejects.Load(); rejects != nil && (*rejects)(pid) {
		return
	}
	far, err := net.Dial("tcp", net.JoinHostPort(r.to, strconv.Itoa(port)))
	if err != nil {
		return
	}
	defer far.Close()
	var ways sync.WaitGroup
	for _, way := range [][2]net.Conn{{near, far}, {far, near}} {
		ways.Go(func() {
			carryBytes(way[1], way[0], delay)
			near.Close()
			far.Close()
		})
	}
	ways.Wait()
}

// carryBytes carries bytes from one connection to the other, each delay later.
func carryBytes(to, from net.Conn, delay time.Duration) {
	pieces := make(chan piece, 4096)
	go func() {
		defer close(pieces)
		for {
			buf := make([]byte, 32<<10)
			n, err := from.Read(buf)
			if n > 0 {
				pieces <- piece{time.Now().Add(delay), buf[:n]}
			}
			if err != nil {
				return
			}
		}
	}()
	var failed bool
	for p := range pieces {
		if failed {
			continue
		}
		time.Sleep(time.Until(p.due))
		if _, err := to.Write(p.bytes); err != nil {
			failed = true
			from.Close()
		}
	}
}

// hangUp ends the connections of the processes that match.
func (r *relay) hangUp(match func(pid int) bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for conn, pid := range r.mu.conns {
		if match(pid) {
			conn.Close()
		}
	}
}

// cut stops everything that comes from processes that match, nil nothing.
func (r *relay) cut(match func(pid int) bool) {
	if match == nil {
		r.rejects.Store(nil)
		return
	}
	r.rejects.Store(&match)
	r.hangUp(match)
}

// farNodes are nodes each of which has a relay before it.
type farNodes struct {
	nodes  []*process.Node
	relays []*relay
}

// far starts a cluster whose nodes are delay away from each other, one way.
func far(t *testing.T, n int, delay time.Duration, rules string) *farNodes {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &farNodes{}
	var join []string
	for i := range n {
		r := &relay{t: t, host: process.OwnHost(), delay: delay}
		r.mu.conns = map[net.Conn]int{}
		x := process.Launch(t, process.Config{
			Name: fmt.Sprintf("pod-%d", i+1), Join: join, Rules: rules,
			Args: []string{"--advertise", r.host, "--check-timeout", "3s"},
		})
		r.to = x.Host
		for _, p := range []struct {
			addr      string
			delay     time.Duration
			datagrams bool
		}{{x.Peer, delay, false}, {x.Gossip, 0, true}} {
			_, port, err := net.SplitHostPort(p.addr)
			if err != nil {
				t.Fatal(err)
			}
			number, err := strconv.Atoi(port)
			if err != nil {
				t.Fatal(err)
			}
			r.listen(ctx, number, p.delay, p.datagrams)
			if p.datagrams {
				join = append(join, net.JoinHostPort(r.host, port))
			}
		}
		f.nodes, f.relays = append(f.nodes, x), append(f.relays, r)
	}
	t.Cleanup(func() {
		for _, x := range f.nodes {
			x.Kill()
		}
		cancel()
		for _, r := range f.relays {
			r.done.Wait()
		}
	})
	for _, x := range f.nodes {
		x.WaitReady()
	}
	process.Eventually(t, time.Minute, "all count all", func() error {
		for _, x := range f.nodes {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			res, err := x.API().Members(ctx, &adminv1alpha1.MembersRequest{})
			cancel()
			if err != nil {
				return err
			}
			if counted := res.VoterSet.GetMembers(); len(counted) != n {
				return fmt.Errorf("%s counts %v", x.Name, counted)
			}
		}
		return nil
	})
	return f
}

// isolate cuts node i off from all others, or heals that.
func (f *farNodes) isolate(i int, cut bool) {
	pid := f.nodes[i].Cmd.Process.Pid
	for j, r := range f.relays {
		switch {
		case !cut:
			r.cut(nil)
		case j == i:
			r.cut(func(int) bool { return true })
		default:
			r.cut(func(from int) bool { return from == pid })
		}
	}
}

// tcpOwner and udpOwner return the process that has the socket at the other end, 0 if none is found.
func tcpOwner(a net.Addr) int {
	addr := a.(*net.TCPAddr)
	return socketOwner("/proc/net/tcp", addr.IP, addr.Port)
}

func udpOwner(a net.Addr) int {
	addr := a.(*net.UDPAddr)
	return socketOwner("/proc/net/udp", addr.IP, addr.Port)
}

func socketOwner(table string, ip net.IP, port int) int {
	rows, err := os.ReadFile(table)
	if err != nil {
		return 0
	}
	v4 := ip.To4()
	local := fmt.Sprintf("%02X%02X%02X%02X:%04X", v4[3], v4[2], v4[1], v4[0], port)
	for row := range bytes.Lines(rows) {
		fields := bytes.Fields(row)
		if len(fields) < 10 || string(fields[1]) != local {
			continue
		}
		socket := "socket:[" + string(fields[9]) + "]"
		links, err := filepath.Glob("/proc/[0-9]*/fd/*")
		if err != nil {
			return 0
		}
		for _, link := range links {
			if target, err := os.Readlink(link); err == nil && target == socket {
				pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(link))))
				return pid
			}
		}
	}
	return 0
}
