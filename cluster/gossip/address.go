package gossip

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
)

// hostPort is an address as it was written. host is an IP without brackets, a
// name, or empty.
type hostPort struct {
	host string
	port uint16
}

func (h hostPort) String() string {
	return net.JoinHostPort(h.host, strconv.Itoa(int(h.port)))
}

// What parseHostPort lets pass beyond a host and a port from 1.
const (
	anyHost = 1 << iota // an empty host
	anyPort             // port 0
)

// parseHostPort reads host, host:port, or IPv6 with or without brackets.
// defaultPort is used where s has none; if it is 0 as well, s must have one
// unless anyPort is allowed.
func parseHostPort(s string, defaultPort uint16, allow int) (hostPort, error) {
	h, portText, err := splitHostPort(s)
	if err != nil {
		return hostPort{}, err
	}
	parsed := hostPort{host: h, port: defaultPort}
	if portText != "" {
		n, err := strconv.ParseUint(portText, 10, 16)
		if err != nil {
			return hostPort{}, fmt.Errorf("%q: port %q: want a number up to 65535", s, portText)
		}
		parsed.port = uint16(n)
	}
	if parsed.port == 0 && allow&anyPort == 0 {
		return hostPort{}, fmt.Errorf("%q: want a port from 1 to 65535", s)
	}
	if parsed.host == "" && allow&anyHost == 0 {
		return hostPort{}, fmt.Errorf("%q: want a host: an address or a name", s)
	}
	if err := validHost(parsed.host); err != nil {
		return hostPort{}, fmt.Errorf("%q: %w", s, err)
	}
	return parsed, nil
}

func splitHostPort(s string) (host, port string, err error) {
	bare := s
	if strings.HasPrefix(s, "[") && strings.HasSuffix(s, "]") {
		bare = s[1 : len(s)-1]
	}
	if a, err := netip.ParseAddr(bare); err == nil {
		return a.String(), "", nil
	}
	if !strings.Contains(s, ":") {
		return s, "", nil
	}
	host, port, err = net.SplitHostPort(s)
	if err != nil {
		return "", "", fmt.Errorf("%q: want host, host:port or [IPv6]:port", s)
	}
	if port == "" {
		return "", "", fmt.Errorf("%q: nothing after the colon: want a port", s)
	}
	return host, port, nil
}

func validHost(host string) error {
	if a, err := netip.ParseAddr(host); err == nil {
		if a.Zone() != "" {
			return errors.New("an address with a zone means nothing to other nodes")
		}
		return nil
	}
	if len(host) > 253 {
		return fmt.Errorf("the host is %d bytes long: want at most 253", len(host))
	}
	for _, r := range host {
		if r <= ' ' || r == 0x7f || strings.ContainsRune(`/\[]:@?#"'`, r) {
			return fmt.Errorf("the host contains %q", r)
		}
	}
	return nil
}

// completeHost gives an address without a host of its own, such as :7462 or
// 0.0.0.0:7462, the advertised host. address is valid or empty.
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

// interfaceAddresses returns the addresses of the interfaces that are up and have
// a namesake, in the system's order.
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

// pickAddress chooses what a node that listens on bound, an unspecified address,
// tells others to dial: the first private address, else the first global one,
// IPv4 before IPv6, and loopback if there is nothing else. A bound of 0.0.0.0
// takes IPv4 only.
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
