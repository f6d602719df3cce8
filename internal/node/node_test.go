package node

import (
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"

	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluicecluster/sluice/transport/access"
)

// testConfig is that of a node on free ports of 127.0.0.1 with one rule.
func testConfig(t *testing.T) Config {
	t.Helper()
	s := Defaults()
	s.Name, s.Bind, s.Secret = "n1", "127.0.0.1", bytes.Repeat([]byte("x"), 32)
	s.GRPCPort, s.HTTPPort, s.PeerPort, s.GossipPort = 0, 0, 0, 0
	// Tests look at what nodes decide, not at how soon they lose patience with a busy machine: nodes
	// reject nothing because work waits for a processor, their clock stands still while the process
	// does not run, and their timeouts are long.
	s.Bounds.MaxWait, s.QuorumTimeout, s.Rejoin, s.Clock = 0, 1800*time.Millisecond, 50*time.Millisecond, ownTime.now
	s.CheckTimeout, s.JoinTimeout, s.HandoverTimeout, s.ShutdownTimeout = time.Minute, time.Minute, time.Minute, time.Minute
	s.Rules = t.TempDir()
	writeRule(t, s.Rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n")
	return s
}

// ownTime is the clock of all nodes of this process.
var ownTime = newProcessClock()

// processClock is Unix time that passes only while the process runs: at most tickMost between two
// of its ticks.
type processClock struct {
	mu   sync.Mutex
	unix int64
	last time.Time
}

const (
	tickEvery = 5 * time.Millisecond
	tickMost  = 2 * tickEvery
)

func newProcessClock() *processClock {
	c := &processClock{last: time.Now()}
	c.unix = c.last.UnixNano()
	go func() {
		for range time.Tick(tickEvery) {
			c.mu.Lock()
			now := time.Now()
			c.unix, c.last = c.unix+c.sinceLocked(now), now
			c.mu.Unlock()
		}
	}()
	return c
}

func (c *processClock) sinceLocked(now time.Time) int64 { return int64(min(now.Sub(c.last), tickMost)) }

func (c *processClock) now() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unix + c.sinceLocked(time.Now())
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
	*Node
	warned *logLines    // warnings and errors
	tell   func()       // begins to end it
	stop   func() error // ends it and returns run's error; may be called again
}

// startNode runs a node with s until the test ends; change may alter it before it runs.
func startNode(t *testing.T, s Config, change ...func(*Node)) *running {
	t.Helper()
	r := startNodeUnready(t, s, change...)
	await(t, "ready", func() bool { ok, _ := r.Ready(); return ok })
	return r
}

