package transport

import (
	"net"
	"net/netip"
)

// passedOn are the headers that proxies and web pages add to what they send: the call
// is then somebody else's, whatever address it comes from.
var passedOn = []string{"Forwarded", "X-Forwarded-For", "Via", "Origin"}

// LocalOnly says why a call that operators alone may make is refused, or nil: it must
// come over loopback, from this machine itself. addr is the caller's ip:port as the
// door's server tells it; has reports whether the call has a header.
func LocalOnly(addr string, has func(header string) bool) *Error {
	from, err := netip.ParseAddrPort(addr)
	if err != nil || !from.Addr().Unmap().IsLoopback() {
		return &Error{Code: Forbidden, Message: "answered on loopback only, and this call came from " + addr + "; make it on the node's own machine"}
	}
	for _, header := range passedOn {
		if has(header) {
			return &Error{Code: Forbidden, Message: "answered on loopback only, and this call was passed on by a proxy or a web page (it has " + header + "); make it on the node's own machine"}
		}
	}
	return nil
}

// LocalName says why a caller that calls this node by the HTTP host (with or without a port) is not one of this machine, or
// nil: another name that leads here over loopback is one that a web page has made up (DNS rebinding).
func LocalName(host string) *Error {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if addr, err := netip.ParseAddr(host); host != "localhost" && (err != nil || !addr.Unmap().IsLoopback()) {
		return &Error{Code: Forbidden, Message: "answered on loopback only, to callers that call it by a loopback address or localhost"}
	}
	return nil
}
