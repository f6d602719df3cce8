package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCommandsOfANode: what commands print of one node, which they change little. Those about the operators' socket are last: it is removed.
func TestCommandsOfANode(t *testing.T) {
	t.Parallel()
	c := testConfig(t)
	c.Admin.Addr, c.Admin.Level, c.Admin.Anywhere = "127.0.0.1:0", new(slog.LevelVar), true
	n := startNode(t, c)
	for _, x := range []struct {
		name string
		f    func(*testing.T, *running)
	}{
		{"inspect", inspectCommand}, {"top", topCommand}, {"health", healthCommand}, {"accept-loss", acceptLossCommand}, {"forget", forgetItself},
		{"status", statusOfANode}, {"console", consoleLogin}, {"operators", operatorsCommands},
	} {
		t.Run(x.name, func(t *testing.T) { x.f(t, n) })
	}
}

func TestCheckExitCodes(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	writeRule(t, s.Rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n  - key: free\n    rate_limit: {unlimited: true}\n")
	n := startNode(t, s)
	addr := n.grpc
	strict := testConfig(t)
	strict.UnknownDomain = "error"
	writeRule(t, strict.Rules, "domain: auth\nunmatched: deny\ndescriptors:\n  - key: user\n    limits: [2/1h]\n")
	strictAddr := startNode(t, strict).grpc
	check := func(args ...string) []string { return append([]string{"check", "--addr", addr}, args...) }
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"first", check("--domain", "auth", "user=a"), 0, "ALLOWED  1/2 left, resets in ", ""},
		{"second, as JSON", check("--domain", "auth", "-o", "json", "user=a"), 0, `"remaining":0`, ""},
		{"third", check("--domain", "auth", "user=a"), 1, "DENIED  0/2 left, retry in ", ""},
		{"read", check("--domain", "auth", "--verb", "read", "user=a"), 1, "DENIED", ""},
		{"never", check("--domain", "auth", "--cost", "3", "user=a"), 1, "DENIED  the cost is above the limit of 2, so it is never admitted", ""},
		{"refund", check("--domain", "auth", "--verb", "refund", "user=a"), 0, "1/2 left", ""},
		{"reset", check("--domain", "auth", "--verb", "reset", "user=a"), 0, "reset by n1", ""},
		{"reset as JSON", check("--domain", "auth", "--verb", "reset", "-o", "json", "user=a"), 0, `{"reset":true,"rule":"auth/user","owner":"n1"}`, ""},
		{"reset of nothing", check("--domain", "other", "--verb", "reset", "user=a"), 4,
			"nothing to reset: no rule matches (no rule file describes the domain \"other\"; known: auth)\n", ""},
		{"reset without limits", check("--domain", "auth", "--verb", "reset", "free=a"), 0, "nothing to reset: the rule auth/free is unlimited\n", ""},
		{"after reset", check("--domain", "auth", "user=a"), 0, "1/2 left", ""},
		{"unlimited", check("--domain", "auth", "free=a"), 0, "ALLOWED  unlimited  (rule auth/free)\n", ""},
		{"unknown domain", check("--domain", "other", "user=a"), 4,
			"NOT LIMITED: no rule matches (no rule file describes the domain \"other\"; known: auth)\n", ""},
		{"no rule", check("--domain", "auth", "--verb", "read", "usr=a"), 4, "NOT LIMITED: no rule matches (nothing matches usr=a at level 1)\n", ""},
		{"no rule, as JSON", check("--domain", "other", "-o", "json", "user=a"), 4,
			`{"allowed":true,"matched":false,"reason":"no rule file describes the domain \"other\"","domains":["auth"],`, ""},
		{"no rule, denied", []string{"check", "--addr", strictAddr, "--domain", "auth", "usr=a"}, 1, "DENIED: no rule matches (nothing matches usr=a at level 1; unmatched is deny)\n", ""},
		{"reset of nothing, denied", []string{"check", "--addr", strictAddr, "--domain", "auth", "--verb", "reset", "usr=a"}, 4,
			"nothing to reset: no rule matches (nothing matches usr=a at level 1; unmatched is deny)\n", ""},
		{"no =", check("--domain", "auth", "user", "a"), 2, "", "argument \"user\": want KEY=VALUE; did you mean user=a?"},
		{": for =", check("--domain", "auth", "user:a"), 2, "", "argument \"user:a\": want KEY=VALUE; did you mean user=a?"},
		{"only a key", check("--domain", "auth", "user"), 2, "", "argument \"user\": want KEY=VALUE; for an empty value write user="},
		{"empty value", check("--domain", "auth", "user="), 0, "ALLOWED  1/2 left", ""},
		{"unknown domain, rejected", []string{"check", "--addr", strictAddr, "--domain", "other", "user=a"}, 2, "", "--domain: no rules for domain other; known: auth"},
		{"no domain", check("user=a"), 2, "", "--domain"},
		{"no descriptor", check("--domain", "auth"), 2, "", "arg"},
		{"empty key", check("--domain", "auth", "=a"), 2, "", "key"},
		{"bad verb", check("--domain", "auth", "--verb", "steal", "user=a"), 2, "", "--verb"},
		{"bad output", check("--domain", "auth", "-o", "xml", "user=a"), 2, "", "--output"},
		{"negative cost", check("--domain", "auth", "--cost", "-1", "user=a"), 2, "", "cost"},
		{"long key", check("--domain", "auth", strings.Repeat("k", 1025)+"=a"), 2, "", "key"},
		{"nobody there", []string{"check", "--addr", "127.0.0.1:1", "--timeout", "1s", "--domain", "auth", "user=a"}, 3, "", "127.0.0.1:1"},
		{"unknown command", []string{"chekc"}, 2, "", "chekc"},
		{"members", []string{"members", "--addr", addr}, 0, "n1 *", ""},
		{"members as JSON", []string{"members", "--addr", addr, "-o", "json"}, 0, `"name":"n1"`, ""},
		{"members of nobody", []string{"members", "--addr", "127.0.0.1:1", "--timeout", "1s"}, 3, "", "127.0.0.1:1"},
		{"version", []string{"version"}, 0, "sluice ", ""},
		{"completion", []string{"completion", "bash"}, 0, "__start_sluice", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := cli(c.args...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
				t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", code, c.code, stdout, stderr)
			}
		})
	}
}

