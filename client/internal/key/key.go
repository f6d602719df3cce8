// Package key turns what clients send into what is counted: addresses into networks, and chains of
// proxies into the address before them.
package key

import (
	"net/netip"
	"slices"
	"strings"
)

// Network spells the network whose addresses are counted together: an IPv4 address itself, and the first
// address of an IPv6 address's /64, which one subscriber has at least. That is how the cluster's forward
// auth API spells it, and rules with ip_prefix read it.
func Network(a netip.Addr) string {
	a = plain(a)
	if a.Is6() {
		return netip.PrefixFrom(a, 64).Masked().Addr().String()
	}
	return a.String()
}

// Parse returns the address of hostport, as net.Addr and http.Request.RemoteAddr have it; ok is false
// if it is none, for example of a Unix socket.
func Parse(hostport string) (a netip.Addr, ok bool) {
	at, err := netip.ParseAddrPort(hostport)
	return plain(at.Addr()), err == nil
}

// Origin returns who sent a request that came from peer. lines are those of X-Forwarded-For, in which
// every proxy appends whom it was called by. They are read from their end, for as long as the address at hand
// is a trusted proxy's: anybody can write the rest. What is no address ends the walk too.
func Origin(peer netip.Addr, lines []string, trusted []netip.Prefix) netip.Addr {
	at := peer
	proxy := func() bool {
		return slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(at) })
	}
	for i := len(lines) - 1; i >= 0; i-- {
		for rest, more := lines[i], true; more; {
			if !proxy() {
				return at
			}
			var hop string
			if comma := strings.LastIndexByte(rest, ','); comma >= 0 {
				rest, hop = rest[:comma], rest[comma+1:]
			} else {
				hop, more = rest, false
			}
			a, ok := parseHop(strings.Trim(hop, " \t"))
			if !ok {
				return at
			}
			at = a
		}
	}
	return at
}

// parseHop reads an address, which some proxies write in brackets or with its port.
func parseHop(s string) (netip.Addr, bool) {
	if inside, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inside, "]") {
		s = strings.TrimSuffix(inside, "]")
	}
	if a, err := netip.ParseAddr(s); err == nil {
		return plain(a), true
	}
	return Parse(s)
}

// plain returns a as it is counted: without a zone, and IPv4 as such.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
