package main

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// testSettings are those of a node on free ports of 127.0.0.1 with one rule.
func testSettings(t *testing.T) settings {
	t.Helper()
	s := defaultSettings()
	s.name, s.bind, s.secret = "n1", "127.0.0.1", bytes.Repeat([]byte("x"), 32)
	s.grpcPort, s.httpPort, s.peerPort, s.gossipPort = 0, 0, 0, 0
	// What nodes decide is looked at, not how soon they lose patience with a machine that does other things too: they refuse
	// nothing because work waits for a processor, and a stall of a second neither takes their right nor has on_failure answer.
	s.bounds.maxWait, s.right, s.checkTimeout, s.rejoin = 0, 1800*time.Millisecond, 10*time.Second, 50*time.Millisecond
	s.rules = t.TempDir()
	writeRule(t, s.rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n")
	return s
}

// writeRule puts text into force whole: nobody reads half of it.
func writeRule(t *testing.T, dir, text string) {
	t.Helper()
	next := filepath.Join(dir, ".next")
	if err := os.WriteFile(next, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, filepath.Join(dir, "rules.yaml")); err != nil {
		t.Fatal(err)
	}
}

// running is a node under test.
type running struct {
	*node
	tell func()       // begins to end it
	stop func() error // ends it and returns run's error; may be called again
}

// startNode runs a node with s until the test ends; change may alter it before it runs.
func startNode(t *testing.T, s settings, change ...func(*node)) *running {
	t.Helper()
	r := startNodeUnready(t, s, change...)
	await(t, "ready", func() bool { ok, _ := r.ready(); return ok })
	return r
}

// startNodeUnready is startNode without waiting until it is ready.
func startNodeUnready(t *testing.T, s settings, change ...func(*node)) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n, err := openNode(ctx, s, slog.New(slog.DiscardHandler))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	for _, f := range change {
		f(n)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.run(ctx) }()
	var result error
	stopped := false
	r := &running{node: n, tell: cancel, stop: func() error {
		if !stopped {
			stopped = true
			cancel()
			result = <-ended
		}
		return result
	}}
	t.Cleanup(func() { r.stop() })
	return r
}

// await polls until ok, at most 10 s.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not %s within 10 s", what)
		}
		<-tick.C
	}
}

func (r *running) get(t *testing.T, path string) (int, string) {
	t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get("http://" + r.listen.http.Addr().String() + path)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(body)
}

