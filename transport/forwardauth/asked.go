package forwardauth

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/rules"
)

// asked is a call. The proxy, never its client, chooses how it describes the original request:
//
//   - it calls a path below the domain, as ext_authz does: the call has the method, the path and the host of the original
//     request, and headers about them are ignored;
//   - it calls the domain itself: then only headers describe the request, and only of a trusted proxy.
type asked struct {
	rules *rules.Authorize
	call  *http.Request
	// path is the original request's, escaped, in a call below the domain; "" otherwise.
	path string

	peer    netip.Addr // the caller's; invalid if it is not known
	trusted bool
}

// fill adds a check to b for each descriptor all of whose entries have a value. On an error nothing is to be checked.
func (q *asked) fill(b *limiter.Batch, domain string) *limiter.Error {
	if peer, err := netip.ParseAddrPort(q.call.RemoteAddr); err == nil {
		q.peer = peer.Addr().Unmap().WithZone("")
		q.trusted = q.rules.Trusts(q.peer)
	}
	b.OneRequest, b.AllOrNothing = true, q.rules.AllOrNothing
	var memory [8]string
	for _, entries := range q.rules.Descriptors {
		values := memory[:0]
		for j := range entries {
			value, e := q.value(&entries[j])
			if e != nil {
				return e
			}
			if value == "" {
				break
			}
			values = append(values, value)
		}
		if len(values) < len(entries) {
			continue
		}
		c := b.Add()
		c.Domain, c.NoDelay = domain, true // a proxy cannot hold a request back
		for j := range entries {
			c.Descriptor = append(c.Descriptor, rules.Entry{Key: entries[j].Key, Value: values[j]})
		}
	}
	return nil
}

func invalid(field, message string) *limiter.Error {
	return &limiter.Error{Code: limiter.Invalid, Field: field, Message: message}
}

// value returns the value of e for this call, "" for none.
func (q *asked) value(e *rules.AuthorizeEntry) (value string, fault *limiter.Error) {
	switch e.From {
	case rules.FromClientAddress:
		return q.client()
	case rules.FromHeader:
		value = strings.Join(q.call.Header.Values(e.Name), ", ")
	case rules.FromMethod:
		value, fault = q.method()
	case rules.FromHost:
		value, fault = q.host()
	case rules.FromPath:
		value, fault = q.uri()
	}
	if fault != nil {
		return "", fault
	}
	return e.Of(value), nil
}

// client returns the client's network.
func (q *asked) client() (string, *limiter.Error) {
	if !q.peer.IsValid() {
		return "", invalid("client_address", "the caller's address is not known")
	}
	addr := clientOf(q.peer, q.call.Header.Values(q.rules.Client.Header), q.rules.Trusts)
	return q.rules.Client.Mask(addr).String(), nil
}

// method returns the original request's method.
func (q *asked) method() (string, *limiter.Error) {
	name := q.rules.Original.Method
	value, below, fault := q.original(name, "method")
	if fault != nil || below {
		return q.call.Method, fault
	}
	if !isMethod(value) {
		return "", invalid(name, "not a method")
	}
	return value, nil
}

// isMethod reports whether s is a token of RFC 9110 of a sensible length.
func isMethod(s string) bool {
	const longest = 64
	return s != "" && len(s) <= longest && !strings.ContainsFunc(s, func(c rune) bool {
		return c <= ' ' || c >= 0x7f || strings.ContainsRune(`"(),/:;<=>?@[\]{}`, c)
	})
}

// host returns the original request's host, "" where it has none.
func (q *asked) host() (string, *limiter.Error) {
	value, below, fault := q.original(q.rules.Original.Host, "host")
	if below {
		value = q.call.Host
	}
	return hostOf(value), fault
}

// uri returns the original request's path.
func (q *asked) uri() (string, *limiter.Error) {
	name := q.rules.Original.URI
	value, below, fault := q.original(name, "path")
	if fault != nil {
		return "", fault
	}
	if below {
		name, value = "path", q.path
	}
	path, err := pathOf(value)
	if err != nil {
		return "", invalid(name, err.Error())
	}
	return path, nil
}

// original returns the part of the original request that a header has, or below, if the call itself has it. A missing part
// is an error and not an entry without a value: every request has it, so the proxy is misconfigured, and its requests would
// pass unlimited.
func (q *asked) original(header, part string) (value string, below bool, fault *limiter.Error) {
	if q.path != "" {
		// Otherwise an extra slash after the domain would give all requests one path.
		if uri := q.rules.Original.URI; q.trusted && len(q.call.Header.Values(uri)) > 0 {
			return "", false, invalid(uri, "the call tells the path too: have the proxy call "+Prefix+"DOMAIN without a path, or leave the header out")
		}
		return "", true, nil
	}
	if !q.trusted {
		return "", false, invalid(header, "the request's "+part+" is not known: headers tell it, and the caller is not among the domain's trusted_proxies")
	}
	switch lines := q.call.Header.Values(header); len(lines) {
	case 0:
		return "", false, invalid(header, "the request's "+part+" is not known: the proxy must send it in this header, or append the path to "+Prefix+"DOMAIN")
	case 1:
		return lines[0], false, nil
	}
	return "", false, invalid(header, "comes more than once; the proxy must overwrite what its client has sent")
}

// clientOf returns the address that a request came from. peer is the caller's, and lines are those of the header that has the
// addresses before it, the nearest one last. The client is the nearest address that is not trusted: it may have made up those
// before it. A text that is no address ends the walk too. Then, and where all are trusted, the client is the last trusted one.
func clientOf(peer netip.Addr, lines []string, trusts func(netip.Addr) bool) netip.Addr {
	client := peer
	for _, line := range slices.Backward(lines) {
		for more := true; more && trusts(client); {
			at := strings.LastIndexByte(line, ',')
			addr, ok := rules.Address(line[at+1:])
			if !ok {
				return client
			}
			client, more, line = addr, at >= 0, line[:max(at, 0)]
		}
	}
	return client
}

var errURI = errors.New("want a path that begins with /, or a URL")

// pathOf returns the path of a request target as a server's routes see it: without query and fragment, decoded once, with one
// slash for several, and without . and .. segments. A slash at the end stays. It rejects bad escapes, and targets that are
// neither a path, nor a URL, nor the * of OPTIONS.
func pathOf(target string) (string, error) {
	if i := strings.IndexAny(target, "?#"); i >= 0 {
		target = target[:i]
	}
	if target == "*" {
		return target, nil
	}
	if !strings.HasPrefix(target, "/") {
		scheme, rest, ok := strings.Cut(target, "://")
		if !ok || scheme == "" || strings.Contains(scheme, "/") {
			return "", errURI
		}
		i := strings.IndexByte(rest, '/')
		if i < 0 {
			return "/", nil
		}
		target = rest[i:]
	}
	decoded, err := url.PathUnescape(target)
	if err != nil {
		return "", err
	}
	clean := path.Clean(decoded)
	last := decoded[strings.LastIndexByte(decoded, '/')+1:]
	if clean != "/" && (last == "" || last == "." || last == "..") { // it names a folder
		clean += "/"
	}
	return clean, nil
}

// hostOf returns a host in lower case, without a port and a dot at the end.
func hostOf(host string) string {
	host = strings.ToLower(host)
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.Contains(host[i:], "]") {
		if colon := strings.IndexByte(host, ':'); colon == i || host[0] == '[' {
			host = host[:i]
		}
	}
	return strings.TrimSuffix(host, ".")
}
