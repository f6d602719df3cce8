package rules_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/rules"
)

// warnings returns those of a file, one per line.
func warnings(t *testing.T, text string) string {
	t.Helper()
	var all strings.Builder
	for _, w := range load(t, text).Warnings() {
		fmt.Fprintln(&all, w)
	}
	return strings.TrimSpace(all.String())
}

// TestWarnings: what loads, and is told what becomes of it. The first are oddities that envoyproxy/ratelimit loads, too.
func TestWarnings(t *testing.T) {
	const (
		tree  = "descriptors:\n  - key: a\n    value: x*\n    descriptors:\n      - key: b\n        rate_limit: {unit: day, count: 1}\n  - key: c\n"
		unmet = "f.yaml:2: authorize.descriptors[0]: no rule of the domain has these keys, so nothing limits what is checked here"
	)
	long := strings.Repeat("v", 1025)
	log := func(limit string) string {
		return head + "  - key: a\n    limits: [{algorithm: sliding_log, " + limit + "}]\n"
	}
	asks := func(lines string) string { return "domain: d\nauthorize: {" + lines + "}\n" + tree }
	for _, c := range []struct{ name, text, want string }{
		{"nothing but a domain", "domain: d\n", ""},
		{"nulls", "domain: d\ndescriptors:\n  - key: a\n    value:\n    rate_limit:\n    descriptors:\n    shadow_mode: ~\n", ""},
		{"a number for a domain", "domain: 5\n", ""},
		{"values that are not text", head + "  - {key: a, value: 5}\n  - {key: a, value: yes}\n  - {key: a, value: 2024-01-01}\n", ""},
		{"document marks", "---\ndomain: d\n...\n---\n", ""},
		{"anchors and merges", head + "  - key: a\n    rate_limit: &l {unit: day, requests_per_unit: 1}\n  - key: b\n    rate_limit: *l\n  - key: c\n    rate_limit: {<<: *l, name: x}\n", ""},
		{"JSON", `{"domain": "d", "descriptors": [{"key": "a", "rate_limit": {"unit": "day", "requests_per_unit": 1}}]}`, ""},
		{"key in the wrong mapping", one("unit: day, requests_per_unit: 1, shadow_mode: true"), "f.yaml:4: d/a.rate_limit: the key shadow_mode has no effect here; it belongs in a descriptor"},
		{"count is missing", one("unit: day"), "f.yaml:4: d/a.rate_limit: requests_per_unit is missing, which blocks everything; write 0 if that is meant"},
		{"name that nothing has", head + "  - {key: a, name: n}\n", "f.yaml:3: d/a.name: has no effect without limits beside it"},
		{"wildcard in the key", head + "  - key: a*\n", "f.yaml:3: d/a*.key: * is a wildcard in value only; in key it stands for itself"},
		{"a long value", head + "  - key: a\n    value: " + long + "\n", ""},
		{"a key that cannot come", head + "  - key: " + long + "\n", "f.yaml:3: d/" + long[:80] + "….key: has 1025 bytes, and a check cannot carry more than 1024: nothing will match it"},
		{"eventual", beside("consistency: eventual\n    replication: none\n    on_partition: closed"), ""},
		{"eventual by the calendar", one("unit: month, align: calendar, timezone: Europe/Berlin, count: 1") + "    consistency: eventual\n", ""},
		{"eventual and nothing", one("unit: day, count: 0") + "    consistency: eventual\n", ""},
		{"a log of all", log("count: 1024, period: 1h"), ""},
		{"a log of more entries", log("count: 3000, period: 1h, log_entries: 3000"), ""},
		{"a log of large checks", log("count: 3000, period: 1h, weight: 3"), ""},
		{"a long log", log("count: 3000, period: 1h"), "f.yaml:4: d/a.limits[0]: count is above log_entries: a check may count 7.04501s longer than the period; use sliding_window, or more log_entries"},
		{"a short log", log("count: 6, period: 12s, log_entries: 3"), "f.yaml:4: d/a.limits[0]: count is above log_entries: a check may count 6s longer than the period; use sliding_window, or more log_entries"},
		{"sub-windows", one("algorithm: sliding_window, count: 3000, period: 1h"), ""},
		{"both keys", asks("descriptors: [[{key: a, value: x}, {key: b, from: method}]]"), ""},
		{"one of two keys", asks("descriptors: [[{key: a, value: x}]]"), unmet},
		{"the second key", asks("descriptors: [[{key: b, value: x}]]"), unmet},
		{"a key without limits", asks("descriptors: [[{key: c, value: x}]]"), unmet},
		{"everybody trusted", asks("trusted_proxies: [0.0.0.0/0], descriptors: [[{key: a, value: x}, {key: b, from: client_address}]]"),
			"f.yaml:2: authorize.trusted_proxies[0]: every caller is trusted: any client that reaches this node can name any address as its own"},
		{"nobody trusted", asks("descriptors: [[{key: a, value: x}, {key: b, from: client_address}]]"),
			"f.yaml:2: authorize.trusted_proxies: without trusted_proxies the client's address is that of the proxy, so all clients are one"},
	} {
		if got := warnings(t, c.text); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestLiterals: a value that only makes sense as an expression is reported with what to write instead, and nothing else is.
func TestLiterals(t *testing.T) {
	const (
		network, span, regular = "a network is compared as text", "a range is compared as text", "a regular expression is compared as text"
		grouped                = "have the caller send the name of their group"
	)
	for _, c := range []struct{ value, what, remedy string }{
		{"10.0.0.0/8", network, "write 10.*"},
		{"192.168.0.0/16", network, "write 192.168.*"},
		{"10.1.2.0/24", network, "write 10.1.2.*"},
		{"10.0.0.0/9", network, grouped},
		{"192.0.2.1/32", network, grouped},
		{"0.0.0.0/0", network, grouped},
		{"2001:db8::/32", network, grouped},
		{"10.0.0.1-10.0.0.9", span, grouped},
		{"2001:db8::1 - 2001:db8::f", span, grouped},
		{"^/api/.*$", regular, "/api/*"},
		{".*", regular, "/api/*"},
		{"/api/.*", regular, "/api/*"},
		{`/users/\d+`, regular, "/api/*"},
		{`.+\.php`, regular, "/api/*"},
		{"(get|post)", regular, "/api/*"},
		{"/v[0-9]/items", regular, "/api/*"},
	} {
		for where, text := range map[string]string{
			"f.yaml:3: d/k": "domain: d\ndescriptors:\n  - {key: k, value: '%s', limits: [{unlimited: true}]}\n",
			"f.yaml:3: authorize.descriptors[0][0].patterns[0]": "domain: d\nauthorize:\n  descriptors: [[{key: k, from: path, patterns: ['%s']}]]\n" +
				"descriptors: [{key: k, limits: [1/1s]}]\n",
		} {
			if got := warnings(t, fmt.Sprintf(text, c.value)); !strings.HasPrefix(got, where) || !strings.Contains(got, c.what) || !strings.HasSuffix(got, c.remedy) {
				t.Errorf("%s: got %q, want %s: %s …; %s", c.value, got, where, c.what, c.remedy)
			}
		}
	}
	for _, value := range []string{
		"10.*", "192.168.*", "api.*", "*.example.com", "/api/*", "/a/*/b", "*", "10.0.0.1", "2001:db8::1", "18-24", "2024-01-02", "400-499", `CORP\dave`,
		"/users/{id}", "GET /x", "a+b@example.com", "c++", "100$", "[x]", "(beta)", "key (old)", "a|b", "/.well-known/x", "8/8", "v1.2.3", "us-east-1",
	} {
		if got := warnings(t, "domain: d\ndescriptors:\n  - {key: k, value: '"+value+"', limits: [1/1s]}\n"); got != "" {
			t.Errorf("%s: %s", value, got)
		}
	}
	if got := warnings(t, "domain: d\ndescriptors:\n  - {key: masked_remote_address, value: 10.0.0.0/8, limits: [1/1s]}\n"); got != "" {
		t.Errorf("what Envoy sends: %s", got)
	}
}

// TestHiddenRules: a value below which a check matches no rule, though one of its key alone would match, is reported.
func TestHiddenRules(t *testing.T) {
	const paths = `
  - key: addr
    descriptors:
      - {key: path, value: /api, limits: [100/1m]}
      - {key: rest, limits: [500/1m]}`
	const hides = "f.yaml:7: d/addr=192.0.2.10: hides addr/"
	for _, c := range []struct{ name, more, want string }{
		{"an exemption of one path", "\n  - key: addr\n    value: 192.0.2.10\n    descriptors: [{key: path, value: /api, limits: [{unlimited: true}]}]", hides + "rest (f.yaml:6) and has no rule instead"},
		{"a limit of its own", "\n  - {key: addr, value: 192.0.2.10, limits: [5/1s]}", hides + "path=/api (f.yaml:5) and"},
		{"a pattern", "\n  - {key: addr, value: 192.0.2.*, limits: [5/1s]}", "d/addr=192.0.2.*: hides addr/path=/api"},
		{"both repeated", "\n  - key: addr\n    value: 192.0.2.10\n    descriptors: [{key: path, limits: [{unlimited: true}]}, {key: rest, limits: [1/1s]}]", ""},
		{"otherwise", "\n  - key: addr\n    value: 192.0.2.10\n    otherwise: {limits: [1/1s]}", ""},
		{"otherwise of the domain", "\n  - {key: addr, value: 192.0.2.10, limits: [5/1s]}\notherwise: {limits: [1/1s]}", ""},
		{"longer descriptors", "\n  - {key: user, limits: [1/1s]}\n  - {key: user, value: ann, descriptors: [{key: path, limits: [9/1s]}]}", ""},
		{"exempt, as envoyproxy/ratelimit has it", "\n  - {key: addr, value: 192.0.2.10}", ""},
		{"exempt", "\n  - {key: addr, value: 192.0.2.10, limits: [{unlimited: true}]}", ""},
		{"another key", "\n  - {key: user, value: 192.0.2.10, limits: [1/1s]}", ""},
		{"deeper", `
  - key: tenant
    descriptors:
      - {key: user, limits: [1/1s], descriptors: [{key: path, limits: [1/1s]}]}
      - {key: user, value: ann, limits: [9/1s]}`, "f.yaml:10: d/tenant/user=ann: hides user/path (f.yaml:9)"},
		{"the value alone", `
  - {key: user, limits: [1/1s], descriptors: [{key: path, limits: [1/1s]}]}
  - {key: user, value: ann, descriptors: [{key: path, limits: [9/1s]}]}`, "d/user=ann: hides user (f.yaml:7)"},
		{"otherwise of the key alone", `
  - {key: user, otherwise: {limits: [1/1s]}}
  - {key: user, value: ann, limits: [9/1s]}`, "d/user=ann: hides user (f.yaml:7)"},
	} {
		got := warnings(t, "domain: d\ndescriptors:"+paths+c.more+"\n")
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) || strings.Count(got, "\n") > 0 || got != "" && !strings.HasSuffix(got, "; repeat the rule here, or add otherwise") {
			t.Errorf("%s: %q\nwant %q", c.name, got, c.want)
		}
	}
}

// TestManyWarnings: a hundred are kept, and the rest are counted.
func TestManyWarnings(t *testing.T) {
	text := "domain: d\ndescriptors:\n  - {key: a, descriptors: [{key: b, limits: [1/1s]}]}\n"
	for i := range 5000 {
		text += fmt.Sprintf("  - {key: a, value: v%d, limits: [1/1s]}\n", i)
	}
	list := mustParse(t, text).Warnings()
	if len(list) != 101 || list[100].String() != "f.yaml:104: and 4900 more warnings" {
		t.Errorf("%d warnings, the last %v", len(list), list[len(list)-1])
	}
}

// TestManifest: a Kubernetes manifest is told what it is, once.
func TestManifest(t *testing.T) {
	const configMap = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: ratelimit-config}\ndata:\n  config.yaml: |\n    domain: d\n"
	for name, c := range map[string]struct{ text, want string }{
		"one":     {configMap, "f.yaml:1: a Kubernetes manifest (ConfigMap), not a rule file: give the text under data, as a file of its own"},
		"several": {"---\nkind: Deployment\napiVersion: apps/v1\n---\n" + configMap, "f.yaml:2: a Kubernetes manifest (Deployment), not a rule file: give the text under data, as a file of its own"},
	} {
		if _, err := parse(t, c.text); err == nil || err.Error() != c.want {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, text := range []string{"domain: d\nkind: x\n", "apiVersion: v1\n", "kind: a\nkind: b\n"} {
		if _, err := parse(t, text); err == nil || strings.Contains(err.Error(), "Kubernetes") {
			t.Errorf("%q: %v", text, err)
		}
	}
	if _, err := rules.Parse([]rules.File{{Name: "a.yaml", Data: []byte(configMap)}, {Name: "b.yaml", Data: []byte("domain: d\nx: 1\n")}}, rules.Options{}); len(rules.Errors(err)) != 2 {
		t.Errorf("beside another file: %v", err)
	}
}
