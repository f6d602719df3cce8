package key

import (
	"net/netip"
	"testing"
)

// TestOrigin: only what trusted proxies have written counts.
func TestOrigin(t *testing.T) {
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("fd00::/8")}
	for _, c := range []struct {
		name, peer string
		lines      []string
		want       string
	}{
		{"no proxy", "192.0.2.7", nil, "192.0.2.7"},
		{"forged", "192.0.2.7", []string{"1.1.1.1"}, "192.0.2.7"},
		{"a proxy that says nothing", "10.0.0.1", nil, "10.0.0.1"},
		{"one proxy", "10.0.0.1", []string{"192.0.2.7"}, "192.0.2.7"},
		{"forged before a proxy", "10.0.0.1", []string{"1.1.1.1, 192.0.2.7"}, "192.0.2.7"},
		{"forged in a line of its own", "10.0.0.1", []string{"10.0.0.9", "1.1.1.1,192.0.2.7"}, "192.0.2.7"},
		{"two proxies", "10.0.0.1", []string{"192.0.2.7, 10.0.0.2"}, "192.0.2.7"},
		{"two proxies, two lines", "10.0.0.1", []string{"192.0.2.7", "10.0.0.2"}, "192.0.2.7"},
		{"all proxies", "10.0.0.1", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"garbage", "10.0.0.1", []string{"192.0.2.7, <script>"}, "10.0.0.1"},
		{"nothing behind the comma", "10.0.0.1", []string{"192.0.2.7,"}, "10.0.0.1"},
		{"with a port", "10.0.0.1", []string{"192.0.2.7:4711"}, "192.0.2.7"},
		{"IPv6 with a port", "fd00::1", []string{"[2001:db8::4]:99"}, "2001:db8::4"},
		{"IPv6 in brackets", "fd00::1", []string{"[2001:db8::4]"}, "2001:db8::4"},
		{"a proxy in IPv6 clothes", "10.0.0.1", []string{"192.0.2.7, ::ffff:10.0.0.2"}, "192.0.2.7"},
	} {
		if got := origin(netip.MustParseAddr(c.peer), c.lines, proxies); got.String() != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestClient: an address as it is counted.
func TestClient(t *testing.T) {
	for at, want := range map[string]string{
		"192.0.2.7:99": "192.0.2.7", "[2001:db8:1:2:3::4]:99": "2001:db8:1:2::", "[::ffff:192.0.2.7]:99": "192.0.2.7",
		"[fe80::1%eth0]:99": "fe80::", "@": "", "192.0.2.7": "", "": "",
	} {
		if got := Client(at, nil, nil); got != want {
			t.Errorf("%s: %q, want %q", at, got, want)
		}
	}
}
