package gossip

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hashicorp/memberlist"
)

// endpoint is where this node listens and the address that others dial.
type endpoint struct {
	transport memberlist.Transport
	address   netip.AddrPort // advertised
}

// openEndpoint binds the gossip port, or takes the configured transport. Dials and connections of the sockets end with running;
// ctx bounds the opening.
func openEndpoint(ctx, running context.Context, c Config, lines *log.Logger) (endpoint, error) {
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
	// An empty host stays empty, to listen on both address families.
	bound := netip.IPv6Unspecified()
	if bind.host != "" {
		if bound, err = resolveOne(ctx, c.Resolver, bind.host); err != nil {
			return endpoint{}, fmt.Errorf("gossip: Bind: %w", err)
		}
		bind.host = bound.String()
	}
	transport, err := listen(bind, lines)
	if err != nil {
		return endpoint{}, fmt.Errorf("gossip: Bind: %w on %s, TCP and UDP: %w; stop the process that uses it or choose another gossip port",
			ErrListen, bind, err)
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

// listen opens the sockets. A free port is chosen for TCP first and may be in use for UDP, so there are a few attempts.
func listen(bind Target, l *log.Logger) (t *memberlist.NetTransport, err error) {
	for range 10 {
		t, err = memberlist.NewNetTransport(&memberlist.NetTransportConfig{
			BindAddrs: []string{bind.host},
			BindPort:  int(bind.port),
			Logger:    l,
		})
		if err == nil || bind.port != 0 || !strings.Contains(err.Error(), "in use") {
			break
		}
	}
	return t, err
}

// advertised returns the address that others dial: Advertise, else the address bound to, else an address of the machine.
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
	return all[max(0, slices.IndexFunc(all, netip.Addr.Is4))], nil
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

// sockets is memberlist's own transport behind a streamGate. Dials and dialled connections end with running, so that closing
// need not wait for a silent peer.
type sockets struct {
	*memberlist.NetTransport
	running context.Context
	gate    *streamGate
}

// StreamCh returns the streams that the gate lets in.
func (s *sockets) StreamCh() <-chan net.Conn { return s.gate.out }

// PacketCh returns the packets that the gate lets in.
func (s *sockets) PacketCh() <-chan *memberlist.Packet { return s.gate.packets }

// Shutdown closes the sockets. The gate runs until the listeners have ended, because they wait for it.
func (s *sockets) Shutdown() (err error) {
	s.gate.shutdown.Do(func() {
		close(s.gate.leaving)
		err = s.NetTransport.Shutdown()
		s.gate.stop()
	})
	return err
}

func (s *sockets) DialTimeout(addr string, timeout time.Duration) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: timeout}).DialContext(s.running, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &boundConn{conn, context.AfterFunc(s.running, func() { _ = conn.Close() })}, nil
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

// Kinds of messages in packets, as memberlist numbers them.
const (
	compoundMessage = 7
	compressMessage = 9
	checksumMessage = 12
	checksumSize    = 5 // bytes before a message with a checksum
)

// runPackets passes packets on from in until stop, and drops compressed ones: memberlist unpacks them without a bound, and no node
// compresses. When the gate is leaving it drops all.
func (g *streamGate) runPackets(in <-chan *memberlist.Packet, lines *log.Logger) {
	for {
		select {
		case p := <-in:
			if err := judgePacket(p.Buf, g.encrypted); err != nil {
				lines.Printf("[WARN] %v from=%v", err, p.From)
				continue
			}
			select {
			case g.packets <- p:
			case <-g.leaving:
			}
		case <-g.stopped:
			return
		}
	}
}

// Their texts are in noise.
var (
	errCompressed = errors.New("a compressed packet is not supported")
	errNested     = errors.New("a packet of several messages within another is not supported")
)

// judgePacket returns why memberlist must not see a packet. Encrypted ones come from nodes.
func judgePacket(b []byte, encrypted bool) error {
	if len(b) >= checksumSize && b[0] == checksumMessage {
		b = b[checksumSize:]
	}
	switch {
	case encrypted || len(b) == 0:
		return nil
	case b[0] == compressMessage:
		return errCompressed
	case b[0] != compoundMessage || len(b) < 2 || len(b) < 2+2*int(b[1]):
		return nil // memberlist reports a malformed one
	}
	lengths, rest := b[2:2+2*int(b[1])], b[2+2*int(b[1]):]
	for ; len(lengths) > 0; lengths = lengths[2:] {
		size := int(binary.BigEndian.Uint16(lengths))
		if size > len(rest) {
			return nil // memberlist stops here
		}
		if size > 0 {
			switch rest[0] {
			case compressMessage:
				return errCompressed
			case compoundMessage:
				return errNested
			}
		}
		rest = rest[size:]
	}
	return nil
}

// Target is an address as configured, of which a name is resolved at every attempt. host is an IP without brackets, a name, or empty.
type Target struct {
	host string
	port uint16
}

func (h Target) String() string {
	return net.JoinHostPort(h.host, strconv.Itoa(int(h.port)))
}

// ParseTarget parses host, host:port, or IPv6 with or without brackets. defaultPort is used if s has none.
func ParseTarget(s string, defaultPort uint16) (Target, error) {
	return parseHostPort(s, defaultPort, 0)
}

// Loopback reports whether t is on this machine without doubt.
func (h Target) Loopback() bool {
	a, err := netip.ParseAddr(h.host)
	return err == nil && a.IsLoopback() || h.host == "localhost"
}

// Parts that parseHostPort may find missing.
const (
	anyHost = 1 << iota // an empty host
	anyPort             // port 0
)

// parseHostPort parses host, host:port, or IPv6 with or without brackets. defaultPort is used if s has none; if it is 0 as well,
// s must have one unless anyPort is allowed.
func parseHostPort(s string, defaultPort uint16, allow int) (Target, error) {
	parsed, bare := Target{host: s, port: defaultPort}, s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
	}
	if a, err := netip.ParseAddr(bare); err == nil {
		parsed.host = a.String()
	} else if strings.Contains(s, ":") {
		host, port, err := net.SplitHostPort(s)
		if err != nil {
			return Target{}, fmt.Errorf("%q: want host, host:port or [IPv6]:port", s)
		}
		n, err := strconv.ParseUint(port, 10, 16)
		switch {
		case port == "":
			return Target{}, fmt.Errorf("%q: nothing after the colon: want a port", s)
		case err != nil:
			return Target{}, fmt.Errorf("%q: port %q: want a number up to 65535", s, port)
		}
		parsed = Target{host, uint16(n)}
	}
	err := validHost(parsed.host)
	switch {
	case parsed.port == 0 && allow&anyPort == 0:
		return Target{}, fmt.Errorf("%q: want a port from 1 to 65535", s)
	case parsed.host == "" && allow&anyHost == 0:
		return Target{}, fmt.Errorf("%q: want a host: an address or a name", s)
	case err != nil:
		return Target{}, fmt.Errorf("%q: %w", s, err)
	}
	return parsed, nil
}

