package rules_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicecluster/sluice/rules"
	_ "github.com/sluicecluster/sluice/test/seeded"
)

const keyTree = `
domain: d
descriptors:
  - key: path
    value: "/r/*"
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 1}
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 1}
  - key: path
    value: "/s/*"
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: ip
    ip_prefix: {v4: 24, v6: 64}
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: whole
    ip_prefix: {}
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: plain
    rate_limit: {unit: day, requests_per_unit: 1}
`

// TestKeySharing: which descriptors have one counter.
func TestKeySharing(t *testing.T) {
	set := mustParse(t, keyTree)
	key := func(s string) string {
		d := entries(s)
		r, _ := set.Match("d", d)
		if r == nil {
			t.Fatalf("%s: no rule", s)
		}
		return string(r.AppendKey(nil, "d", d))
	}
	for _, c := range []struct {
		a, b string
		same bool
	}{
		{"path=/r/a", "path=/r/b", true},
		{"path=/r/a", "path=/r/*", true},
		{"path=/r/a user=x", "path=/r/b user=x", true},
		{"path=/r/a user=x", "path=/r/a user=y", false},
		{"path=/r/a", "path=/r/a user=x", false},
		{"path=/s/a", "path=/s/b", false},
		{"ip=192.0.2.1", "ip=192.0.2.200", true},
		{"ip=192.0.2.1", "ip=192.0.3.1", false},
		{"ip=192.0.2.1", "ip=::ffff:192.0.2.9", true},
		{"ip=192.0.2.1", "ip=192.0.2.0/24", false}, // text that looks like a block is no block
		{"ip=2001:db8::1", "ip=2001:db8:0:0:ffff::", true},
		{"ip=2001:db8::1", "ip=2001:DB8::2%eth0", true},
		{"ip=2001:db8::1", "ip=2001:db8:0:1::1", false},
		{"ip=192.0.2.1%eth0", "ip=192.0.2.2%eth0", false}, // no address
		{"ip=fe80::1%" + strings.Repeat("x", 900), "ip=fe80::2", true},
		{"ip=" + strings.Repeat("1", 900), "ip=" + strings.Repeat("1", 901), false},
		{"ip=unknown", "ip=unknowm", false},
		{"ip=0.0.0.0", "ip=::", false},
		{"whole=10.0.0.1", "whole=10.0.0.2", false},
		{"whole=10.0.0.1", "whole=::ffff:a00:1", true},
		{"whole=::1", "whole=0:0::1", true},
		{"plain=a", "plain=b", false},
	} {
		if got := key(c.a) == key(c.b); got != c.same {
			t.Errorf("%s and %s: one counter %v, want %v", c.a, c.b, got, c.same)
		}
	}
	room := make([]byte, 0, 4096)
	for _, text := range []string{"path=/r/a", "path=/r/a user=x", "path=/s/a", "ip=192.0.2.1", "ip=2001:db8::1", "ip=fe80::1%eth0", "plain=a"} {
		d := entries(text)
		r, _ := set.Match("d", d)
		if n := testing.AllocsPerRun(100, func() { r.AppendKey(room, "d", d) }); n != 0 {
			t.Errorf("%s: %v allocations", text, n)
		}
	}
}

// TestKeysAreUnambiguous: without a rule, different names give different bytes,
// however domain, keys and values are cut.
func TestKeysAreUnambiguous(t *testing.T) {
	text := rapid.StringOfN(rapid.SampledFrom([]rune("a=/\x00\x01\x03\x06")), 0, 3, -1)
	name := rapid.Custom(func(t *rapid.T) []string {
		return rapid.SliceOfN(text, 1, 7).Draw(t, "parts")
	})
	var none *rules.Rule
	key := func(parts []string) string {
		var d []rules.Entry
		for i := 1; i+1 < len(parts); i += 2 {
			d = append(d, rules.Entry{Key: parts[i], Value: parts[i+1]})
		}
		return string(none.AppendKey(nil, parts[0], d))
	}
	rapid.Check(t, func(t *rapid.T) {
		a, b := name.Draw(t, "a"), name.Draw(t, "b")
		a, b = a[:len(a)-(len(a)+1)%2], b[:len(b)-(len(b)+1)%2]
		if same := fmt.Sprintf("%q", a) == fmt.Sprintf("%q", b); (key(a) == key(b)) != same {
			t.Fatalf("%q and %q: keys %q and %q", a, b, key(a), key(b))
		}
	})
}

// TestKeyOfRuleIsPlain: a rule that normalises nothing names the counter as no
// rule does, so that a limit sent with a check and one in a file meet.
func TestKeyOfRuleIsPlain(t *testing.T) {
	set := mustParse(t, keyTree)
	d := entries("plain=a")
	r, _ := set.Match("d", d)
	var none *rules.Rule
	if got, want := r.AppendKey([]byte("x"), "d", d), none.AppendKey([]byte("x"), "d", d); !bytes.Equal(got, want) || got[0] != 'x' {
		t.Errorf("got %q, want %q", got, want)
	}
	// A shared counter is not that of a value that reads like the pattern.
	d = entries("path=/r/*")
	r, _ = set.Match("d", d)
	if bytes.Equal(r.AppendKey(nil, "d", d), none.AppendKey(nil, "d", d)) {
		t.Error("a value shares the counter of the pattern it reads like")
	}
}

func TestMetricNames(t *testing.T) {
	set := mustParse(t, `
domain: d
descriptors:
  - key: plain
    rate_limit: {unlimited: true}
  - key: shown
    value_to_metric: true
    descriptors:
      - {key: x, rate_limit: {unlimited: true}}
  - {key: all, detailed_metric: true, rate_limit: {unlimited: true}}
  - {key: wild, value: "a*", rate_limit: {unlimited: true}}
  - {key: wild, value: "b*", value_to_metric: true, rate_limit: {unlimited: true}}
  - {key: wild, value: "c*", value_to_metric: true, share_threshold: true, rate_limit: {unlimited: true}}
  - {key: exact, value: e, detailed_metric: true, rate_limit: {unlimited: true}}
`)
	for _, c := range []struct {
		descriptor, want string
		perValue         bool
	}{
		{"plain=1", "d/plain", false},
		{"shown=1 x=2", "d/shown=1/x", true},
		{"all=1", "d/all=1", true},
		{"wild=a1", "d/wild=a*", false},
		{"wild=b1", "d/wild=b1", true},
		{"wild=c1", "d/wild=c*", false},
		{"exact=e", "d/exact=e", false},
	} {
		d := entries(c.descriptor)
		r, _ := set.Match("d", d)
		if got := string(r.AppendMetric(nil, d, nil)); got != c.want || r.PerValueMetric() != c.perValue {
			t.Errorf("%s: got %s, per value %v; want %s, %v", c.descriptor, got, r.PerValueMetric(), c.want, c.perValue)
		}
	}
}
