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
	"google.golang.org/grpc/credentials"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/audit"
	"github.com/sluice-project/sluice/internal/certs/mint"
	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// vault is where the nodes of a cluster, and its callers, have certificates and keys.
type vault struct {
	*testing.T
	dir           string
	before, after *mint.Authority
	shows         atomic.Pointer[tls.Certificate] // what callers show now
	trust         *x509.CertPool                  // both authorities
}

func newVault(t *testing.T) *vault {
	t.Helper()
	v := &vault{T: t, dir: t.TempDir(), trust: x509.NewCertPool()}
	for _, a := range []**mint.Authority{&v.before, &v.after} {
		var err error
		if *a, err = mint.NewAuthority("e2e", time.Now(), 48*time.Hour); err != nil {
			t.Fatal(err)
		}
		v.trust.AppendCertsFromPEM((*a).PEM)
	}
	return v
}

// write replaces a file as a whole, as those who rotate files should.
func (v *vault) write(name string, text []byte) {
	v.Helper()
	path := filepath.Join(v.dir, name)
	if err := os.WriteFile(path+".next", text, 0o600); err != nil {
		v.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		v.Fatal(err)
	}
}

func (v *vault) issue(a *mint.Authority, life time.Duration, name string, server bool) mint.Pair {
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
func (v *vault) equip(a *mint.Authority, life time.Duration, names ...string) {
	v.Helper()
	for _, name := range names {
		pair := v.issue(a, life, name, true)
		// The pair is not whole between these two.
		v.write(name+".crt", pair.Cert)
		v.write(name+".key", pair.Key)
	}
}

// show gives callers a certificate of an authority.
func (v *vault) show(a *mint.Authority) {
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
	var text bytes.Buffer
	for _, s := range seeds {
		fmt.Fprintln(&text, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{s}, 32)))
	}
	v.write("keyring", text.Bytes())
}

func (v *vault) flags() []string {
	in := func(name string) string { return filepath.Join(v.dir, name) }
	return []string{
		"--tls-cert", in("{name}.crt"), "--tls-key", in("{name}.key"), "--tls-client-ca", in("ca"), "--tls-client-auth", "require",
		"--peer-tls-cert", in("{name}.crt"), "--peer-tls-key", in("{name}.key"), "--peer-tls-ca", in("ca"),
		"--gossip-keyring", in("keyring"),
	}
}

// TestRotateEverything exchanges the authority, all certificates and the gossip key of three nodes while checks
// flow, over connections that last and over new ones: none fails, none is admitted above its limit, and nobody
// loses sight of anybody. Then a node restarts with what is new alone.
func TestRotateEverything(t *testing.T) {
	v := newVault(t)
	names := []string{"pod-1", "pod-2", "pod-3"}
	v.write("ca", v.before.PEM)
	v.equip(v.before, 24*time.Hour, names...)
	v.show(v.before)
	v.keys(1)
	config := nodeConfig{args: v.flags(), tls: v.caller()}
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
	load.Go(func() {
		var err error
		report, err = audit.Run(ctx, audit.Config{
			Targets: targets, Domain: "rotate", Callers: 8, Rate: 1000, Duration: 5 * time.Minute,
			Specs: []audit.Spec{{Keys: 300, Limit: bucket.Limit{
				Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Count: 20, Period: time.Hour,
			}}},
			DialOptions: []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(v.caller()))},
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
			if err := askOnce(nodes[i%2].grpc, v.caller()); err != nil { // these two run throughout
				failed.Add(1)
				t.Errorf("a new connection to %s: %v", nodes[i%2].name, err)
			}
		}
	})

	inForce := func(n *node) int { return strings.Count(n.log.String(), ": new contents are in force") }
	step := func(files int, change func()) {
		t.Helper()
		var before [3]int
		for i, n := range nodes {
			before[i] = inForce(n)
		}
		change()
		for i, n := range nodes {
			eventually(t, 20*time.Second, n.name+" has put them into force", func() error {
				if got := inForce(n) - before[i]; got < files {
					return fmt.Errorf("%d of %d", got, files)
				}
				return nil
			})
		}
	}
	// Three sets of files each time: of the doors, of the peers, and the keyring.
	step(3, func() {
		v.write("ca", append(bytes.Clone(v.before.PEM), v.after.PEM...))
		v.keys(1, 2)
	})
	step(3, func() {
		v.equip(v.after, 30*time.Hour, names...)
		v.keys(2, 1)
	})
	old := *v.shows.Load()
	v.show(v.after)
	step(3, func() {
		v.write("ca", v.after.PEM)
		v.keys(2)
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
	if err := askOnce(nodes[0].grpc, stale); err == nil {
		t.Error("a certificate of the old authority is let in")
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
	<-time.After(time.Second) // the load goes on with it
	over()
	load.Wait()

	t.Logf("%d checks over lasting connections, %d denied, p99 %v, longest gap %v; %d over new ones",
		report.Checks, report.Denied, report.Latency.P99, report.LongestGap().Length, fresh.Load())
	if !report.Clean() {
		t.Errorf("%d errors %v, over quota %+v, under %+v: %+v", report.FinalErrors, report.Errors, report.Over, report.Under, report.Faults)
	}
	if report.Checks < 2000 || fresh.Load() < 50 || report.AtLimit == 0 {
		t.Errorf("too little load to say anything")
	}
}

// askOnce makes one check over a connection of its own.
func askOnce(addr string, config *tls.Config) error {
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(config)))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	resp, err := sluicev1.NewSluiceServiceClient(conn).Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{inlineCheck("fresh")}})
	if err == nil && resp.Decisions[0].Error != nil {
		return fmt.Errorf("%v", resp.Decisions[0].Error)
	}
	return err
}
