package gossip

import (
	"context"
	"net/netip"
	"testing"
)

func TestParseHostPort(t *testing.T) {
	for in, want := range map[string]string{
		"host":           "host:7463",
		"host:1":         "host:1",
		"10.0.0.1":       "10.0.0.1:7463",
		"10.0.0.1:65535": "10.0.0.1:65535",
		"::1":            "[::1]:7463",
		"[::1]":          "[::1]:7463",
		"[::1]:5":        "[::1]:5",
		"2001:DB8::0:1":  "[2001:db8::1]:7463",
	} {
		got, err := parseHostPort(in, DefaultPort, 0)
		if err != nil || got.String() != want {
			t.Errorf("parseHostPort(%q) = %s, %v, want %s", in, got, err, want)
		}
	}
	for in, want := range map[string]string{"": ":7463", ":5": ":5", ":0": ":0", "127.0.0.1:0": "127.0.0.1:0"} {
		got, err := parseHostPort(in, DefaultPort, anyHost|anyPort)
		if err != nil || got.String() != want {
			t.Errorf("parseHostPort(%q) for binding = %s, %v, want %s", in, got, err, want)
		}
	}
}

func TestCompleteHost(t *testing.T) {
	for in, want := range map[string]string{
		"":             "",
		":7462":        "10.1.2.3:7462",
		"0.0.0.0:7462": "10.1.2.3:7462",
		"[::]:7462":    "10.1.2.3:7462",
		"10.9.9.9:1":   "10.9.9.9:1",
		"pod.svc:1":    "pod.svc:1",
	} {
		if got := completeHost(in, "10.1.2.3"); got != want {
			t.Errorf("completeHost(%q) = %q, want %q", in, got, want)
		}
	}
	if got := completeHost(":1", "fd00::1"); got != "[fd00::1]:1" {
		t.Errorf("completeHost with IPv6 = %q", got)
	}
}

func TestPickAddress(t *testing.T) {
	v4, both := netip.IPv4Unspecified(), netip.IPv6Unspecified()
	for _, c := range []struct {
		name  string
		bound netip.Addr
		all   []string
		want  string
	}{
		{"pod", v4, []string{"127.0.0.1", "::1", "10.42.0.7", "fe80::1"}, "10.42.0.7"},
		{"laptop and bridge", v4, []string{"127.0.0.1", "192.168.1.5", "172.17.0.1"}, "192.168.1.5"},
		{"public host with a private network", both, []string{"127.0.0.1", "203.0.113.5", "2001:db8::5", "10.0.0.5"}, "10.0.0.5"},
		{"public host", both, []string{"127.0.0.1", "203.0.113.5", "2001:db8::5"}, "203.0.113.5"},
		{"IPv6 pod", both, []string{"::1", "fe80::1", "2001:db8::5", "fd00::7"}, "fd00::7"},
		{"IPv6 host", both, []string{"::1", "fe80::1", "2001:db8::5"}, "2001:db8::5"},
		{"IPv4 wanted, none there", v4, []string{"::1", "fd00::7"}, "127.0.0.1"},
		{"only loopback", both, []string{"127.0.0.1", "::1"}, "127.0.0.1"},
		{"link-local only", v4, []string{"127.0.0.1", "169.254.3.4"}, "127.0.0.1"},
		{"nothing", v4, nil, "127.0.0.1"},
	} {
		var all []netip.Addr
		for _, a := range c.all {
			all = append(all, netip.MustParseAddr(a))
		}
		if got := pickAddress(c.bound, all).String(); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestAdvertised(t *testing.T) {
	for _, c := range []struct{ name, advertise, bound, want string }{
		{"loopback", "", "127.0.1.2", "127.0.1.2:7000"},
		{"pod", "", "10.42.0.7", "10.42.0.7:7000"},
		{"IPv6", "", "fd00::7", "[fd00::7]:7000"},
		{"told a host", "192.0.2.1", "127.0.0.1", "192.0.2.1:7000"},
		{"told a host and port", "192.0.2.1:9", "127.0.0.1", "192.0.2.1:9"},
		{"told an IPv6", "2001:db8::1", "0.0.0.0", "[2001:db8::1]:7000"},
	} {
		got, err := advertised(t.Context(), Config{Advertise: c.advertise}, netip.MustParseAddr(c.bound), 7000)
		if err != nil || got.String() != c.want {
			t.Errorf("%s: %s, %v, want %s", c.name, got, err, c.want)
		}
	}
	// Whatever this machine has, listening on all addresses advertises one of them.
	got, err := advertised(t.Context(), Config{}, netip.IPv4Unspecified(), 7000)
	if err != nil || got.Addr().IsUnspecified() || !got.Addr().Is4() || got.Port() != 7000 {
		t.Errorf("bound to 0.0.0.0: %s, %v", got, err)
	}
}

type noAddresses struct{}

func (noAddresses) LookupNetIP(context.Context, string, string) ([]netip.Addr, error) {
	return nil, nil
}

func TestResolve(t *testing.T) {
	if _, err := resolve(t.Context(), noAddresses{}, "empty"); err == nil {
		t.Error("a name without addresses is accepted")
	}
	var book names
	book.addresses = map[string][]netip.Addr{}
	book.set("both", "fd00::7", "::ffff:10.0.0.7", "fe80::1%eth0")
	all, err := resolve(t.Context(), &book, "both")
	if err != nil || len(all) != 3 || all[1].String() != "10.0.0.7" || all[2].String() != "fe80::1" {
		t.Errorf("resolve = %v, %v", all, err)
	}
	one, err := resolveOne(t.Context(), &book, "both")
	if err != nil || one.String() != "10.0.0.7" {
		t.Errorf("resolveOne = %v, %v, want IPv4 first", one, err)
	}
	book.set("six", "fd00::7")
	if one, err := resolveOne(t.Context(), &book, "six"); err != nil || one.String() != "fd00::7" {
		t.Errorf("resolveOne = %v, %v", one, err)
	}
}
