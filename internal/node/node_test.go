package node

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
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
	do(t, os.WriteFile(next, []byte(text), 0o644))
	do(t, os.Rename(next, filepath.Join(dir, "rules.yaml")))
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
	n, err := Open(ctx, s, log.logger())
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

// send makes a call to an HTTP port, with the fields of headers in pairs, on a connection of its own. It follows no redirects.
func send(t *testing.T, addr net.Addr, method, path, body string, headers ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://"+addr.String()+path, strings.NewReader(body))
	do(t, err)
	for i := 0; i+1 < len(headers); i += 2 {
		if headers[i] == "Host" {
			req.Host = headers[i+1]
		}
		req.Header.Add(headers[i], headers[i+1])
	}
	if req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	do(t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	do(t, err)
	return resp, string(text)
}

func (r *running) get(t *testing.T, path string) (int, string) {
	t.Helper()
	resp, text := send(t, r.listen.http.Addr(), "GET", path, "")
	return resp.StatusCode, text
}

// post makes a call of the HTTP API, reads its answer, and returns the status.
func (r *running) post(t *testing.T, path, body string, answer any) int {
	t.Helper()
	resp, text := send(t, r.listen.http.Addr(), "POST", path, body)
	if err := json.Unmarshal([]byte(text), answer); err != nil {
		t.Fatalf("%s: %s %v", path, text, err)
	}
	return resp.StatusCode
}

// metric waits until /metrics has the line.
func (r *running) metric(t *testing.T, line string) {
	t.Helper()
	await(t, "shown: "+line, func() bool {
		_, body := r.get(t, "/metrics")
		return strings.Contains(body, "\n"+line+"\n")
	})
}

// conn connects to the gRPC port, without TLS.
func (r *running) conn(t testing.TB) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient(r.listen.grpc.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	do(t, err)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// checksOf is one check of a key.
func checksOf(domain, key, value string, verb sluicev1.Verb) *sluicev1.CheckRequest {
	entries := []*sluicev1.Entry{{Key: key, Value: value}}
	return &sluicev1.CheckRequest{Checks: []*sluicev1.Check{{Domain: domain, Descriptor_: entries, Verb: verb}}}
}

// decide makes a check of one user, or of another key, in a domain, and returns what the node's gRPC port answers.
func (r *running) decide(t *testing.T, verb sluicev1.Verb, domain, key, value string) *sluicev1.Decision {
	t.Helper()
	conn := r.conn(t)
	defer conn.Close()
	resp, err := sluicev1.NewRateLimitServiceClient(conn).Check(t.Context(), checksOf(domain, key, value, verb))
	do(t, err)
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
	do(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

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

func TestReload(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	n := startNode(t, s)
	limit := func() int64 { return n.decide(t, sluicev1.Verb_VERB_READ, "auth", "user", "a").GetLimit() }
	if got := limit(); got != 2 {
		t.Fatalf("before: %d", got)
	}
	const seven = "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 7, period: 1h}\n"
	writeRule(t, s.Rules, seven)
	await(t, "limited to 7", func() bool { return limit() == 7 })

	writeRule(t, s.Rules, strings.Replace(seven, "7", "seven", 1))
	for _, line := range []string{"sluice_rules_stale 1", "sluice_rules_generation 2", "sluice_rules_failures_total 1"} {
		n.metric(t, line)
	}
	if got := limit(); got != 7 {
		t.Errorf("with a bad file: %d", got)
	}
	if status, body := n.get(t, "/healthz"); status != http.StatusOK || !strings.Contains(body, "rules.yaml:4") {
		t.Errorf("/healthz: %d %s", status, body)
	}
	if status, body := n.get(t, "/readyz"); status != http.StatusOK {
		t.Errorf("/readyz: %d %s", status, body)
	}

	do(t, os.WriteFile(filepath.Join(s.Rules, "load_test.yaml"), []byte("domain: load\n"), 0o644))
	writeRule(t, s.Rules, seven)
	for _, line := range []string{"sluice_rules_skipped_files 1", "sluice_rules_stale 0"} {
		n.metric(t, line)
	}
	if _, body := n.get(t, "/healthz"); !strings.Contains(body, `"rules_skipped":["`+filepath.Join(s.Rules, "load_test.yaml")+`: `) {
		t.Errorf("/healthz: %s", body)
	}
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
		if !strings.Contains(text, "# HELP "+f.name+" ") {
			t.Errorf("no %s", f.name)
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

// TestOwnSettings: what a node tells others and its probes of itself.
func TestOwnSettings(t *testing.T) {
	t.Parallel()
	s := testConfig(t)
	s.Advertise, s.MaxClockSkew = "192.0.2.7", 3*time.Second // never dialled: the node is alone
	n := startNode(t, s)
	// Others are told --advertise for every port, whatever --bind is.
	self := n.gossip.Self()
	for name, addr := range map[string]string{"gossip": self.Gossip, "peer": self.Peer, "gRPC": self.GRPC, "HTTP": self.HTTP} {
		if !strings.HasPrefix(addr, "192.0.2.7:") {
			t.Errorf("%s: %s", name, addr)
		}
	}
	// Clocks are judged by the node's own --max-clock-skew.
	m := n.service.Members(t.Context())
	for ahead, skewed := range map[time.Duration]bool{2900 * time.Millisecond: false, 3100 * time.Millisecond: true} {
		m.Members[0].Ahead = &ahead
		if text := fmt.Sprint(limiter.JudgeHealth(m, nil, nil).Causes); strings.Contains(text, "the clock of n1 is off") != skewed {
			t.Errorf("a clock that is off by %v: %s", ahead, text)
		}
	}
	// A node that others do not reach where it says is not ready. One that was bound to an address does not look for it.
	n.lostAddress.Store(true)
	if ok, reasons := n.Ready(); ok || !strings.Contains(fmt.Sprint(reasons), "--advertise") {
		t.Errorf("ready %v: %q", ok, reasons)
	}
	if n.ownAddress().addr.IsValid() {
		t.Error("an address that was given is looked for")
	}
}

// do fails the test if a step of it cannot be done.
func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