// cli runs one command line and returns its exit code and what it printed.
func cli(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

func TestNodeLeavesNothingBehind(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	n := startNode(t, testSettings(t))
	n.get(t, "/metrics")
	began := time.Now()
	if err := n.stop(); err != nil {
		t.Errorf("run: %v", err)
	}
	if took := time.Since(began); took > 5*time.Second {
		t.Errorf("stopped after %v, want under 5 s", took)
	}
	goleak.VerifyNone(t, ignore)
}

func TestCheckExitCodes(t *testing.T) {
	s := testSettings(t)
	writeRule(t, s.rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n  - key: free\n    rate_limit: {unlimited: true}\n")
	n := startNode(t, s)
	addr := n.listen.grpc.Addr().String()
	strict := testSettings(t)
	strict.unknownDomain = "error"
	strictAddr := startNode(t, strict).listen.grpc.Addr().String()
	check := func(args ...string) []string { return append([]string{"check", "--addr", addr}, args...) }
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"first", check("--domain", "auth", "user=a"), 0, "allowed: 1 of 2 remaining", ""},
		{"second, as JSON", check("--domain", "auth", "-o", "json", "user=a"), 0, `"remaining":0`, ""},
		{"third", check("--domain", "auth", "user=a"), 1, "denied: 0 of 2 remaining, retry after", ""},
		{"read", check("--domain", "auth", "--verb", "read", "user=a"), 1, "denied", ""},
		{"never", check("--domain", "auth", "--cost", "3", "user=a"), 1, "denied for good", ""},
		{"refund", check("--domain", "auth", "--verb", "refund", "user=a"), 0, "1 of 2", ""},
		{"reset", check("--domain", "auth", "--verb", "reset", "user=a"), 0, "reset, held by n1", ""},
		{"reset as JSON", check("--domain", "auth", "--verb", "reset", "-o", "json", "user=a"), 0, `{"reset":true,"rule":"auth/user","holder":"n1"}`, ""},
		{"reset of nothing", check("--domain", "other", "--verb", "reset", "user=a"), 4,
			"nothing to reset: no rule matches (no rule file describes the domain \"other\"; known: auth)\n", ""},
		{"reset without limits", check("--domain", "auth", "--verb", "reset", "free=a"), 0, "nothing to reset: the rule auth/free is unlimited\n", ""},
		{"after reset", check("--domain", "auth", "user=a"), 0, "1 of 2", ""},
		{"unlimited", check("--domain", "auth", "free=a"), 0, "allowed: unlimited\nrule auth/free\n", ""},
		{"unknown domain", check("--domain", "other", "user=a"), 4,
			"not limited: no rule matches (no rule file describes the domain \"other\"; known: auth)\n", ""},
		{"no rule", check("--domain", "auth", "--verb", "read", "usr=a"), 4, "not limited: no rule matches (nothing matches usr=a at level 1)\n", ""},
		{"no rule, as JSON", check("--domain", "other", "-o", "json", "user=a"), 4,
			`{"allowed":true,"matched":false,"reason":"no rule file describes the domain \"other\"","domains":["auth"],`, ""},
		{"no =", check("--domain", "auth", "user", "a"), 2, "", "argument \"user\": want KEY=VALUE; did you mean user=a?"},
		{": for =", check("--domain", "auth", "user:a"), 2, "", "argument \"user:a\": want KEY=VALUE; did you mean user=a?"},
		{"only a key", check("--domain", "auth", "user"), 2, "", "argument \"user\": want KEY=VALUE; for an empty value write user="},
		{"empty value", check("--domain", "auth", "user="), 0, "allowed: 1 of 2", ""},
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
	dir := t.TempDir()
	writeRule(t, dir, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n")
	bad, skipped := t.TempDir(), t.TempDir()
	for _, file := range []string{filepath.Join(dir, "load_test.yaml"), filepath.Join(skipped, "rules.conf")} {
		if err := os.WriteFile(file, []byte("domain: load\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	writeRule(t, bad, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: -2, period: 1h}\n")
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"sound", []string{"rules", "check", dir}, 0, "1 rules: sound", ""},
		{"a file that is not read", []string{"rules", "check", dir}, 0, "warning: not read: " + filepath.Join(dir, "load_test.yaml") + ": ", ""},
		{"test cases", []string{"rules", "check", "../../examples/rules"}, 0, "\n6 files called *_test.yaml, for sluice rules test\n6 domains", ""},
		{"nothing to read", []string{"rules", "check", skipped}, 1, "", "not read: " + filepath.Join(skipped, "rules.conf") + ": "},
		{"unsound", []string{"rules", "check", bad}, 1, "", "rules.yaml:4"},
		{"missing", []string{"rules", "check", filepath.Join(dir, "none")}, 1, "", "none"},
		{"examples", []string{"rules", "test", "../../examples/rules"}, 0, ", 0 failed", ""},
		{"no cases", []string{"rules", "test", filepath.Join(dir, "rules.yaml")}, 1, "", "no test cases"},
		{"explain", []string{"rules", "explain", dir, "user=x"}, 0, "rule auth/user: 2 in 1h", ""},
		{"explain a pool", []string{"rules", "explain", "../../examples/rules", "--domain", "search", "class=people", "batch=x"}, 0,
			"beyond that: pool spare, 100 in 1s (token bucket), with priority people, which leaves 20 free; at full load 10\n", ""},
		{"explain no match", []string{"rules", "explain", dir, "tenant=x"}, 4, "not limited: no rule matches (nothing matches tenant=x at level 1)\n", ""},
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

func TestReload(t *testing.T) {
	s := testSettings(t)
	n := startNode(t, s)
	addr := n.listen.grpc.Addr().String()
	limit := func() string {
		_, out, _ := cli("check", "--addr", addr, "--domain", "auth", "--verb", "read", "user=a")
		return out
	}
	if got := limit(); !strings.Contains(got, "of 2 ") {
		t.Fatalf("before: %s", got)
	}
	writeRule(t, s.rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 7, period: 1h}\n")
	await(t, "limited to 7", func() bool { return strings.Contains(limit(), "of 7 ") })

	writeRule(t, s.rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: seven, period: 1h}\n")
	await(t, "complaining", func() bool { return n.rulesError() != nil })
	if got := limit(); !strings.Contains(got, "of 7 ") {
		t.Errorf("with a bad file: %s", got)
	}
	if status, body := n.get(t, "/healthz"); status != http.StatusOK || !strings.Contains(body, "rules.yaml:4") {
		t.Errorf("/healthz: %d %s", status, body)
	}
	if status, body := n.get(t, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz: %d %s", status, body)
	}
	_, metrics := n.get(t, "/metrics")
	for _, want := range []string{"sluice_rules_stale 1", "sluice_rules_generation 2", "sluice_rules_failures_total 1"} {
		if !strings.Contains(metrics, want) {
			t.Errorf("/metrics has no %q", want)
		}
	}

	if err := os.WriteFile(filepath.Join(s.rules, "load_test.yaml"), []byte("domain: load\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	writeRule(t, s.rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 7, period: 1h}\n")
	await(t, "reporting a file that is not read", func() bool {
		_, body := n.get(t, "/healthz")
		return strings.Contains(body, `"rules_skipped":["`+filepath.Join(s.rules, "load_test.yaml")+`: `)
	})
	if _, metrics = n.get(t, "/metrics"); !strings.Contains(metrics, "sluice_rules_skipped_files 1") || !strings.Contains(metrics, "sluice_rules_stale 0") {
		t.Error("/metrics does not count the file that is not read, or the rules are stale")
	}
}

// Every family must be scraped without a clash of names or labels.
func TestMetrics(t *testing.T) {
	s := testSettings(t)
	writeRule(t, s.rules, "domain: auth\npools: {spare: {limit: {count: 1, period: 1h}}}\ndescriptors:\n  - key: user\n"+
		"    detailed_metric: true\n    rate_limit: {count: 2, period: 1h}\n  - key: team\n    rate_limit: {count: 0, period: 1h}\n    elastic: {pool: spare}\n")
	s.gossipKeyring = writeFile(t, keyOne)
	newPapers(t).withPeerTLS(t, &s)
	n := startNode(t, s)
	addr := n.listen.grpc.Addr().String()
	for range 3 {
		cli("check", "--addr", addr, "--domain", "auth", "user=a")
	}
	for domain, key := range map[string]string{"auth": "nobody=a", "one": "user=a", "two": "user=a"} {
		cli("check", "--addr", addr, "--domain", domain, key)
	}
	status, text := n.get(t, "/metrics")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	for _, f := range families {
		name := f.name
		if !strings.Contains(text, "# HELP "+name+" ") {
			t.Errorf("no %s", name)
		}
	}
	for _, want := range []string{
		`sluice_rule_checks_total{domain="auth",result="allowed",rule="auth/user"} 2`,
		`sluice_rule_checks_total{domain="auth",result="denied",rule="auth/user"} 1`,
		`sluice_descriptor_checks_total{descriptor="auth/user=a",domain="auth",result="allowed"} 2`,
		`sluice_answers_total{source="held"} 3`,
		`sluice_unmatched_checks_total{domain="auth"} 1`, `sluice_unmatched_checks_total{domain="(unknown)"} 2`,
		`sluice_check_duration_seconds_count{door="grpc"} 6`, `sluice_check_duration_seconds_count{door="http"} 0`, "sluice_counters 1", "sluice_partitions 1021", "sluice_members 1",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
}

// Others are told --advertise for every port, whatever --bind is.
func TestAdvertise(t *testing.T) {
	s := testSettings(t)
	s.advertise = "192.0.2.7" // never dialled: the node is alone
	n := startNode(t, s)
	self := n.gossip.Self()
	for name, addr := range map[string]string{"gossip": self.Gossip, "peer": self.Peer, "gRPC": self.GRPC, "HTTP": self.HTTP} {
		if !strings.HasPrefix(addr, "192.0.2.7:") {
			t.Errorf("%s: %s", name, addr)
		}
	}
}
