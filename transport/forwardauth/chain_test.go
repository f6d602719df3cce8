package forwardauth

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/rules"
)

var inner = []netip.Prefix{
	netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8"),
}

func isInner(a netip.Addr) bool {
	return slices.ContainsFunc(inner, func(p netip.Prefix) bool { return p.Contains(a) })
}

func TestClientOf(t *testing.T) {
	for _, c := range []struct {
		name, peer string
		lines      []string
		want       string
	}{
		{"no chain", "198.51.100.7", nil, "198.51.100.7"},
		{"forged by who calls itself", "198.51.100.7", []string{"192.0.2.1"}, "198.51.100.7"},
		{"one proxy", "127.0.0.1", []string{"192.0.2.1"}, "192.0.2.1"},
		{"two proxies", "127.0.0.1", []string{"192.0.2.1, 10.0.0.2"}, "192.0.2.1"},
		{"forged through a proxy", "127.0.0.1", []string{"203.0.113.9, 192.0.2.1"}, "192.0.2.1"},
		{"a forged proxy", "127.0.0.1", []string{"203.0.113.9, 10.0.0.1, 192.0.2.1"}, "192.0.2.1"},
		{"a proxy that is not trusted", "127.0.0.1", []string{"192.0.2.1, 11.0.0.1, 10.0.0.1"}, "11.0.0.1"},
		{"lines are one list", "127.0.0.1", []string{"192.0.2.1", "192.0.2.2", "10.0.0.1, 10.0.0.2"}, "192.0.2.2"},
		{"a proxy without a chain", "127.0.0.1", nil, "127.0.0.1"},
		{"only proxies", "127.0.0.1", []string{"10.0.0.1, 10.0.0.2"}, "10.0.0.1"},
		{"garbage ends it", "127.0.0.1", []string{"192.0.2.1, unknown, 10.0.0.2"}, "10.0.0.2"},
		{"garbage at once", "127.0.0.1", []string{"192.0.2.1,,"}, "127.0.0.1"},
		{"garbage in a line of its own", "127.0.0.1", []string{"192.0.2.1", "", "10.0.0.2"}, "10.0.0.2"},
		{"garbage behind the client", "127.0.0.1", []string{"<script>, 192.0.2.1"}, "192.0.2.1"},
		{"spaces", "127.0.0.1", []string{"\t192.0.2.1 ,10.0.0.2  "}, "192.0.2.1"},
		{"ports", "127.0.0.1", []string{"192.0.2.1:4711, 10.0.0.2:80"}, "192.0.2.1"},
		{"IPv6", "127.0.0.1", []string{"2001:db8::1, fd00::2"}, "2001:db8::1"},
		{"IPv6 in brackets", "127.0.0.1", []string{"[2001:db8::1], [fd00::2]:80"}, "2001:db8::1"},
		{"mapped", "127.0.0.1", []string{"::ffff:192.0.2.1, ::ffff:10.0.0.1"}, "192.0.2.1"},
		{"zones", "127.0.0.1", []string{"fe80::1%eth0, fd00::2%eth1"}, "fe80::1"},
		{"IPv4 in brackets", "127.0.0.1", []string{"[192.0.2.1]"}, "127.0.0.1"},
		{"leading zeros", "127.0.0.1", []string{"192.0.2.010"}, "127.0.0.1"},
	} {
		if got := clientOf(netip.MustParseAddr(c.peer), c.lines, isInner); got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// FuzzClientOf: the walk comes to what a plain reading of the whole list comes to, and a client that is not
// trusted cannot change it by anything that it sends.
func FuzzClientOf(f *testing.F) {
	for _, s := range []string{"", "192.0.2.1", "192.0.2.1, 10.0.0.1", "x,,10.0.0.1", "[fd00::1]:80, [::1", "10.0.0.1:99999", "a\n192.0.2.1, 10.0.0.1\n10.0.0.2"} {
		f.Add(s)
	}
	peer, client := netip.MustParseAddr("10.9.9.9"), netip.MustParseAddr("198.51.100.7")
	f.Fuzz(func(t *testing.T, chain string) {
		lines := strings.Split(chain, "\n")
		got := clientOf(peer, lines, isInner)
		want := peer
		items := strings.Split(strings.Join(lines, ","), ",")
		for i := len(items) - 1; i >= 0 && isInner(want); i-- {
			addr, ok := rules.Address(items[i])
			if !ok {
				break
			}
			want = addr
		}
		if got != want {
			t.Errorf("%q: %s, want %s", chain, got, want)
		}
		if !got.IsValid() || got.Zone() != "" || got.Is4In6() {
			t.Errorf("%q: %s is not plain", chain, got)
		}
		// The proxy adds who called it, to the last line or in one of its own.
		if got := clientOf(peer, []string{chain + ", " + client.String()}, isInner); got != client {
			t.Errorf("%q made %s of the client", chain, got)
		}
		if got := clientOf(peer, append(lines, client.String()), isInner); got != client {
			t.Errorf("%q made %s of the client", lines, got)
		}
	})
}
