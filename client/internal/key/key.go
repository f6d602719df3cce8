// Package key makes descriptor values of addresses: the network of a client, and the client's address behind proxies.
package key

import (
	"net/netip"
	"slices"
	"strings"
)

// Network returns an IPv4 address itself, and the first address of an IPv6 address's /64, which one subscriber has at
// least. The cluster's forward auth API does the same, and rules with ip_prefix read it.
func Network(a netip.Addr) string {
	a = plain(a)
	if a.Is6() {
		return netip.PrefixFrom(a, 64).Masked().Addr().String()
	}
	return a.String()
}

// Parse returns the address of hostport, in the format of net.Addr and http.Request.RemoteAddr; ok is false without one,
// for example for a Unix socket.
func Parse(hostport string) (a netip.Addr, ok bool) {
	at, err := netip.ParseAddrPort(hostport)
	return plain(at.Addr()), err == nil
}

// Origin returns the client's address of a request from peer. Every proxy appends the address of its client to the
// X-Forwarded-For lines. They are read from their end until an address is not a trusted proxy's, since a client can write
// the rest, or until text is no address.
func Origin(peer netip.Addr, lines []string, trusted []netip.Prefix) netip.Addr {
	at := peer
	proxy := func() bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(at) })
	}
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; { // no slice of a header that a client can make long
			if !proxy() {
				return at
			}
			comma := strings.LastIndexByte(rest, ',')
			hop := rest[comma+1:]
			rest, more = rest[:max(comma, 0)], comma >= 0
			a, ok := parseHop(strings.Trim(hop, " \t"))
			if !ok {
				return at
			}
			at = a
		}
	}
	return at
}

// parseHop parses an address, which some proxies write in brackets or with its port.
func parseHop(s string) (netip.Addr, bool) {
	if inside, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inside, "]") {
		s = strings.TrimSuffix(inside, "]")
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return plain(a), true
	}
	return Parse(s)
}

// plain returns a without a zone, and IPv4-mapped addresses as IPv4.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
