package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/transport/access"
)

// testToken returns a token of one repeated byte, and its digest.
func testToken(t *testing.T, b byte) (token, digest string) {
	t.Helper()
	token, err := access.NewToken(bytes.NewReader(bytes.Repeat([]byte{b}, 32)))
	if err != nil {
		t.Fatal(err)
	}
	d, ok := access.DigestOf(token)
	if !ok {
		t.Fatal("no token")
	}
	return token, d.String()
}

// TestKnownDomains: of the domains that have rules, a caller learns those that it may use.
func TestKnownDomains(t *testing.T) {
	s := testConfig(t)
	for _, d := range []string{"mine", "team-a", "secret", "reset-only"} {
		rule := "domain: " + d + "\ndescriptors: [{key: user, rate_limit: {count: 2, period: 1h}}]\n"
		if err := os.WriteFile(filepath.Join(s.Rules, d+".yaml"), []byte(rule), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	token, digest := testToken(t, 1)
	s.Callers = writeFile(t, "callers:\n  - name: c\n    tokens: ["+digest+"]\n    grants:\n"+
		"      - {domains: [mine], verbs: [check]}\n      - {domains: [reset-only], verbs: [reset]}\n      - {domains: ['team-*'], verbs: [check, read]}\n"+
		"      - {domains: ['blind-*'], verbs: [check]}\n")
	addr, file := startNode(t, s).grpc, writeFile(t, token)
	check := func(domain string) (int, string, string) {
		return cli("check", "--addr", addr, "--token-file", file, "--domain", domain, "user=a")
	}
	if code, out, errs := check("team-typo"); code != exitNoVerdict || !strings.HasSuffix(out, "; known: mine, team-a)\n") {
		t.Errorf("%d %q %q", code, out, errs)
	}
	if code, out, errs := check("blind-typo"); code != exitNoVerdict || out != "NOT LIMITED: no rule matches\n" {
		t.Errorf("without the verb read: %d %q %q", code, out, errs)
	}
	if code, out, errs := check("secret"); code != exitNoAnswer || strings.Contains(out+errs, "team-a") {
		t.Errorf("a domain of others: %d %q %q", code, out, errs)
	}
}

func TestTokenCommand(t *testing.T) {
	code, out, _ := cli("token")
	var token, digest string
	if n, err := fmt.Sscanf(out, "token   %s\ndigest  %s\n", &token, &digest); n != 2 || code != 0 {
		t.Fatalf("%d %q: %v", code, out, err)
	}
	if d, ok := access.DigestOf(token); !ok || d.String() != digest {
		t.Errorf("the digest of %s is not %s", token, digest)
	}
	path := filepath.Join(t.TempDir(), "token")
	code, digest, _ = cli("token", "--out", path)
	text, err := os.ReadFile(path)
	if err != nil || code != 0 {
		t.Fatal(code, err)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if strings.Contains(digest, string(text[:10])) {
		t.Error("the token is shown although it went to a file")
	}
	if code, again, _ := cli("token", "--of", path); code != 0 || again != digest {
		t.Errorf("%d %q, want %q", code, again, digest)
	}
	if code, _, stderr := cli("token", "--out", path); code != 1 || !strings.Contains(stderr, "--out: ") {
		t.Errorf("over a file: %d %s", code, stderr)
	}
	if code, _, stderr := cli("token", "--of", writeFile(t, "hunter2")); code != 2 || strings.Contains(stderr, "hunter2") {
		t.Errorf("of a word: %d %s", code, stderr)
	}
}

// withEnv has commands see one variable.
func withEnv(t *testing.T, name, value string) {
	t.Helper()
	before := lookupEnv
	t.Cleanup(func() { lookupEnv = before })
	lookupEnv = func(asked string) (string, bool) {
		if asked == name {
			return value, true
		}
		return "", false
	}
}

// TestCommandsShowTokens: every command that asks nodes can say who asks.
func TestCommandsShowTokens(t *testing.T) {
	s := testConfig(t)
	token, digest := testToken(t, 1)
	s.Callers = writeFile(t, "callers: [{name: all, tokens: ["+digest+"], grants: [{domains: ['*'], verbs: [check, read, reset, admin]}]}]\n")
	writeRule(t, s.Rules, "domain: auth\nauthorize: {descriptors: [[{key: user, from: header, name: X-User}]]}\ndescriptors:\n  - key: user\n    rate_limit: {count: 1000000, period: 1h}\n")
	n := startNode(t, s)
	addr, web := n.grpc, n.http
	file := writeFile(t, token+"\n")
	bench := []string{"--concurrency", "1", "--warmup", "0s", "--duration", "300ms"}
	nobody := t.TempDir() // where no operators' socket is
	for _, args := range [][]string{
		{"check", "--addr", addr, "--domain", "auth", "user=a"},
		{"check", "--addr", addr, "--domain", "auth", "--verb", "reset", "user=a"},
		{"members", "--addr", addr, "--operators-dir", nobody},
		{"top", "--addr", addr, "--once", "--operators-dir", nobody},
		{"audit", "--addr", addr, "--discover", "--concurrency", "1", "--keys", "1", "--duration", "300ms", "--answer-within", "1s"},
		append([]string{"bench", "--addr", addr}, bench...),
		append([]string{"bench", "--addr", addr, "--api", "stream"}, bench...),
		append([]string{"bench", "--addr", addr, "--api", "sdk"}, bench...),
		append([]string{"bench", "--addr", web, "--api", "http"}, bench...),
		append([]string{"bench", "--addr", addr, "--api", "gubernator"}, bench...),
		append([]string{"bench", "--addr", addr, "--api", "envoy"}, bench...),
		append([]string{"bench", "--addr", web, "--api", "authorize", "--domain", "auth"}, bench...),
	} {
		t.Run(strings.Join(args[:min(len(args), 5)], " "), func(t *testing.T) {
			if code, out, stderr := cli(args...); code == 0 || !strings.Contains(out+stderr, "requires authentication") {
				t.Errorf("without a token: %d %s %s", code, out, stderr)
			}
			var code int
			var out, stderr string
			await(t, "asked", func() bool { // on a busy machine a short run may end before its first answer
				code, out, stderr = cli(append(args, "--token-file", file)...)
				return !strings.Contains(stderr, "before the first answer") && !strings.Contains(stderr, "no answer in time")
			})
			if code != 0 {
				t.Errorf("with a token: %d %s %s", code, out, stderr)
			}
			if args[0] == "bench" {
				return // as the others, and takes its time
			}
			withEnv(t, "SLUICE_TOKEN", token)
			if code, out, stderr := cli(args...); code != 0 {
				t.Errorf("with SLUICE_TOKEN: %d %s %s", code, out, stderr)
			}
		})
	}
	if code, _, stderr := cli("members", "forget", "nobody", "--addr", addr, "--operators-dir", nobody); code != 1 || !strings.Contains(stderr, "requires authentication") {
		t.Errorf("forget without a token: %d %s", code, stderr)
	}
	if code, _, stderr := cli("members", "forget", "nobody", "--addr", addr, "--token-file", file); code != 1 || !strings.Contains(stderr, "not in the voter set") {
		t.Errorf("forget with a token: %d %s", code, stderr)
	}
	// A token does not leave the machine in the clear.
	code, _, stderr := cli(append([]string{"bench"}, append(bench, "--addr", "sluice.invalid:1", "--api", "http", "--token-file", file)...)...)
	if code != 3 || !strings.Contains(stderr, "without TLS") || strings.Contains(stderr, token) {
		t.Errorf("in the clear: %d %s", code, stderr)
	}
	if code, _, stderr := cli("members", "--addr", addr, "--token-file", file+".not"); code != 3 || !strings.Contains(stderr, "no such file") {
		t.Errorf("without the file: %d %s", code, stderr)
	}
}

// TestClientExchangesTokens: the Go client is given another token, and the old one is taken away, while it asks. No check is
// lost, answered by the failure policy or charged twice.
func TestClientExchangesTokens(t *testing.T) {
	s := testConfig(t)
	writeRule(t, s.Rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 1000000, period: 1h}\n")
	one, digestOne := testToken(t, 1)
	two, digestTwo := testToken(t, 2)
	file := func(digests string) string {
		return "callers: [{name: all, tokens: [" + digests + "], grants: [{domains: [auth], verbs: [check, read]}]}]\n"
	}
	s.Callers = writeFile(t, file(digestOne))
	n := startNode(t, s)
	addr := n.grpc
	ready := func(o ...sluice.Option) error {
		c, err := sluice.New(addr, o...)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		return c.Ready(t.Context())
	}
	if err := ready(sluice.WithToken(sluice.Token(two))); !errors.Is(err, sluice.ErrUnauthenticated) || strings.Contains(err.Error(), two) {
		t.Errorf("with a token that nobody knows: %v", err)
	}
	if err := ready(); !errors.Is(err, sluice.ErrUnauthenticated) {
		t.Errorf("without a token: %v", err)
	}
	mine := writeFile(t, one)
	c, err := sluice.New(addr, sluice.WithToken(sluice.TokenFile(mine)), sluice.WithoutLeases())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	key := c.Key("auth", "user", "u")
	var stop atomic.Bool
	var asked atomic.Int64
	var requesters sync.WaitGroup
	for range 4 {
		requesters.Go(func() {
			for !stop.Load() {
				d, err := key.Check(t.Context(), 1)
				if err != nil || !d.Allowed || d.Source != limit.SourceOwned {
					t.Errorf("%v, %v", d, err)
					return
				}
				asked.Add(1)
			}
		})
	}
	in := func(digests string, token string, works bool) {
		t.Helper()
		if err := os.WriteFile(s.Callers, []byte(file(digests)), 0o600); err != nil {
			t.Error(err)
		}
		await(t, "in force", func() bool {
			code, _, _ := cli("members", "--addr", addr, "--token-file", writeFile(t, token))
			return (code == 0) == works
		})
	}
	in(digestOne+", "+digestTwo, two, true)
	if err := os.WriteFile(mine, []byte(two), 0o600); err != nil {
		t.Error(err)
	}
	was := asked.Load()
	await(t, "asked on", func() bool { return asked.Load() > was+100 })
	in(digestTwo, one, false)
	was = asked.Load()
	await(t, "asked on with the new token", func() bool { return asked.Load() > was+100 })
	stop.Store(true)
	requesters.Wait()
	d, err := key.Read(t.Context(), 1)
	if err != nil || 1000000-d.Remaining != asked.Load() {
		t.Errorf("%d were charged (%v), and %d asked", 1000000-d.Remaining, err, asked.Load())
	}
	if lost := c.Stats().StreamsLost; lost == 0 {
		t.Error("the stream with the old token is still there")
	}
}

// TestCallersCheck: the exit status says whether the file is sound, and the text where it is not.
func TestCallersCheck(t *testing.T) {
	_, digest := testToken(t, 1)
	sound := writeFile(t, "callers:\n  - name: ann\n    tokens: ["+digest+"]\n    grants:\n      - domains: ['*']\n        verbs: [check]\n")
	faulty := writeFile(t, "callers:\n  - name: ann\n    tokenz: ["+digest+"]\n")
	for _, c := range []struct {
		file      string
		code      int
		out, errs string
	}{
		{sound, exitOK, "valid, 1 callers", ""},
		{faulty, exitDenied, "", `unknown key "tokenz"`},
		{faulty + "2", exitUsage, "", "no such file"},
	} {
		code, out, errs := cli("callers", "check", c.file)
		if code != c.code || !strings.Contains(out, c.out) || !strings.Contains(errs, c.errs) {
			t.Errorf("%s: exit code %d, want %d\n%s%s", c.file, code, c.code, out, errs)
		}
	}
}
