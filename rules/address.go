package rules

import (
	"net/netip"
	"strconv"
	"strings"
)

// Address reads an address, perhaps in brackets, with a port, or between spaces. It is unmapped and has no zone. It does not allocate
// unless text is no address.
func Address(text string) (netip.Addr, bool) {
	text = strings.Trim(text, " \t")
	host, port, bracketed := text, "0", strings.HasPrefix(text, "[")
	if i := strings.LastIndexByte(text, ':'); bracketed && i > strings.IndexByte(text, ']') || !bracketed && i >= 0 && i == strings.IndexByte(text, ':') {
		host, port = text[:i], text[i+1:]
	}
	if bracketed {
		inside, closed := strings.CutSuffix(host[1:], "]")
		if host = inside; !closed || strings.IndexByte(host, ':') < 0 {
			return netip.Addr{}, false
		}
	}
	// The zone is cut here because ParseAddr would keep a copy of it.
	if i := strings.IndexByte(host, '%'); i > 0 && strings.IndexByte(host[:i], ':') >= 0 {
		host = host[:i]
	}
	addr, err := netip.ParseAddr(host)
	if err != nil {
		return netip.Addr{}, false
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return netip.Addr{}, false
	}
	return addr.Unmap(), true
}
