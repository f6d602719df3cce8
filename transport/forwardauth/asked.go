package forwardauth

import (
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"strings"

	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/rules"
)

// asked is what a call asks about. What the proxy was asked it tells in one of two ways, and the way is
// the proxy's to choose, never its client's:
//
//   - by calling a path below the domain, as ext_authz does: the call has the method, the path and
//     the host of the original request, and headers that tell of them are not looked at;
//   - by calling the domain itself: then headers tell, if the caller is trusted, and nothing else.
type asked struct {
	rules *rules.Authorize
	call  *http.Request
	// path is the original request's, escaped, in a call below the domain; "" otherwise.
	path string

	peer    netip.Addr // who called; not valid if that cannot be told
	trusted bool
}

// fill adds the checks of the call to b: one for each descriptor all of whose entries have a value. The
// error says what cannot be made out of the call; nothing is to be checked then.
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
		value = headerOf(q.call.Header.Values(e.Name))
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

// headerOf returns the value of a header of several lines.
func headerOf(lines []string) string {
	switch len(lines) {
	case 0:
		return ""
	case 1:
		return lines[0]
	}
	return strings.Join(lines, ", ")
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
	told, below, fault := q.original(name, "method")
	if fault != nil || below {
		return q.call.Method, fault
	}
	if !isMethod(told) {
		return "", invalid(name, "not a method")
	}
	return told, nil
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
	told, below, fault := q.original(q.rules.Original.Host, "host")
	if below {
		told = q.call.Host
	}
	return hostOf(told), fault
}

// uri returns the original request's path.
func (q *asked) uri() (string, *limiter.Error) {
	name := q.rules.Original.URI
	told, below, fault := q.original(name, "path")
	if fault != nil {
		return "", fault
	}
	if below {
		name, told = "path", q.path
	}
	path, err := pathOf(told)
	if err != nil {
		return "", invalid(name, err.Error())
	}
	return path, nil
}

// original returns what a header tells of a part of the original request, or below, if it
// is the call itself that tells. A part that is not told is a fault and not an entry without a
// value: every request has it, so the proxy is not set up as it must be, and to go on would be
// to limit nothing.
func (q *asked) original(header, part string) (told string, below bool, fault *limiter.Error) {
	if q.path != "" {
		// Were it not rejected, a slash too many behind the domain would make one path of all.
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

// clientOf returns the address that a request came from. peer is the one that called, and lines are
// those of the header that has the addresses before it, the nearest one last. From the peer backwards,
// addresses that are trusted are passed over, and the first that is not is the client: what stands before
// it, it may have made up. Something that is no address ends the walk too, and then, as where all are trusted, the
// client is the last that was passed over.
func clientOf(peer netip.Addr, lines []string, trusts func(netip.Addr) bool) netip.Addr {
	client := peer
	for i := len(lines) - 1; i >= 0; i-- {
		rest, more := lines[i], true
		for more && trusts(client) {
			var item string
			if at := strings.LastIndexByte(rest, ','); at >= 0 {
				rest, item = rest[:at], rest[at+1:]
			} else {
				item, more = rest, false
			}
			addr, ok := addressOf(item)
			if !ok {
				return client
			}
			client = addr
		}
	}
	return client
}

// addressOf reads an item of the chain: an address, which may be in brackets and have a port. It is
// unmapped and has no zone.
func addressOf(item string) (netip.Addr, bool) {
	item = strings.Trim(item, " \t")
	addr, err := netip.ParseAddr(item)
	if err != nil {
		if inside, ok := strings.CutPrefix(item, "["); ok && strings.HasSuffix(inside, "]") {
			addr, err = netip.ParseAddr(strings.TrimSuffix(inside, "]"))
			if addr.Is4() {
				return netip.Addr{}, false
			}
		} else {
			var both netip.AddrPort
			both, err = netip.ParseAddrPort(item)
			addr = both.Addr()
		}
	}
	if err != nil {
		return netip.Addr{}, false
	}
	return addr.Unmap().WithZone(""), true
}

var errURI = errors.New("want a path that begins with /, or a URL")

// pathOf returns the path of a request target as a server's routes see it: without query and fragment,
// decoded once, with one slash for several, and without . and .. segments, so that a detour to a path is
// counted as that path. A slash at the end stays. It rejects bad escapes, and targets that are neither a
// path, nor a URL, nor the * of OPTIONS.
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
	if clean != "/" && endsInside(decoded) {
		clean += "/"
	}
	return clean, nil
}

// endsInside reports whether a path names what is inside a folder: it ends with a slash, or with
// a segment that is a step.
func endsInside(p string) bool {
	last := p[strings.LastIndexByte(p, '/')+1:]
	return last == "" || last == "." || last == ".."
}

// hostOf returns a host as it is counted: in lower case, without a port and a dot at the end.
func hostOf(host string) string {
	host = strings.ToLower(host)
	if i := strings.LastIndexByte(host, ':'); i >= 0 && !strings.Contains(host[i:], "]") {
		if colon := strings.IndexByte(host, ':'); colon == i || host[0] == '[' {
			host = host[:i]
		}
	}
	return strings.TrimSuffix(host, ".")
}
