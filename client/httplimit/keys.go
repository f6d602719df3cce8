package httplimit

import (
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-project/sluice/client"
)

// Key makes entries of a descriptor from a request. ok is false where the request has nothing to make
// them of, for example no user: then the descriptor is not asked.
type Key func(r *http.Request) (entries []client.Entry, ok bool)

// Keys joins keys to one descriptor: IP and user together, for example. It is asked only where all
// of them apply.
func Keys(keys ...Key) Key {
	return func(r *http.Request) ([]client.Entry, bool) {
		var all []client.Entry
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

// Value is the entry (key, value), whatever the request.
func Value(key, value string) Key {
	entries := []client.Entry{{Key: key, Value: value}}
	return func(*http.Request) ([]client.Entry, bool) { return entries, true }
}

// From is the entry (key, what f returns); it does not apply where that is empty. User names, tenants and values
// of the request's context are made so.
func From(key string, f func(r *http.Request) string) Key {
	return func(r *http.Request) ([]client.Entry, bool) {
		v := f(r)
		return []client.Entry{{Key: key, Value: v}}, v != ""
	}
}

// User is the entry "user" with what f returns, mostly from the request's context.
func User(f func(r *http.Request) string) Key { return From("user", f) }

// Header is the entry (key, value of the header); it does not apply where that is missing.
func Header(key, header string) Key {
	return From(key, func(r *http.Request) string { return r.Header.Get(header) })
}

// APIKey is the entry "api_key" with a hash of the header's value, so that the secret itself goes nowhere: the first
// 128 bits of SHA-256 in hexadecimal.
func APIKey(header string) Key {
	return From("api_key", func(r *http.Request) string {
		v := r.Header.Get(header)
		if v == "" {
			return ""
		}
		sum := sha256.Sum256([]byte(v))
		return hex.EncodeToString(sum[:16])
	})
}

// Method is the entry "method".
func Method() Key { return From("method", func(r *http.Request) string { return r.Method }) }

// Route is the entry "route" with the pattern of http.ServeMux that the request has matched, without method and
// host; it does not apply where there is none, which is so when Handler stands before the mux.
func Route() Key {
	return From("route", func(r *http.Request) string {
		_, path, found := strings.Cut(r.Pattern, "/")
		if !found {
			return ""
		}
		return "/" + path
	})
}

// Host is the entry "host" with the host that is asked, without its port, in lower case. For Transport it is the
// one that the request goes to.
func Host() Key {
	return From("host", func(r *http.Request) string {
		host := r.Host
		if host == "" && r.URL != nil {
			host = r.URL.Host
		}
		if name, port, ok := strings.Cut(host, ":"); ok && !strings.Contains(port, ":") {
			host = name
		}
		return strings.ToLower(host)
	})
}

// IP is the entry "ip" with the address of the client. It is the connection's, unless that is one of
// the trusted proxies: then X-Forwarded-For is read from its end, and the first address that is not a trusted proxy
// is the client's. Anybody can write the rest of that header. IPv6 addresses count as their /64,
// which one subscriber has at least. Without an address, for example over a Unix socket, it does not apply.
func IP(trusted ...netip.Prefix) Key {
	return From("ip", func(r *http.Request) string {
		a, ok := clientAddr(r, trusted)
		if !ok {
			return ""
		}
		if a.Is6() {
			p, _ := a.Prefix(64) // fails for no IPv6 address
			return p.String()
		}
		return a.String()
	})
}

func clientAddr(r *http.Request, trusted []netip.Prefix) (netip.Addr, bool) {
	at, err := netip.ParseAddrPort(r.RemoteAddr)
	if err != nil {
		return netip.Addr{}, false
	}
	addr := plain(at.Addr())
	hops := strings.Split(strings.Join(r.Header.Values("X-Forwarded-For"), ","), ",")
	for i := len(hops) - 1; i >= 0; i-- {
		if !slices.ContainsFunc(trusted, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			break
		}
		hop, err := parseHop(strings.TrimSpace(hops[i]))
		if err != nil {
			break // what no proxy of ours has written says nothing
		}
		addr = hop
	}
	return addr, true
}

// parseHop reads an address, which some proxies write with its port.
func parseHop(s string) (netip.Addr, error) {
	if a, err := netip.ParseAddr(strings.Trim(s, "[]")); err == nil {
		return plain(a), nil
	}
	p, err := netip.ParseAddrPort(s)
	return plain(p.Addr()), err
}

// plain returns a as it is counted: without a zone, and IPv4 as such.
func plain(a netip.Addr) netip.Addr { return a.Unmap().WithZone("") }
