// Package key makes entries of descriptors from requests of type R, for the keys of all middleware packages.
package key

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/client/limit"
)

// As returns k with another name for its only entry.
func As[R any, K ~func(R) ([]limit.Entry, bool)](k K, name string) K {
	return func(r R) ([]limit.Entry, bool) {
		if entries, ok := k(r); ok && len(entries) > 0 {
			return []limit.Entry{{Key: name, Value: entries[0].Value}}, true
		}
		return nil, false
	}
}

// Join returns the entries of all keys, if all apply.
func Join[R any, K ~func(R) ([]limit.Entry, bool)](keys []K) K {
	return func(r R) ([]limit.Entry, bool) {
		var all []limit.Entry
		for _, k := range keys {
			entries, ok := k(r)
			if !ok {
				return nil, false
			}
			all = append(all, entries...)
		}
		return all, true
	}
}

// First returns the entries of the first key that applies.
func First[R any, K ~func(R) ([]limit.Entry, bool)](keys []K) K {
	return func(r R) ([]limit.Entry, bool) {
		for _, k := range keys {
			if entries, ok := k(r); ok {
				return entries, true
			}
		}
		return nil, false
	}
}

// Value is the constant entry (name, value).
func Value[R any](name, value string) func(R) ([]limit.Entry, bool) {
	entries := []limit.Entry{{Key: name, Value: value}}
	return func(R) ([]limit.Entry, bool) { return entries, true }
}

// From is the entry (name, result of f), which does not apply if the result is empty.
func From[R any](name string, f func(R) string) func(R) ([]limit.Entry, bool) {
	return func(r R) ([]limit.Entry, bool) {
		if v := f(r); v != "" {
			return []limit.Entry{{Key: name, Value: v}}, true
		}
		return nil, false
	}
}

// Client returns the address of a request's client, or "" without one, for example over a Unix socket. peer is the connection's,
// in the format of net.Addr and http.Request.RemoteAddr; the others are as for origin. An IPv6 address is the first of its /64,
// which one subscriber has at least. The cluster's forward auth API does the same, and rules with ip_prefix read it.
func Client(peer string, forwarded []string, trusted []netip.Prefix) string {
	at, ok := parse(peer)
	if !ok {
		return ""
	}
	a := origin(at, forwarded, trusted)
	switch {
	case a.Is6():
		a = netip.PrefixFrom(a, 64).Masked().Addr()
	case a == at && peer[0] != '[': // no need to format it again
		host, _, _ := strings.Cut(peer, ":")
		return host
	}
	return a.String()
}

// parse returns the address of hostport; ok is false without one.
func parse(hostport string) (a netip.Addr, ok bool) {
	at, err := netip.ParseAddrPort(hostport)
	return plain(at.Addr()), err == nil
}

// origin returns the client's address of a request from peer. Every proxy appends the address of its client to the
// X-Forwarded-For lines. They are read from their end until an address is not a trusted proxy's, since a client can write
// the rest, or until text is no address.
func origin(peer netip.Addr, lines []string, trusted []netip.Prefix) netip.Addr {
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
	return parse(s)
}

// plain returns a without a zone, and IPv4-mapped addresses as IPv4.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
