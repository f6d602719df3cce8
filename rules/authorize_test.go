package rules_test

import (
	"net/netip"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/rules"
)

// authorize wraps lines that stand below the key authorize, beside a rule for key a.
func authorize(lines string) string {
	return "domain: d\nauthorize:\n" + lines + "descriptors:\n  - key: a\n    rate_limit: {unit: day, requests_per_unit: 1}\n"
}

// entry wraps an entry of the only descriptor in flow style.
func entry(text string) string { return authorize("  descriptors: [[{" + text + "}]]\n") }

func TestAuthorizeAsRead(t *testing.T) {
	set := mustParse(t, authorize(`  descriptors:
    - - {key: a, from: client_address}
`))
	a := set.Authorize("d")
	if set.Authorize("e") != nil || a == nil {
		t.Fatal("authorize of d and of no other domain")
	}
	want := &rules.Authorize{
		File: "f.yaml", Line: 2, AllOrNothing: true,
		Client:      rules.ClientAddress{Header: "X-Forwarded-For", IPPrefix: rules.IPPrefix{V4: 32, V6: 64}},
		Original:    rules.Original{Method: "X-Forwarded-Method", URI: "X-Forwarded-Uri", Host: "X-Forwarded-Host"},
		Descriptors: [][]rules.AuthorizeEntry{{{Key: "a", From: rules.FromClientAddress}}},
	}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("defaults:\ngot  %+v\nwant %+v", a, want)
	}

	a = mustParse(t, authorize(`  trusted_proxies: [127.0.0.1, 10.0.0.0/8, "2001:db8::/32", "::ffff:192.0.2.0/120", "::ffff:192.0.2.7"]
  client_address: {header: X-Real-IP, v4: 24, v6: 56}
  original: {method: X-Original-Method, uri: X-Original-URI, host: X-Original-Host}
  denied_status: 403
  all_or_nothing: false
  descriptors:
    - - {key: a, from: header, name: X-User, default: nobody}
      - {key: b, value: 5}
    - - {key: a, from: method}
      - {key: b, from: host}
`)).Authorize("d")
	want = &rules.Authorize{
		File: "f.yaml", Line: 2, DeniedStatus: 403,
		Trusted: []netip.Prefix{
			netip.MustParsePrefix("127.0.0.1/32"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("2001:db8::/32"),
			netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.7/32"),
		},
		Client:   rules.ClientAddress{Header: "X-Real-IP", IPPrefix: rules.IPPrefix{V4: 24, V6: 56}},
		Original: rules.Original{Method: "X-Original-Method", URI: "X-Original-URI", Host: "X-Original-Host"},
		Descriptors: [][]rules.AuthorizeEntry{
			{{Key: "a", From: rules.FromHeader, Name: "X-User", Value: "nobody"}, {Key: "b", Value: "5"}},
			{{Key: "a", From: rules.FromMethod}, {Key: "b", From: rules.FromHost}},
		},
	}
	if !reflect.DeepEqual(a, want) {
		t.Errorf("all keys:\ngot  %+v\nwant %+v", a, want)
	}
}

func TestAuthorizeEntryOf(t *testing.T) {
	for _, c := range []struct {
		entry string
		of    map[string]string // what the source has: the value
	}{
		{"key: a, value: x", map[string]string{"": "x"}},
		{"key: a, from: path", map[string]string{"": "", "/x": "/x"}},
		{"key: a, from: header, name: N, default: none", map[string]string{"": "none", "x": "x"}},
		{"key: a, from: path, patterns: [/login, /api/*, '*.png', /a*b*c]", map[string]string{
			"": "", "/login": "/login", "/login/": "", "/api/": "/api/*", "/api/x.png": "/api/*", "/x.png": "*.png", "/api": "",
			"/abc": "/a*b*c", "/a-b-c": "/a*b*c", "/ac": "", "/API/": "",
		}},
		{"key: a, from: method, patterns: [GET, HEAD], default: write", map[string]string{"GET": "GET", "POST": "write", "": "write"}},
		{"key: a, from: path, patterns: ['*']", map[string]string{"/": "*", "": ""}},
	} {
		e := mustParse(t, entry(c.entry)).Authorize("d").Descriptors[0][0]
		for source, want := range c.of {
			if got := e.Of(source); got != want {
				t.Errorf("%s: %q is %q, want %q", c.entry, source, got, want)
			}
		}
	}
}

func TestAuthorizeTrusts(t *testing.T) {
	a := mustParse(t, authorize(`  trusted_proxies: [127.0.0.1, 10.0.0.0/8, "fe80::/10", "::ffff:192.0.2.0/120"]
  descriptors: [[{key: a, from: client_address}]]
`)).Authorize("d")
	for addr, want := range map[string]bool{
		"127.0.0.1": true, "127.0.0.2": false, "::ffff:127.0.0.1": true, "10.255.255.255": true, "11.0.0.0": false,
		"fe80::1%eth0": true, "fec0::1": false, "192.0.2.9": true, "::1": false, "::ffff:0:0": false,
	} {
		if got := a.Trusts(netip.MustParseAddr(addr)); got != want {
			t.Errorf("trusts %s: %v", addr, got)
		}
	}
	if a.Trusts(netip.Addr{}) {
		t.Error("an address that is none is trusted")
	}
}

