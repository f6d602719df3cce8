package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
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
	do(t, err)
	d, ok := access.DigestOf(token)
	if !ok {
		t.Fatal("no token")
	}
	return token, d.String()
}

// TestKnownDomains: of the domains that have rules, a caller learns those that it may use.
func TestKnownDomains(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	for _, d := range []string{"mine", "team-a", "secret", "reset-only"} {
		rule := "domain: " + d + "\ndescriptors: [{key: user, rate_limit: {count: 2, period: 1h}}]\n"
		do(t, os.WriteFile(filepath.Join(s.Rules, d+".yaml"), []byte(rule), 0o644))
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

// TestCommandsShowCredentials: every command that calls nodes reaches one whose ports ask for certificates and tokens, with the flags for
// these, and not without.
func TestCommandsShowCredentials(t *testing.T) {
	ours := newPapers(t)
	s := testConfig(t)
	s.TopKeys = "on"
	ours.withTLS(t, &s, "require")
	token, digest := testToken(t, 1)
	s.Callers = writeFile(t, "callers: [{name: all, tokens: ["+digest+"], grants: [{domains: ['*'], verbs: [check, read, reset, admin]}]}]\n")
	writeRule(t, s.Rules, "domain: auth\nauthorize: {descriptors: [[{key: user, from: header, name: X-User}]]}\ndescriptors:\n  - key: user\n    rate_limit: {count: 1000000, period: 1h}\n")
	n := startNode(t, s)
	cert, key, ca := ours.files(t, "me")
	shown := []string{"--ca", ca, "--cert", cert, "--cert-key", key, "--server-name", "api"}
	file := writeFile(t, token+"\n")
	another := []string{"--operators-dir", t.TempDir()} // as another user, who is no operator
	audit := []string{"audit", "--discover", "--duration", "100ms", "--until-exhausted", "--keys", "5", "--concurrency", "2"}
	for _, args := range [][]string{
		{"check", "--domain", "auth", "user=x"}, {"check", "--domain", "auth", "--verb", "reset", "user=a"},
		append([]string{"members"}, another...), append([]string{"top", "--once"}, another...), audit,
		{"bench"}, {"bench", "--api", "stream"}, {"bench", "--api", "sdk"}, {"bench", "--api", "http"}, {"bench", "--api", "gubernator"},
		{"bench", "--api", "envoy"}, {"bench", "--api", "authorize", "--domain", "auth"},
	} {
		t.Run(strings.Join(args[:min(len(args), 3)], " "), func(t *testing.T) {
			call := func(patience string, more ...string) (int, string, string) {
				args := slices.Concat(args, more, []string{"--addr", n.grpc})
				if slices.Contains(args, "http") || slices.Contains(args, "authorize") {
					args[len(args)-1] = n.http
				}
				switch args[0] {
				case "bench":
					return benchUntil(t, answered(100, n), append(args[1:], "--concurrency", "2", "--timeout", patience)...)
				case "audit":
					return cli(append(args, "--answer-within", patience)...)
				}
				return cli(append(args, "--timeout", patience)...)
			}
			if code, out, _ := call("2s"); code == 0 {
				t.Errorf("works without a certificate: %s", out)
			}
			if code, out, stderr := call("2s", shown...); code == 0 || !strings.Contains(out+stderr, "requires authentication") {
				t.Errorf("without a token: %d %s %s", code, out, stderr)
			}
			if code, out, stderr := call("20s", append(shown, "--token-file", file)...); code != 0 {
				t.Errorf("with a token: %d %s %s", code, out, stderr)
			}
			withEnv(t, "SLUICE_TOKEN", token)
			if code, out, stderr := call("20s", shown...); code != 0 {
				t.Errorf("with SLUICE_TOKEN: %d %s %s", code, out, stderr)
			}
		})
	}
	if code, out, errs := cli(append([]string{"health", "--addr", n.grpc}, shown...)...); code != 0 {
		t.Errorf("health: %d %s %s", code, out, errs)
	}
	for want, more := range map[string][]string{"requires authentication": another, "not in the voter set": {"--token-file", file}} {
		code, _, stderr := cli(slices.Concat([]string{"members", "forget", "nobody", "--addr", n.grpc}, shown, more)...)
		if code != 1 || !strings.Contains(stderr, want) {
			t.Errorf("forget: %d %s, want %s", code, stderr, want)
		}
	}
	// A token does not leave the machine in the clear.
	code, _, stderr := cli("bench", "--duration", "300ms", "--addr", "sluice.invalid:1", "--api", "http", "--token-file", file)
	if code != 3 || !strings.Contains(stderr, "without TLS") || strings.Contains(stderr, token) {
		t.Errorf("in the clear: %d %s", code, stderr)
	}
	if code, _, stderr := cli(append([]string{"members", "--addr", n.grpc, "--token-file", file + ".not"}, shown...)...); code != 3 || !strings.Contains(stderr, "no such file") {
		t.Errorf("without the file: %d %s", code, stderr)
	}
}

func TestWrongClientTLS(t *testing.T) {
	file := writeFile(t, "nothing")
	for want, args := range map[string][]string{
		"--ca: open":               {"--ca", file + "2"},
		"no certificate in PEM":    {"--ca", file},
		"--cert: missing":          {"--cert-key", file},
		"--cert-key: missing":      {"--cert", file},
		"--cert, --cert-key: tls:": {"--cert", file, "--cert-key", file},
	} {
		for _, command := range [][]string{{"members"}, {"audit"}, {"bench"}} {
			code, _, errs := cli(append(command, args...)...)
			if code != exitUsage || !strings.Contains(errs, want) {
				t.Errorf("%v %v: exit code %d, %q", command, args, code, errs)
			}
		}
	}
}

// TestClientExchangesTokens: the Go client is given another token, and the old one is taken away, while it asks. No check is
// lost, answered by the failure policy or charged twice.
func TestClientExchangesTokens(t *testing.T) {
	t.Parallel()
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
		do(t, err)
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
	do(t, err)
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
