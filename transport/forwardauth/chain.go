package forwardauth

import (
	"net/netip"
	"strings"
)

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