// TestMask: the network is spelled so that a rule's ip_prefix finds the same one.
func TestMask(t *testing.T) {
	p := rules.IPPrefix{V4: 24, V6: 64}
	for addr, want := range map[string]string{
		"192.0.2.77": "192.0.2.0", "::ffff:192.0.2.77": "192.0.2.0", "2001:db8:1:2:3:4:5:6": "2001:db8:1:2::", "fe80::1%eth0": "fe80::",
	} {
		if got := p.Mask(netip.MustParseAddr(addr)).String(); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

const sound = "  descriptors: [[{key: a, value: x}]]\n"

// authorizeFaults are those below authorize.
var authorizeFaults = faults{
	bySchema: []fault{
		{"no mapping", "domain: d\nauthorize: [a]\n", "2: authorize: must be a mapping (key: value), not a list"},
		{"no descriptors", authorize("  denied_status: 403\n"), "2: authorize.descriptors: is missing: name at least one descriptor to check"},
		{"null descriptors", authorize("  descriptors:\n"), "2: authorize.descriptors: is missing: name at least one descriptor to check"},
		{"empty descriptors", authorize("  descriptors: []\n"), "3: authorize.descriptors: is empty; name at least one descriptor to check"},
		{"unknown key", authorize("  trustedproxies: []\n" + sound), `3: authorize: unknown key "trustedproxies"; did you mean trusted_proxies?`},
		{"a key of elsewhere", authorize("  rate_limit: {}\n" + sound), `3: authorize: the key rate_limit belongs in a descriptor, not here`},
		{"authorize in a descriptor", "domain: d\ndescriptors:\n  - key: a\n    authorize: {}\n", "4: d.descriptors[0]: the key authorize belongs in the file's top level, not here"},
		{"status", authorize("  denied_status: 200\n" + sound), "3: authorize.denied_status: must be from 400 to 599, not 200"},
		{"flag", authorize("  all_or_nothing: some\n" + sound), `3: authorize.all_or_nothing: must be true or false, not the string "some"`},
		{"too many proxies", authorize("  trusted_proxies: [" + strings.Repeat("10.0.0.1,", 257) + "]\n" + sound), "3: authorize.trusted_proxies: has 257 networks; at most 256 are allowed"},
		{"prefix v4", authorize("  client_address: {v4: 33}\n" + sound), "3: authorize.client_address.v4: must be from 1 to 32, not 33"},
		{"prefix v6", authorize("  client_address: {v6: 0}\n" + sound), "3: authorize.client_address.v6: must be from 1 to 128, not 0"},
		{"header name", authorize("  client_address: {header: 'a b'}\n" + sound), `3: authorize.client_address.header: "a b" is not the name of an HTTP header`},
		{"Forwarded", authorize("  client_address: {header: forwarded}\n" + sound), "3: authorize.client_address.header: Forwarded is not read; have the proxy send X-Forwarded-For or a header with the address alone"},
		{"Host", authorize("  original: {host: host}\n" + sound), "3: authorize.original.host: Host is not read as a header; an entry takes it with from: host"},
		{"no entries", authorize("  descriptors: [[]]\n"), "3: authorize.descriptors[0]: has no entries; a descriptor is a list of them"},
		{"null descriptor", authorize("  descriptors: [~]\n"), "3: authorize.descriptors[0]: has no entries; a descriptor is a list of them"},
		{"entries without a list", authorize("  descriptors: [{key: a, value: x}]\n"), "3: authorize.descriptors[0]: must be a list (- …), not a mapping"},
		{"too many descriptors", authorize("  descriptors: [" + strings.Repeat("[{key: a, value: x}],", 33) + "]\n"), "3: authorize.descriptors: has 33 descriptors; at most 32 are allowed"},
		{"too many entries", authorize("  descriptors: [[" + strings.Repeat("{key: a, value: x},", 65) + "]]\n"), "3: authorize.descriptors[0]: has 65 entries; no rule lies deeper than 64"},
		{"entry that is no mapping", authorize("  descriptors: [[a]]\n"), "3: authorize.descriptors[0][0]: every entry of a descriptor must be a mapping with a key"},
		{"no key", entry("value: x"), "3: authorize.descriptors[0][0].key: an entry must have a key, which may not be empty"},
		{"no source", entry("key: a"), "3: authorize.descriptors[0][0]: must say where its value comes from, with from, or have a value"},
		{"two sources", entry("key: a, from: path, value: x"), "3: authorize.descriptors[0][0].value: excludes from; default is the value where the source has none"},
		{"unknown source", entry("key: a, from: cookie"), `3: authorize.descriptors[0][0].from: must be one of client_address, header, method, host, path, not "cookie"`},
		{"value as a source", entry("key: a, from: value"), `3: authorize.descriptors[0][0].from: must be one of client_address, header, method, host, path, not "value"`},
		{"empty value", entry("key: a, value: ''"), "3: authorize.descriptors[0][0].value: is empty; leave the key out to leave the descriptor out"},
		{"empty default", entry("key: a, from: path, default: ''"), "3: authorize.descriptors[0][0].default: is empty; leave the key out to leave the descriptor out"},
		{"patterns of a value", entry("key: a, value: x, patterns: [x]"), "3: authorize.descriptors[0][0].patterns: has no effect beside value"},
		{"header without a name", entry("key: a, from: header"), "3: authorize.descriptors[0][0].name: is missing: name the header"},
		{"name without header", entry("key: a, from: path, name: X-A"), "3: authorize.descriptors[0][0].name: is for from: header only"},
		{"the chain as a header", entry("key: a, from: header, name: x-forwarded-for"), "3: authorize.descriptors[0][0].name: clients can put anything into X-Forwarded-For; use from: client_address"},
		{"host as a header", entry("key: a, from: header, name: HOST"), "3: authorize.descriptors[0][0].name: Host is not read as a header; an entry takes it with from: host"},
		{"default of the address", entry("key: a, from: client_address, default: x"), "3: authorize.descriptors[0][0].default: has no effect with from: client_address; every client has an address"},
		{"no patterns", entry("key: a, from: path, patterns: []"), "3: authorize.descriptors[0][0].patterns: is empty; leave the key out to take every value as it is"},
		{"empty pattern", entry("key: a, from: path, patterns: ['']"), "3: authorize.descriptors[0][0].patterns[0]: is empty"},
		{"too many patterns", entry("key: a, from: path, patterns: [" + strings.Repeat("k,", 257) + "]"), "3: authorize.descriptors[0][0].patterns: has 257 patterns; at most 256 are allowed"},
		{"empty key of an entry", entry("key: '', value: a"), "3: authorize.descriptors[0][0].key: an entry must have a key, which may not be empty"},
		{"default of a value", entry("key: a, value: x, default: y"), "3: authorize.descriptors[0][0].default: has no effect beside value"},
		{"patterns of the address", entry("key: a, from: client_address, patterns: [a]"), "3: authorize.descriptors[0][0].patterns: has no effect with from: client_address; every client has an address"},
		{"v6 too long", authorize("  client_address: {v6: 129}\n" + sound), "3: authorize.client_address.v6: must be from 1 to 128, not 129"},
	},
	byReader: []fault{
		{"proxy by name", authorize("  trusted_proxies: [proxy.local]\n" + sound), `3: authorize.trusted_proxies[0]: "proxy.local" is neither an address nor a network such as 10.0.0.0/8`},
		{"network with a host", authorize("  trusted_proxies: [10.0.0.1/8]\n" + sound), `3: authorize.trusted_proxies[0]: "10.0.0.1/8" has bits beyond its length; did you mean 10.0.0.0/8?`},
		{"proxy with a zone", authorize("  trusted_proxies: ['fe80::1%eth0']\n" + sound), `3: authorize.trusted_proxies[0]: "fe80::1%eth0" has a zone, which addresses of callers are compared without`},
		{"long key", entry("key: " + strings.Repeat("k", 1025) + ", value: x"), "3: authorize.descriptors[0][0].key: has 1025 bytes, and a check cannot carry more than 1024"},
		{"long pattern", entry("key: a, from: path, patterns: [" + strings.Repeat("k", 1025) + "]"), "3: authorize.descriptors[0][0].patterns[0]: has 1025 bytes, and a check cannot carry more than 1024"},
	},
}

// FuzzAuthorizePattern: a pattern matches what the regular expression does that says the same.
func FuzzAuthorizePattern(f *testing.F) {
	for _, s := range [][2]string{{"/api/*", "/api/x"}, {"*.png", "/a.png"}, {"a*a", "a"}, {"*a*b*", "xaxbx"}, {"**", ""}, {"/x", "/x"}} {
		f.Add(s[0], s[1])
	}
	f.Fuzz(func(t *testing.T, pattern, path string) {
		set, err := parse(t, entry("key: a, from: path, patterns: ["+strconv.QuoteToASCII(pattern)+"]"))
		if err != nil || path == "" {
			t.Skip()
		}
		e := set.Authorize("d").Descriptors[0][0]
		parts := strings.Split(pattern, "*")
		for i := range parts {
			parts[i] = regexp.QuoteMeta(parts[i])
		}
		same, err := regexp.Compile("(?s)^" + strings.Join(parts, ".*") + "$")
		if err != nil {
			t.Skip() // not UTF-8
		}
		if got := e.Of(path); (got == pattern) != same.MatchString(path) || got != pattern && got != "" {
			t.Errorf("pattern %q, path %q: %q", pattern, path, got)
		}
	})
}