func validHost(host string) error {
	a, err := netip.ParseAddr(host)
	switch {
	case err == nil && a.Zone() != "":
		return errors.New("an address with a zone means nothing to other nodes")
	case err == nil:
		return nil
	case len(host) > 253:
		return fmt.Errorf("the host is %d bytes long: want at most 253", len(host))
	}
	for _, r := range host {
		if r <= ' ' || r == 0x7f || strings.ContainsRune(`/\[]:@?#"'`, r) {
			return fmt.Errorf("the host contains %q", r)
		}
	}
	return nil
}

// completeHost gives an address without a host of its own, such as :7462 or 0.0.0.0:7462, the advertised host. address is valid
// or empty.
func completeHost(address, host string) string {
	parsed, err := parseHostPort(address, 0, anyHost)
	if err != nil {
		return address
	}
	if a, err := netip.ParseAddr(parsed.host); parsed.host == "" || err == nil && a.IsUnspecified() {
		parsed.host = host
	}
	return parsed.String()
}

// interfaceAddresses returns the addresses of the interfaces that are up and running, in the system's order.
func interfaceAddresses() ([]netip.Addr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var all []netip.Addr
	for _, i := range interfaces {
		if i.Flags&net.FlagUp == 0 || i.Flags&net.FlagRunning == 0 {
			continue // a bridge without containers, for example
		}
		addrs, err := i.Addrs()
		if err != nil {
			continue // it went away meanwhile
		}
		for _, a := range addrs {
			if p, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(p.IP); ok {
					all = append(all, ip.Unmap())
				}
			}
		}
	}
	return all, nil
}

// pickAddress chooses the address that others dial, for a node that listens on bound, an unspecified address: the first private
// address, else the first global one, IPv4 before IPv6, else loopback. A bound of 0.0.0.0 takes IPv4 only.
func pickAddress(bound netip.Addr, all []netip.Addr) netip.Addr {
	best, bestRank := netip.AddrFrom4([4]byte{127, 0, 0, 1}), 4
	for _, a := range all {
		if !a.IsGlobalUnicast() || bound.Is4() && !a.Is4() {
			continue
		}
		rank := 0
		if !a.IsPrivate() {
			rank++
		}
		if !a.Is4() {
			rank += 2
		}
		if rank < bestRank {
			best, bestRank = a, rank
		}
	}
	return best
}
