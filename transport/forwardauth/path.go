package forwardauth

import (
	"errors"
	"net/url"
	"path"
	"strings"
)

var errURI = errors.New("want a path that begins with /, or a URL")

// pathOf returns the path of a request target as a server's routes see it: without query and fragment,
// decoded once, with one slash for several, and without . and .. segments, so that a detour to a path is
// counted as that path. A slash at the end stays. It refuses bad escapes, and targets that are neither a
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