// startNodeUnready is startNode without waiting until it is ready.
func startNodeUnready(t *testing.T, s Config, change ...func(*Node)) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	log := &logLines{}
	n, err := Open(ctx, s, slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	for _, f := range change {
		f(n)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	var result error
	stopped := false
	r := &running{Node: n, warned: log, tell: cancel, stop: func() error {
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

// await polls until ok. Its bound only ends a test that would wait for ever: tests run beside others,
// at idle priority too.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	const bound = time.Minute
	deadline := time.Now().Add(bound)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not %s within %v", what, bound)
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

// decide makes a check of one user, or of another key, in a domain, and returns what the node's gRPC port answers.
func (r *running) decide(t *testing.T, verb sluicev1.Verb, domain, key, value string) *sluicev1.Decision {
	t.Helper()
	conn, err := grpc.NewClient(r.listen.grpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	resp, err := sluicev1.NewRateLimitServiceClient(conn).Check(t.Context(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{
		Domain: domain, Descriptor_: []*sluicev1.Entry{{Key: key, Value: value}}, Verb: verb,
	}}})
	if err != nil {
		t.Fatal(err)
	}
	return resp.Decisions[0]
}

// check spends one of a user's two.
func (r *running) check(t *testing.T, user string) *sluicev1.Decision {
	t.Helper()
	return r.decide(t, sluicev1.Verb_VERB_CHECK, "auth", "user", user)
}

// left asks a node what remains of two for a user.
func (r *running) left(t *testing.T, user string) int64 {
	t.Helper()
	return r.decide(t, sluicev1.Verb_VERB_READ, "auth", "user", user).GetRemaining()
}

// writeFile writes a file of its own.
func writeFile(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

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

func TestNodeLeavesNothingBehind(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	n := startNode(t, testConfig(t))
	n.get(t, "/metrics")
	if err := n.stop(); err != nil {
		t.Errorf("run: %v", err)
	}
	await(t, "without goroutines", func() bool { return goleak.Find(ignore) == nil })
}

func TestReload(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	n := startNode(t, s)
	limit := func() int64 { return n.decide(t, sluicev1.Verb_VERB_READ, "auth", "user", "a").GetLimit() }
	if got := limit(); got != 2 {
		t.Fatalf("before: %d", got)
	}
	writeRule(t, s.Rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 7, period: 1h}\n")
	await(t, "limited to 7", func() bool { return limit() == 7 })

	writeRule(t, s.Rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: seven, period: 1h}\n")
	await(t, "complaining", func() bool { return n.rulesError() != nil })
	if got := limit(); got != 7 {
		t.Errorf("with a bad file: %d", got)
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

	if err := os.WriteFile(filepath.Join(s.Rules, "load_test.yaml"), []byte("domain: load\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	writeRule(t, s.Rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 7, period: 1h}\n")
	await(t, "reporting a file that is not read", func() bool {
		_, body := n.get(t, "/healthz")
		return strings.Contains(body, `"rules_skipped":["`+filepath.Join(s.Rules, "load_test.yaml")+`: `)
	})
	await(t, "counting that file, with rules that are not stale", func() bool { // the two files may be read one after the other
		_, metrics = n.get(t, "/metrics")
		return strings.Contains(metrics, "sluice_rules_skipped_files 1") && strings.Contains(metrics, "sluice_rules_stale 0")
	})
}

// Every family must be scraped without a clash of names or labels.
func TestMetrics(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	writeRule(t, s.Rules, "domain: auth\npools: {spare: {limit: {count: 1, period: 1h}}}\ndescriptors:\n  - key: user\n"+
		"    detailed_metric: true\n    rate_limit: {count: 2, period: 1h}\n  - key: team\n    rate_limit: {count: 0, period: 1h}\n    elastic: {pool: spare}\n")
	s.GossipKeyring = writeFile(t, keyOne)
	s.Region, s.Regions = "eu", []string{"us=127.0.0.1:1"}
	newPapers(t).withPeerTLS(t, &s)
	n := startNode(t, s)
	for range 3 {
		n.check(t, "a")
	}
	for domain, key := range map[string]string{"auth": "nobody", "one": "user", "two": "user"} {
		n.decide(t, sluicev1.Verb_VERB_CHECK, domain, key, "a")
	}
	status, text := n.get(t, "/metrics")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	for _, f := range specimen().families() {
		name := f.name
		if !strings.Contains(text, "# HELP "+name+" ") {
			t.Errorf("no %s", name)
		}
	}
	for _, want := range []string{
		`sluice_rule_checks_total{domain="auth",result="allowed",rule="auth/user"} 2`,
		`sluice_rule_checks_total{domain="auth",result="denied",rule="auth/user"} 1`,
		`sluice_descriptor_checks_total{descriptor="auth/user=a",domain="auth",result="allowed"} 2`,
		`sluice_decisions_total{source="owned"} 3`,
		`sluice_unmatched_checks_total{domain="auth"} 1`, `sluice_unmatched_checks_total{domain="(unknown)"} 2`,
		`sluice_check_duration_seconds_count{api="grpc"} 6`, `sluice_check_duration_seconds_count{api="http"} 0`, "sluice_counters 1", "sluice_partitions 1021", "sluice_members 1",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q", want)
		}
	}
	for _, absent := range []string{`rule="auth/team"`, `result="shadowed",rule=`} { // before the first
		if strings.Contains(text, absent) {
			t.Errorf("%s has a series and no checks", absent)
		}
	}
}

// Others are told --advertise for every port, whatever --bind is.
func TestAdvertise(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	s.Advertise = "192.0.2.7" // never dialled: the node is alone
	n := startNode(t, s)
	self := n.gossip.Self()
	for name, addr := range map[string]string{"gossip": self.Gossip, "peer": self.Peer, "gRPC": self.GRPC, "HTTP": self.HTTP} {
		if !strings.HasPrefix(addr, "192.0.2.7:") {
			t.Errorf("%s: %s", name, addr)
		}
	}
}
