// Package memnet is a network in memory for tests of several nodes: transports for memberlist that can be partitioned and crash.
// They start no goroutines, so that they work in a testing/synctest bubble.
//
// Packets are delivered at once, or lost if there is a cut, no listener, or a full queue. Connections to an address without a
// listener are rejected; across a cut they time out.
package memnet

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"
)

// queue is how many packets, or connections, a listener may have waiting.
const queue = 1024

// Network connects transports by address. The zero Network is ready to use.
type Network struct {
	mu struct {
		sync.Mutex
		listeners map[string]*Transport
		aliases   map[string]string
		cut       func(from, to netip.AddrPort) bool
		tap       func(Sent)
	}
}

// Sent is a packet, or one write of a dialler to a connection.
type Sent struct {
	To     string
	Stream bool
	Bytes  []byte // a copy
}

// Tap calls f with everything that is sent from now on, delivered or not. f must not call the network. nil ends it.
func (n *Network) Tap(f func(Sent)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.tap = f
}

func (n *Network) see(to string, stream bool, b []byte) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.tap != nil {
		n.mu.tap(Sent{to, stream, bytes.Clone(b)})
	}
}

// tapped passes the dialler's writes to the network's tap.
type tapped struct {
	net.Conn
	network *Network
	to      string
}

func (c *tapped) Write(b []byte) (int, error) {
	c.network.see(c.to, true, b)
	return c.Conn.Write(b)
}

// Listen returns a transport at an address such as 10.0.0.1:7463, which must be free. It is free again after Shutdown or Crash.
func (n *Network) Listen(address string) (*Transport, error) {
	a, err := netip.ParseAddrPort(address)
	if err != nil {
		return nil, fmt.Errorf("memnet: listen: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.listeners[address] != nil {
		return nil, fmt.Errorf("memnet: listen on %s: address in use", address)
	}
	t := &Transport{
		network: n,
		address: a,
		packets: make(chan *memberlist.Packet, queue),
		streams: make(chan net.Conn, queue),
		closed:  make(chan struct{}),
	}
	if n.mu.listeners == nil {
		n.mu.listeners = map[string]*Transport{}
	}
	n.mu.listeners[address] = t
	return t, nil
}

// Alias redirects one address to another, as a load balancer does.
func (n *Network) Alias(from, to string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.aliases == nil {
		n.mu.aliases = map[string]string{}
	}
	n.mu.aliases[from] = to
}

// Cut loses everything from one address to another for which lost returns true, until the next call. nil heals the network.
// Open connections stay open.
func (n *Network) Cut(lost func(from, to netip.AddrPort) bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.mu.cut = lost
}

// Isolate partitions the given addresses from all others.
func (n *Network) Isolate(addresses ...string) {
	inside := map[netip.AddrPort]bool{}
	for _, a := range addresses {
		inside[netip.MustParseAddrPort(a)] = true
	}
	n.Cut(func(from, to netip.AddrPort) bool { return inside[from] != inside[to] })
}

// route returns the listener at an address, nil if there is none, and whether the network is cut there and back.
func (n *Network) route(from netip.AddrPort, to string) (dest *Transport, there, back bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if real, ok := n.mu.aliases[to]; ok {
		to = real
	}
	a, err := netip.ParseAddrPort(to)
	if err != nil {
		return nil, false, false
	}
	if n.mu.cut != nil {
		there, back = n.mu.cut(from, a), n.mu.cut(a, from)
	}
	return n.mu.listeners[to], there, back
}

// Transport is one node's place in a Network.
type Transport struct {
	network *Network
	address netip.AddrPort
	packets chan *memberlist.Packet
	streams chan net.Conn
	closed  chan struct{}
	once    sync.Once
}

var _ memberlist.NodeAwareTransport = (*Transport)(nil)

// ErrClosed means that the transport was shut down or crashed.
var ErrClosed = errors.New("memnet: transport is closed")

// Crash takes the node off the network at once. Its memberlist does not notice, and should be closed, too.
func (t *Transport) Crash() { _ = t.Shutdown() }

// Shutdown implements memberlist.Transport.
func (t *Transport) Shutdown() error {
	t.once.Do(func() {
		close(t.closed)
		t.network.mu.Lock()
		delete(t.network.mu.listeners, t.address.String())
		t.network.mu.Unlock()
	})
	return nil
}

// FinalAdvertiseAddr implements memberlist.Transport: always its own address.
func (t *Transport) FinalAdvertiseAddr(string, int) (net.IP, int, error) {
	return t.address.Addr().AsSlice(), int(t.address.Port()), nil
}

// PacketCh implements memberlist.Transport.
func (t *Transport) PacketCh() <-chan *memberlist.Packet { return t.packets }

// StreamCh implements memberlist.Transport.
func (t *Transport) StreamCh() <-chan net.Conn { return t.streams }

// WriteTo implements memberlist.Transport. A lost packet is no error.
func (t *Transport) WriteTo(b []byte, to string) (time.Time, error) {
	now := time.Now()
	select {
	case <-t.closed:
		return now, ErrClosed
	default:
	}
	t.network.see(to, false, b)
	dest, cut, _ := t.network.route(t.address, to)
	if dest == nil || cut {
		return now, nil
	}
	select {
	case dest.packets <- &memberlist.Packet{
		Buf:       bytes.Clone(b),
		From:      net.UDPAddrFromAddrPort(t.address),
		Timestamp: now,
	}:
	default: // the queue is full
	}
	return now, nil
}

// WriteToAddress implements memberlist.NodeAwareTransport.
func (t *Transport) WriteToAddress(b []byte, to memberlist.Address) (time.Time, error) {
	return t.WriteTo(b, to.Addr)
}

// DialTimeout implements memberlist.Transport.
func (t *Transport) DialTimeout(to string, timeout time.Duration) (net.Conn, error) {
	dest, there, back := t.network.route(t.address, to)
	if there || back {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		select {
		case <-timer.C:
			return nil, fmt.Errorf("memnet: dial %s: %w", to, os.ErrDeadlineExceeded)
		case <-t.closed:
			return nil, ErrClosed
		}
	}
	rejected := fmt.Errorf("memnet: dial %s: connection refused", to)
	if dest == nil {
		return nil, rejected
	}
	ours, theirs := net.Pipe()
	select {
	case <-t.closed:
		return nil, ErrClosed
	case <-dest.closed:
		return nil, rejected
	case dest.streams <- theirs:
		return &tapped{ours, t.network, to}, nil
	default:
		return nil, rejected
	}
}

// DialAddressTimeout implements memberlist.NodeAwareTransport.
func (t *Transport) DialAddressTimeout(to memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return t.DialTimeout(to.Addr, timeout)
}
