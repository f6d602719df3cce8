package e2e

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/bucket"
	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/sluicegrpc"
	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/internal/certs/mint"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// vault is where the nodes of a cluster, and its callers, have certificates, keys, tokens and rules.
type vault struct {
	tokens
	before, after *mint.CA
	shows         atomic.Pointer[tls.Certificate] // what callers show now
	trust         *x509.CertPool                  // both authorities
}

func newVault(t *testing.T) *vault {
	t.Helper()
	v := &vault{tokens: tokens{t, t.TempDir()}, trust: x509.NewCertPool()}
	for _, a := range []**mint.CA{&v.before, &v.after} {
		var err error
		if *a, err = mint.NewCA("e2e", time.Now(), 48*time.Hour); err != nil {
			t.Fatal(err)
		}
		v.trust.AppendCertsFromPEM((*a).PEM)
	}
	return v
}

func (v *vault) issue(a *mint.CA, life time.Duration, name string, server bool) mint.Pair {
	v.Helper()
	pair, err := a.Issue(mint.Leaf{
		CommonName: name, Hosts: []string{name, "sluice"}, Server: server, Client: true,
		From: time.Now().Add(-time.Hour), Until: time.Now().Add(life),
	})
	if err != nil {
		v.Fatal(err)
	}
	return pair
}

// equip gives nodes certificates of an authority.
func (v *vault) equip(a *mint.CA, life time.Duration, names ...string) {
	v.Helper()
	for _, name := range names {
		pair := v.issue(a, life, name, true)
		// The pair is not whole between these two.
		v.write(name+".crt", string(pair.Cert))
		v.write(name+".key", string(pair.Key))
	}
}

// show gives callers a certificate of an authority.
func (v *vault) show(a *mint.CA) {
	v.Helper()
	pair := v.issue(a, time.Hour, "caller", false)
	c, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		v.Fatal(err)
	}
	v.shows.Store(&c)
}

func (v *vault) caller() *tls.Config {
	return &tls.Config{
		RootCAs: v.trust, ServerName: "sluice",
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return v.shows.Load(), nil },
	}
}

// keys writes the keyring.
func (v *vault) keys(seeds ...byte) {
	v.Helper()
	var text strings.Builder
	for _, s := range seeds {
		fmt.Fprintln(&text, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{s}, 32)))
	}
	v.write("keyring", text.String())
}

// rules writes the rules: one that stays, and one that every new set of them has otherwise.
func (v *vault) rules(fresh int64) {
	v.Helper()
	v.write("rules.yaml", fmt.Sprintf(`
domain: rotate
descriptors:
  - key: key
    rate_limit: {count: 20, period: 1h, algorithm: fixed_window, align: first_hit}
  - key: fresh
    rate_limit: {name: fresh-%d, count: %d, period: 1h}
`, fresh, fresh))
}

// carry gives callers the token of a file.
func (v *vault) carry(path string) {
	v.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		v.Fatal(err)
	}
	v.write("token", string(text))
}

// token is the file with what callers carry now.
func (v *vault) token() string { return filepath.Join(v.dir, "token") }

func (v *vault) flags() []string {
	in := func(name string) string { return filepath.Join(v.dir, name) }
	return []string{
		"--tls-cert", in("{name}.crt"), "--tls-key", in("{name}.key"), "--tls-client-ca", in("ca"), "--tls-client-auth", "require",
		"--peer-tls-cert", in("{name}.crt"), "--peer-tls-key", in("{name}.key"), "--peer-tls-ca", in("ca"),
		"--gossip-keyring", in("keyring"), "--callers", in("callers.yaml"), "--rules", in("rules.yaml"),
	}
}