func TestRulesCommands(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	writeRule(t, dir, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n")
	bad, skipped := t.TempDir(), t.TempDir()
	for _, file := range []string{filepath.Join(dir, "load_test.yaml"), filepath.Join(skipped, "rules.conf")} {
		do(t, os.WriteFile(file, []byte("domain: load\n"), 0o644))
	}
	denying := t.TempDir()
	writeRule(t, denying, "domain: auth\nunmatched: deny\ndescriptors:\n  - key: user\n    name: both\n    limits: [2/1h, 5/day]\n    otherwise: {name: deeper, limits: [5/1m, {algorithm: concurrency, count: 3}]}\n")
	writeRule(t, bad, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: -2, period: 1h}\n")
	doubtful, manifest := t.TempDir(), t.TempDir()
	writeRule(t, doubtful, "domain: d\ndescriptors:\n  - {key: a, value: 10.0.0.0/8, limits: [1/1s]}\n  - key: a\n    descriptors: [{key: b, limits: [1/1s]}]\n")
	writeRule(t, manifest, "apiVersion: v1\nkind: ConfigMap\ndata:\n  config.yaml: |\n    domain: d\n")
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"a network", []string{"rules", "check", doubtful}, 0, "warning: " + filepath.Join(doubtful, "rules.yaml") + ":3: d/a=10.0.0.0/8.value: a network is compared as text", ""},
		{"a hidden rule", []string{"rules", "check", doubtful}, 0, "rules.yaml:3: d/a=10.0.0.0/8: hides a/b (", ""},
		{"a manifest", []string{"rules", "check", manifest}, 1, "", "rules.yaml:1: a Kubernetes manifest (ConfigMap), not a rule file: give the text under data"},
		{"sound", []string{"rules", "check", dir}, 0, "1 rules: valid", ""},
		{"a file that is not read", []string{"rules", "check", dir}, 0, "warning: not read: " + filepath.Join(dir, "load_test.yaml") + ": ", ""},
		{"test cases", []string{"rules", "check", "../../examples/rules"}, 0, "\n7 files called *_test.yaml, for sluice rules test\n7 domains", ""},
		{"nothing to read", []string{"rules", "check", skipped}, 1, "", "not read: " + filepath.Join(skipped, "rules.conf") + ": "},
		{"invalid", []string{"rules", "check", bad}, 1, "", "rules.yaml:4"},
		{"missing", []string{"rules", "check", filepath.Join(dir, "none")}, 1, "", "none"},
		{"examples", []string{"rules", "test", "../../examples/rules"}, 0, ", 0 failed", ""},
		{"no cases", []string{"rules", "test", filepath.Join(dir, "rules.yaml")}, 1, "", "no test cases"},
		{"explain", []string{"rules", "explain", dir, "user=x"}, 0, "rule auth/user: 2 in 1h", ""},
		{"explain a pool", []string{"rules", "explain", "../../examples/rules", "--domain", "search", "class=people", "batch=x"}, 0,
			"beyond that: pool spare, 100 in 1s (token bucket), with priority people, which leaves 20 free; at full load 10\n", ""},
		{"explain no match", []string{"rules", "explain", dir, "tenant=x"}, 4, "not limited: no rule matches (nothing matches tenant=x at level 1)\n", ""},
		{"explain a denial", []string{"rules", "explain", denying, "tenant=x"}, 4, "denied: no rule matches (nothing matches tenant=x at level 1; unmatched is deny)\n", ""},
		{"explain otherwise", []string{"rules", "explain", denying, "user=x", "more=y"}, 0,
			"nothing matches more=y at level 2, so otherwise at " + filepath.Join(denying, "rules.yaml") + ":7 applies\nrule deeper: 5 in 1m (fixed window) and 3 at a time (concurrency)", ""},
		{"explain an unknown domain", []string{"rules", "explain", dir, "--domain", "ahut", "user=x"}, 4,
			"not limited: no rule matches (no rule file describes the domain \"ahut\"; known: auth)\n", ""},
		{"explain no =", []string{"rules", "explain", dir, "user", "x"}, 2, "", "did you mean user=x?"},
		{"explain which", []string{"rules", "explain", "../../examples/rules", "user=x"}, 2, "", "--domain"},
		{"no path", []string{"rules", "check"}, 2, "", "arg"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := cli(c.args...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
				t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", code, c.code, stdout, stderr)
			}
		})
	}
}
