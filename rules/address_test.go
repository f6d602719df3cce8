package rules_test

import (
	"testing"

	"github.com/sluicecluster/sluice/rules"
)

// TestAddressForms: ip_prefix reads an address as forward auth does, whichever form a proxy or a program sends. Otherwise a client gets
// a counter per connection.
func TestAddressForms(t *testing.T) {
	r := mustParse(t, "domain: d\ndescriptors:\n  - {key: a, ip_prefix: {v4: 24, v6: 64}, limits: [100/1h]}\n").Rules()[0]
	d := []rules.Entry{{Key: "a"}}
	var room [64]byte
	counter := func(value string) string {
		d[0].Value = value
		return string(r.AppendKey(room[:0], "d", d))
	}
	for _, c := range []struct {
		as     string
		values []string
	}{
		{"203.0.113.0", []string{"203.0.113.8:5001", "203.0.113.8:5002", " 203.0.113.11", "203.0.113.11\t", "198.51.100.9, 203.0.113.7", "x,[::ffff:203.0.113.7]:80", "::ffff:203.0.113.1"}},
		{"2001:db8::", []string{"[2001:db8::1]:443", "[2001:db8::1]", "2001:db8::1%eth0", "[2001:db8::1%eth0]:443", "203.0.113.7, 2001:db8::2"}},
	} {
		for _, v := range c.values {
			if counter(v) != counter(c.as) {
				t.Errorf("%q is not counted as %s", v, c.as)
			}
			if n := testing.AllocsPerRun(10, func() { d[0].Value = v; r.AppendKey(room[:0], "d", d) }); n > 0 {
				t.Errorf("%q: %v allocations", v, n)
			}
		}
	}
	for _, v := range []string{
		"203.0.113.8:", "203.0.113.8:x", "203.0.113.8:65536", "[203.0.113.8]", "[203.0.113.8]:1", "[2001:db8::1", "[2001:db8::1]x", "[2001:db8::1]:", "2001:db8::1]:80",
		"203.0.113.8, ", "203.0.113.8, unknown", "203.0.113.8:1:2", "", "[]", "[]:1", ":80", "203.0.113.0/24",
	} {
		if counter(v) == counter("203.0.113.0") || counter(v) == counter("2001:db8::") {
			t.Errorf("%q is counted as an address", v)
		}
	}
}