// TestRotateEverything exchanges the authority, all certificates, the gossip key, the callers' token and the rules of
// three nodes while checks flow, over connections that last and over new ones: none fails, none is admitted above
// its limit, counters outlive the rules' exchange, and nobody loses sight of anybody. Then a node restarts with what is
// new alone.
func TestRotateEverything(t *testing.T) {
	t.Parallel()
	v := newVault(t)
	names := []string{"pod-1", "pod-2", "pod-3"}
	v.write("ca", string(v.before.PEM))
	v.equip(v.before, 24*time.Hour, names...)
	v.show(v.before)
	v.keys(1)
	one, digestOne := v.make("one")
	two, digestTwo := v.make("two")
	_, nobody := v.make("nobody")
	v.allow(nobody, digestOne)
	v.carry(one)
	v.rules(1_000_001)
	config := nodeConfig{args: v.flags(), tls: v.caller(), token: v.token()}
	nodes := clusterOf(t, 3, config)

	var fleet sync.Mutex // guards nodes
	targets := func() (list []string) {
		fleet.Lock()
		defer fleet.Unlock()
		for _, n := range nodes {
			list = append(list, n.grpc)
		}
		return list
	}
	ctx, over := context.WithCancel(context.Background())
	defer over()
	var load sync.WaitGroup
	defer load.Wait()
	var report *audit.Report
	var asked atomic.Uint64
	load.Go(func() {
		var err error
		report, err = audit.Run(ctx, audit.Config{
			Targets: targets, Domain: "rotate", Rules: true, Callers: 8, Rate: 1000, Duration: 5 * time.Minute,
			Specs: []audit.Spec{{Keys: 300, Limit: bucket.Limit{
				Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Count: 20, Period: time.Hour,
			}}},
			DialOptions: append(v.dial(v.caller(), v.token()), countCalls(&asked)),
		})
		if err != nil {
			t.Error(err)
		}
	})
	var fresh, failed atomic.Uint64
	load.Go(func() {
		tick := time.NewTicker(25 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ctx.Err() == nil; i++ {
			<-tick.C
			fresh.Add(1)
			if _, err := v.ask(nodes[i%2].grpc, v.caller(), v.token()); err != nil { // these two run throughout
				failed.Add(1)
				t.Errorf("a new connection to %s: %v", nodes[i%2].name, err)
			}
		}
	})

	inForce := func(n *node) int { return strings.Count(n.log.String(), ": new contents are in force") }
	step := func(files int, limit int64, change func()) {
		t.Helper()
		var before [3]int
		for i, n := range nodes {
			before[i] = inForce(n)
		}
		change()
		v.rules(limit)
		for i, n := range nodes {
			eventually(t, 20*time.Second, n.name+" has put them into force", func() error {
				if got := inForce(n) - before[i]; got < files {
					return fmt.Errorf("%d of %d files", got, files)
				}
				if got, err := v.ask(n.grpc, v.caller(), v.token()); err != nil || got != limit {
					return fmt.Errorf("a limit of %d instead of %d, %v", got, limit, err)
				}
				return nil
			})
		}
	}
	// Files are those of the APIs, of the peers, the keyring, and the callers.
	step(4, 1_000_002, func() {
		v.write("ca", string(v.before.PEM)+string(v.after.PEM))
		v.keys(1, 2)
		v.allow(nobody, digestOne, digestTwo)
	})
	step(3, 1_000_003, func() {
		v.equip(v.after, 30*time.Hour, names...)
		v.keys(2, 1)
		v.carry(two)
	})
	<-time.After(1100 * time.Millisecond) // callers read their token again after a second
	old := *v.shows.Load()
	v.show(v.after)
	step(4, 1_000_004, func() {
		v.write("ca", string(v.after.PEM))
		v.keys(2)
		v.allow(nobody, digestTwo)
	})

	waitAgreed(t, nodes, 10*time.Second)
	for _, n := range nodes {
		if lines := n.log.String(); strings.Contains(lines, "member is gone") || strings.Contains(lines, "level=ERROR") {
			t.Errorf("%s has lost sight of a member, or found a fault", n.name)
		}
		_, body, err := n.get("/metrics")
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{`sluice_gossip_keys{primary="`, `sluice_secrets_stale{files="peer_tls"} 0`, `sluice_secrets_stale{files="tls"} 0`} {
			if !strings.Contains(body, want) {
				t.Errorf("%s: no %s", n.name, want)
			}
		}
	}
	stale := v.caller()
	stale.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &old, nil }
	if _, err := v.ask(nodes[0].grpc, stale, v.token()); err == nil {
		t.Error("a certificate of the old authority is let in")
	}
	if _, err := v.ask(nodes[0].grpc, v.caller(), one); status.Code(err) != codes.Unauthenticated {
		t.Errorf("with the old token: %v", err)
	}

	// What is new alone is enough to leave and to join with.
	if _, code := nodes[2].stop(syscall.SIGTERM); code != 0 {
		t.Errorf("%s ended with %d", nodes[2].name, code)
	}
	config.name, config.join = "pod-3", []string{nodes[0].gossip}
	again := start(t, config)
	fleet.Lock()
	nodes[2] = again
	fleet.Unlock()
	waitAgreed(t, nodes, 10*time.Second)
	was := asked.Load()
	eventually(t, time.Minute, "the load goes on with it, until it has said something", func() error { // 300 keys of 20
		if now := asked.Load(); now < max(6000, was+500) || fresh.Load() < 60 {
			return fmt.Errorf("%d checks, %d before, %d over new connections", now, was, fresh.Load())
		}
		return nil
	})
	over()
	load.Wait()

	t.Logf("%d checks over lasting connections, %d denied, p99 %v, longest gap %v; %d over new ones",
		report.Checks, report.Denied, report.Latency.P99, report.LongestGap().Length, fresh.Load())
	exact(t, report, nodes)
	if report.Checks < 2000 || fresh.Load() < 50 || report.AtLimit == 0 {
		t.Errorf("too little load to say anything")
	}
}

// countCalls counts the calls that have ended.
func countCalls(n *atomic.Uint64) grpc.DialOption {
	return grpc.WithChainUnaryInterceptor(func(ctx context.Context, method string, req, reply any, conn *grpc.ClientConn, call grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		defer n.Add(1)
		return call(ctx, method, req, reply, conn, opts...)
	})
}

// dial is how callers reach a node: over TLS, with the token of a file.
func (v *vault) dial(config *tls.Config, token string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithPerRPCCredentials(sluicegrpc.TokenCredentials(sluice.TokenFile(token), true)),
	}
}

// ask makes one check over a connection of its own, and returns the limit it was held to.
func (v *vault) ask(addr string, config *tls.Config, token string) (limit int64, err error) {
	conn, err := grpc.NewClient(addr, v.dial(config, token)...)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	resp, err := sluicev1.NewRateLimitServiceClient(conn).Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{
		{Domain: "rotate", Descriptor_: []*sluicev1.Entry{{Key: "fresh", Value: "x"}}},
	}})
	if err != nil {
		return 0, err
	}
	d := resp.Decisions[0]
	switch {
	case d.Error != nil:
		return 0, fmt.Errorf("%v", d.Error)
	case !d.Allowed:
		return 0, fmt.Errorf("denied by %s at %d", d.Rule, d.GetLimit())
	}
	return d.GetLimit(), nil
}
