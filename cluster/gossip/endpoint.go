package gossip

import (
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
)

// endpoint is where this node listens and what it tells others to dial.
type endpoint struct {
	transport memberlist.Transport
	address   netip.AddrPort // advertised
}

// openEndpoint binds the gossip port, or takes the configured transport. Dials
// and connections of the sockets end with running; ctx bounds the opening. counts are what its log lines tell.
func openEndpoint(ctx, running context.Context, c Config, counts *libraryCounts) (endpoint, error) {
	if c.Transport != nil {
		ip, port, err := c.Transport.FinalAdvertiseAddr("", 0)
		if err != nil {
			return endpoint{}, fmt.Errorf("gossip: Transport: %w", err)
		}
		addr, _ := netip.AddrFromSlice(ip)
		return endpoint{c.Transport, netip.AddrPortFrom(addr.Unmap(), uint16(port))}, nil
	}
	bind, err := parseHostPort(c.Bind, DefaultPort, anyHost|anyPort)
	if err != nil {
		return endpoint{}, fmt.Errorf("gossip: Bind: %w", err)
	}
	// An empty host stays empty: then both families are listened on.
	bound := netip.IPv6Unspecified()
	if bind.host != "" {
		if bound, err = resolveOne(ctx, c.Resolver, bind.host); err != nil {
			return endpoint{}, fmt.Errorf("gossip: Bind: %w", err)
		}
		bind.host = bound.String()
	}
	lines := libraryLogger(c.Logger, counts)
	transport, err := listen(bind, lines)
	if err != nil {
		return endpoint{}, fmt.Errorf("gossip: Bind: %w on %s, TCP and UDP: %w; stop what uses it or choose another gossip port", ErrListen, bind, err)
	}
	port := uint16(transport.GetAutoBindPort())
	address, err := advertised(ctx, c, bound, port)
	if err != nil {
		_ = transport.Shutdown()
		return endpoint{}, err
	}
	gate := newStreamGate(c.Keyring.Len() > 0)
	gate.wg.Go(func() { gate.run(transport.StreamCh()) })
	gate.wg.Go(func() { gate.runPackets(transport.PacketCh(), lines) })
	return endpoint{&sockets{transport, running, gate}, address}, nil
}

// listen opens the sockets. A free port is chosen for TCP first; whether it is
// free for UDP too shows only then, so there are a few attempts.
func listen(bind hostPort, l *log.Logger) (*memberlist.NetTransport, error) {
	attempts := 1
	if bind.port == 0 {
		attempts = 10
	}
	var lastErr error
	for range attempts {
		t, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{bind.host},
			BindPort:  int(bind.port),
			Logger:    l,
		})
		if err == nil {
			return t, nil
		}
		lastErr = err
		if !strings.Contains(err.Error(), "in use") {
			break
		}
	}
	return nil, lastErr
}

// advertised returns what others dial: what Advertise says, else the address
// bound to, else an address of the machine.
func advertised(ctx context.Context, c Config, bound netip.Addr, port uint16) (netip.AddrPort, error) {
	if c.Advertise != "" {
		adv, err := parseHostPort(c.Advertise, port, anyPort)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("gossip: Advertise: %w", err)
		}
		addr, err := resolveOne(ctx, c.Resolver, adv.host)
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("gossip: Advertise: %w", err)
		}
		if adv.port == 0 {
			adv.port = port
		}
		return netip.AddrPortFrom(addr, adv.port), nil
	}
	if bound.IsUnspecified() {
		all, err := interfaceAddresses()
		if err != nil {
			return netip.AddrPort{}, fmt.Errorf("gossip: Advertise is empty and Bind is %s: %w", bound, err)
		}
		bound = pickAddress(bound, all)
	}
	return netip.AddrPortFrom(bound, port), nil
}

// resolveOne returns the first address of host, IPv4 before IPv6.
func resolveOne(ctx context.Context, r Resolver, host string) (netip.Addr, error) {
	all, err := resolve(ctx, r, host)
	if err != nil {
		return netip.Addr{}, err
	}
	for _, a := range all {
		if a.Is4() {
			return a, nil
		}
	}
	return all[0], nil
}

// resolve returns the addresses of host, at least one.
func resolve(ctx context.Context, r Resolver, host string) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	all, err := r.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return nil, fmt.Errorf("resolve %q: %w", host, err)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("resolve %q: the name has no addresses", host)
	}
	for i, a := range all {
		all[i] = a.Unmap().WithZone("")
	}
	return all, nil
}

// sockets is memberlist's own transport, whose dials and dialled connections end
// with running, so that closing need not wait for a peer that is silent, and which
// bears so much of others.
type sockets struct {
	*memberlist.NetTransport
	running context.Context
	gate    *streamGate
}

// StreamCh returns the streams that the gate lets in.
func (s *sockets) StreamCh() <-chan net.Conn { return s.gate.out }

// PacketCh returns the packets that the gate lets in.
func (s *sockets) PacketCh() <-chan *memberlist.Packet { return s.gate.packets }

// Shutdown closes the sockets. The gate goes on until the listeners have ended: they would wait for it.
func (s *sockets) Shutdown() error {
	s.gate.leave.Do(func() { close(s.gate.leaving) })
	err := s.NetTransport.Shutdown()
	s.gate.end.Do(s.gate.stop)
	return err
}

func (s *sockets) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	dialer := net.Dialer{Timeout: timeout}
	conn, err := dialer.DialContext(s.running, "tcp", addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(s.running, func() { _ = conn.Close() })
	return &boundConn{conn, stop}, nil
}

func (s *sockets) DialAddressTimeout(a memberlist.Address, timeout time.Duration) (net.Conn, error) {
	return s.DialTimeout(a.Addr, timeout)
}

// boundConn is closed when its context ends.
type boundConn struct {
	net.Conn
	stop func() bool
}

func (c *boundConn) Close() error {
	c.stop()
	return c.Conn.Close()
}
