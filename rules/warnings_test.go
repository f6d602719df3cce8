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
	for _, w := range mustParse(t, text).Warnings() {
		fmt.Fprintln(&all, w)
	}
	return strings.TrimSpace(all.String())
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
