package httplimit

import (
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"

	"github.com/sluicecluster/sluice/client/internal/key"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/descvalue"
)

// Key makes entries of a descriptor from a request. ok is false if the request lacks the value, for example a user: then
// the descriptor is not checked. The Limiter shortens values above 1 KiB or not UTF-8. The entries are not changed
// afterwards, so a Key may share them.
type Key func(r *http.Request) (entries []limit.Entry, ok bool)

// As returns k with another name for its only entry: IP().As("remote_address").
func (k Key) As(name string) Key { return key.As(k, name) }

// Join joins keys to one descriptor, for example IP and user. It applies only if all of them do.
func Join(keys ...Key) Key { return key.Join(keys) }

// First is the first of keys that applies: First(User(f), IP()) counts requests by user, and requests without one by
// address, so that leaving out the user does not bypass the limit.
func First(keys ...Key) Key { return key.First(keys) }

// Value is the constant entry (name, value).
func Value(name, value string) Key { return key.Value[*http.Request](name, value) }

// From is the entry (name, result of f), for example a tenant, a value of the request's context, or the route of a router
// other than http.ServeMux; it does not apply if the result is empty.
func From(name string, f func(r *http.Request) string) Key { return key.From(name, f) }

// User is the entry "user" with the result of f, mostly from the request's context.
func User(f func(r *http.Request) string) Key { return From("user", f) }

// Header is the entry (name, value of the header); it does not apply if that is missing.
func Header(name, header string) Key {
	return From(name, func(r *http.Request) string { return r.Header.Get(header) })
}

// APIKey is the entry "api_key" with a hash of the header's value, so that the secret is not sent: the first 128 bits of
// SHA-256 in hexadecimal.
func APIKey(header string) Key {
	return From("api_key", func(r *http.Request) string {
		if v := r.Header.Get(header); v != "" {
			return descvalue.Hash(v)
		}
		return ""
	})
}

// Method is the entry "method"; methods that net/http does not define are OTHER, since clients could create a counter with
// each.
func Method() Key {
	return From("method", func(r *http.Request) string {
		switch r.Method {
		case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
			http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
			return r.Method
		case "":
			return http.MethodGet // of a client's request
		}
		return "OTHER"
	})
}

// Path is the entry "path": decoded and cleaned, as rules with patterns want it. Without patterns, every requested path
// gets a counter; see Route.
func Path() Key {
	return From("path", func(r *http.Request) string { return path.Clean("/" + r.URL.Path) })
}

// Route is the entry "route" with the pattern of http.ServeMux that the request has matched, without method and host:
// "/users/{id}". It does not apply without one, as when the Middleware is called before the mux: use RouteOf there.
func Route() Key {
	return From("route", func(r *http.Request) string { return routeOf(r.Pattern) })
}

// RouteOf is Route for a Middleware that is called before mux. Requests without a handler in mux have the route "none", so
// that they can be limited too.
func RouteOf(mux *http.ServeMux) Key {
	return From("route", func(r *http.Request) string {
		_, pattern := mux.Handler(r)
		if route := routeOf(pattern); route != "" {
			return route
		}
		return "none"
	})
}

// routeOf returns the path of a pattern, which may begin with a method and a host.
func routeOf(pattern string) string {
	_, route, found := strings.Cut(pattern, "/")
	if !found {
		return ""
	}
	return "/" + route
}

// Host is the entry "host" with the requested host, without its port, in lower case. For NewTransport it is the host of the
// URL. A server's clients can send any host.
func Host() Key {
	return From("host", func(r *http.Request) string {
		u := url.URL{Host: r.Host}
		if r.URL != nil && r.URL.Host != "" {
			u.Host = r.URL.Host
		}
		return strings.ToLower(u.Hostname())
	})
}

// IP is the entry "ip" with the address of the client. It is the connection's, unless that is one of the trusted
// proxies: then X-Forwarded-For is read from its end, and the first address that is not a trusted proxy is the
// client's. Clients can write the rest of that header. IPv6 addresses count as the first of their /64, which one
// subscriber has at least. Without an address, for example over a Unix socket, it does not apply.
func IP(trusted ...netip.Prefix) Key {
	return From("ip", func(r *http.Request) string {
		return key.Client(r.RemoteAddr, r.Header["X-Forwarded-For"], trusted)
	})
}
