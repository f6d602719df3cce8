package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluicecluster/sluice/internal/certs/mint"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/limiter"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/ring"
	"github.com/sluicecluster/sluice/transport/peer"
)

// papers are an authority's files for one cluster under test.
type papers struct {
	*mint.CA
	dir string
}

func newPapers(t *testing.T) papers {
	t.Helper()
	a, err := mint.NewCA("test", time.Now(), 24*time.Hour)
	do(t, err)
	p := papers{a, t.TempDir()}
	p.write(t, "ca", a.PEM)
	return p
}

func (p papers) write(t *testing.T, name string, text []byte) string {
	t.Helper()
	path := filepath.Join(p.dir, name)
	do(t, os.WriteFile(path, text, 0o600))
	return path
}

// pair makes a certificate for both sides that ends so long from now.
func (p papers) pair(t *testing.T, left time.Duration, hosts ...string) tls.Certificate {
	t.Helper()
	made := p.issue(t, left, hosts...)
	c, err := tls.X509KeyPair(made.Cert, made.Key)
	do(t, err)
	return c
}

func (p papers) issue(t *testing.T, left time.Duration, hosts ...string) mint.Pair {
	t.Helper()
	made, err := p.Issue(mint.Leaf{
		CommonName: "test", Hosts: hosts, Server: true, Client: true,
		From: time.Now().Add(-time.Hour), Until: time.Now().Add(left),
	})
	do(t, err)
	return made
}

// files writes a node's certificate and returns the paths of it, its key and the authority.
func (p papers) files(t *testing.T, name string, hosts ...string) (cert, key, ca string) {
	t.Helper()
	made := p.issue(t, time.Hour, append(hosts, name)...)
	return p.write(t, name+".crt", made.Cert), p.write(t, name+".key", made.Key), filepath.Join(p.dir, "ca")
}

// client is a configuration that trusts the authority and shows certificates also where it is not asked for
// one of that authority.
func (p papers) client(show ...tls.Certificate) *tls.Config {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(p.PEM)
	c := &tls.Config{RootCAs: roots, ServerName: "api"}
	if len(show) > 0 {
		c.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &show[0], nil }
	}
	return c
}

// withAPITLS turns TLS on for the APIs of a node.
func (p papers) withAPITLS(t *testing.T, s *Config, auth string) {
	t.Helper()
	s.TLS.Cert, s.TLS.Key, s.TLS.ClientCA = p.files(t, "api")
	if s.TLS.ClientAuth = auth; auth == "none" {
		s.TLS.ClientCA = ""
	}
}

func (p papers) withPeerTLS(t *testing.T, s *Config) {
	t.Helper()
	s.TLS.PeerCert, s.TLS.PeerKey, s.TLS.PeerCA = p.files(t, s.Name)
}

// askGRPC makes one check over a connection of its own.
func askGRPC(t *testing.T, addr string, creds credentials.TransportCredentials) error {
	t.Helper()
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(creds))
	do(t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	_, err = sluicev1.NewRateLimitServiceClient(conn).Check(ctx, checksOf("auth", "user", "a", 0))
	return err
}

// askHTTP gets one page over a connection of its own. Without config it speaks plain HTTP.
func askHTTP(t *testing.T, addr, path string, config *tls.Config) (int, string, error) {
	t.Helper()
	scheme := "http://"
	if config != nil {
		scheme = "https://"
	}
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: config}}
	resp, err := client.Get(scheme + addr + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	do(t, err)
	return resp.StatusCode, string(body), nil
}

// Unauthenticated clients and friends at the gRPC and HTTP ports, by what is asked of clients.
func TestOutsidersAtTheAPIs(t *testing.T) {
	t.Parallel()
	ours, others := newPapers(t), newPapers(t)
	who := map[string]*tls.Config{
		"plain":    nil,
		"none":     ours.client(),
		"good":     ours.client(ours.pair(t, time.Hour)),
		"expired":  ours.client(ours.pair(t, -time.Minute)),
		"wrong CA": ours.client(others.pair(t, time.Hour)),
		"mistrust": others.client(), // does not believe the server
	}
	old := ours.client()
	old.MaxVersion = tls.VersionTLS12
	who["TLS 1.2"] = old
	for auth, c := range map[string]struct{ grpc, metrics, ready []string }{
		"none": {
			[]string{"none", "good", "expired", "wrong CA"}, []string{"none", "good", "expired", "wrong CA"},
			[]string{"none", "good", "expired", "wrong CA"},
		},
		"off":     {[]string{"plain"}, []string{"plain"}, []string{"plain"}}, // TLS to a port without it gets no answer, and the port goes on
		"request": {[]string{"none", "good"}, []string{"none", "good"}, []string{"none", "good"}},
		"require": {[]string{"good"}, []string{"good"}, []string{"none", "good"}},
	} {
		t.Run(auth, func(t *testing.T) {
			s := testConfig(t)
			if auth != "off" {
				ours.withAPITLS(t, &s, auth)
			}
			n := startNode(t, s)
			rejected := 0
			for name, config := range who {
				creds := insecure.NewCredentials()
				if config != nil {
					creds = credentials.NewTLS(config)
				}
				err := askGRPC(t, n.listen.grpc.Addr().String(), creds)
				if want := slices.Contains(c.grpc, name); (err == nil) != want {
					t.Errorf("gRPC, %s: let in should be %v: %v", name, want, err)
				}
				if err != nil {
					rejected++
					if status.Code(err) != codes.Unavailable {
						t.Errorf("gRPC, %s: %v", name, err)
					}
				}
				for path, lets := range map[string][]string{"/metrics": c.metrics, "/readyz": c.ready} {
					code, body, err := askHTTP(t, n.listen.http.Addr().String(), path, config)
					if want := slices.Contains(lets, name); (err == nil && code == http.StatusOK) != want {
						t.Errorf("HTTP %s, %s: let in should be %v: %d %v", path, name, want, code, err)
					}
					if auth == "require" && name == "none" && path == "/metrics" {
						var answer struct{ Error struct{ Code string } }
						if code != http.StatusUnauthorized || json.Unmarshal([]byte(body), &answer) != nil || answer.Error.Code != "unauthenticated" {
							t.Errorf("no certificate: %d %s", code, body)
						}
					}
				}
			}
			await(t, "counted", func() bool {
				return auth == "off" || n.tls.failedGRPC.Load() >= uint64(rejected) && n.tls.failedHTTP.Load() > 0
			})
		})
	}
}

// A connection that is open outlives new certificates; new connections get these.
func TestAPICertificatesChange(t *testing.T) {
	t.Parallel()
	before, after := newPapers(t), newPapers(t)
	s := testConfig(t)
	before.withAPITLS(t, &s, "require")
	n := startNode(t, s)
	addr := n.listen.grpc.Addr().String()
	show := before.pair(t, time.Hour)
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(credentials.NewTLS(before.client(show))))
	do(t, err)
	defer conn.Close()
	ask := func() error {
		_, err := sluicev1.NewRateLimitServiceClient(conn).Check(t.Context(), checksOf("auth", "user", "a", 0))
		return err
	}
	do(t, ask())
	made := after.issue(t, time.Hour, "api")
	for path, text := range map[string][]byte{s.TLS.Cert: made.Cert, s.TLS.Key: made.Key, s.TLS.ClientCA: after.PEM} {
		n.put(t, path, string(text))
	}
	fresh := after.client(after.pair(t, time.Hour))
	if err := askGRPC(t, addr, credentials.NewTLS(fresh)); err != nil {
		t.Errorf("exchanged: %v", err)
	}
	if err := ask(); err != nil {
		t.Errorf("the open connection: %v", err)
	}
	if err := askGRPC(t, addr, credentials.NewTLS(after.client(show))); err == nil {
		t.Error("a certificate of the old authority is still let in")
	}
	_, body, err := askHTTP(t, n.listen.http.Addr().String(), "/metrics", fresh)
	want := fmt.Sprintf(`sluice_certificate_expiry_timestamp_seconds{files="tls"} %v`, float64(n.tls.apis.Expires().Unix()))
	if err != nil || !strings.Contains(body, want) {
		t.Errorf("%v: no %q", err, want)
	}
}

// outsiderConfig is another node's that knows the secret.
func outsiderConfig(t *testing.T, name string, secret []byte) peer.Config {
	t.Helper()
	key, err := limiter.ProofKey(secret)
	do(t, err)
	tag, err := limiter.Fingerprint(secret)
	do(t, err)
	return peer.Config{
		Name: name, Boot: newBoot(), Placement: ring.Placement,
		ProofKeys: func() [][]byte { return [][]byte{key} }, CountersTag: tag,
	}
}

// outsiderNode dials a node's peer port as another node would.
func outsiderNode(t *testing.T, n *running, name string, creds credentials.TransportCredentials) error {
	t.Helper()
	config := outsiderConfig(t, name, n.config.Secret)
	config.Credentials = creds
	pool, err := peer.Open(config)
	do(t, err)
	defer pool.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	return pool.Call(ctx, n.listen.peer.Addr().String(), make([]check.Record, 1), make([]check.Reply, 1))
}

// Unauthenticated clients at the peer port, who know the cluster's secret all the same.
func TestOutsidersAtThePeerPort(t *testing.T) {
	t.Parallel()
	ours, others := newPapers(t), newPapers(t)
	s := testConfig(t)
	ours.withPeerTLS(t, &s)
	n := startNode(t, s)
	as := func(show ...tls.Certificate) credentials.TransportCredentials {
		c := ours.client(show...)
		c.ServerName = "n1"
		return credentials.NewTLS(c)
	}
	mistrusts := others.client(others.pair(t, time.Hour, "n2"))
	mistrusts.ServerName = "n1"
	const rejected, unproven = "rejected", "has not proved it"
	for name, c := range map[string]struct {
		creds credentials.TransportCredentials
		want  string
	}{
		"the node":            {as(ours.pair(t, time.Hour, "n2")), ""},
		"another's name":      {as(ours.pair(t, time.Hour, "n3")), unproven},
		"no name":             {as(ours.pair(t, time.Hour)), unproven},
		"expired":             {as(ours.pair(t, -time.Minute, "n2")), rejected},
		"wrong authority":     {as(others.pair(t, time.Hour, "n2")), rejected},
		"no certificate":      {as(), rejected},
		"plain":               {insecure.NewCredentials(), rejected},
		"mistrusts this node": {credentials.NewTLS(mistrusts), rejected},
	} {
		err := outsiderNode(t, n, "n2", c.creds)
		switch {
		case c.want == "" && err != nil && !errors.Is(err, check.ErrAmbiguous): // the record says nothing
			t.Errorf("%s: %v", name, err)
		case c.want != "" && !errors.Is(err, check.ErrUnsent):
			t.Errorf("%s: %v, want it rejected before anything was sent", name, err)
		case c.want == unproven && !strings.Contains(err.Error(), unproven):
			t.Errorf("%s: %v", name, err)
		}
	}
	await(t, "counted", func() bool { return n.tls.failedPeer.Load() >= 5 && n.peerServer.Stats().Rejected == 2 })
	outsidersBehindAPeerAddress(t, n, ours, others)
}

// outsidersBehindAPeerAddress: a node asks nobody who answers at a member's address with another's certificate, or none.
func outsidersBehindAPeerAddress(t *testing.T, n *running, ours, others papers) {
	for name, shows := range map[string][]tls.Certificate{
		"the member":      {ours.pair(t, time.Hour, "n2")},
		"another member":  {ours.pair(t, time.Hour, "n3")},
		"wrong authority": {others.pair(t, time.Hour, "n2")},
		"expired":         {ours.pair(t, -time.Minute, "n2")},
		"plain":           nil,
	} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		do(t, err)
		config := outsiderConfig(t, "n2", n.config.Secret)
		if shows != nil {
			config.Credentials = credentials.NewTLS(&tls.Config{Certificates: shows})
		}
		server, err := peer.NewServer(config, denyAll{})
		do(t, err)
		defer server.Close()
		go func() { _ = server.Serve(l) }()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err = n.peers.Call(ctx, l.Addr().String(), make([]check.Record, 1), make([]check.Reply, 1))
		if fits := name == "the member"; (err == nil) != fits || !fits && server.Stats().Records != 0 {
			t.Errorf("%s: %v, and %d records came", name, err, server.Stats().Records)
		}
	}
}

// denyAll answers every record with nothing.
type denyAll struct{}

func (denyAll) Serve(_ string, _ []check.Record, replies []check.Reply) {
	for i := range replies {
		replies[i].Status = check.NotReady
	}
}

// greet returns the error of a hello of from to to, other than that a busy machine has not answered
// it in time.
func greet(from, to *running) (err error) {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if err = from.peers.Greet(to.listen.peer.Addr().String()); err == nil || !strings.Contains(err.Error(), "no hello within") {
			break
		}
	}
	return err
}

// Two nodes with every two ways of --peer-tls: those of which a rolling change meets one another talk, in both directions.
func TestPeerTLSModes(t *testing.T) {
	t.Parallel()
	p := newPapers(t)
	modes := []string{peerOff, peerAccept, peerRequire}
	nodes := map[string]*running{}
	for _, mode := range modes {
		s := testConfig(t)
		s.Name = mode
		if p.withPeerTLS(t, &s); mode != peerRequire { // which is the default with certificates
			s.TLS.Peers = mode
		}
		nodes[mode] = startNode(t, s)
	}
	for i, from := range modes {
		for j, to := range modes {
			if from == to {
				continue // a node does not talk to itself
			}
			err := greet(nodes[from], nodes[to])
			if near := i-j <= 1 && j-i <= 1; near != (err == nil) {
				t.Errorf("%s to %s: %v", from, to, err)
			}
		}
	}
	// Two nodes that accept both speak TLS: a certificate that is wrong is no reason to do without.
	s, others := testConfig(t), newPapers(t)
	s.Name, s.TLS.Peers = "n9", peerAccept
	others.withPeerTLS(t, &s)
	n := startNode(t, s)
	accept := nodes[peerAccept]
	if err := greet(accept, n); err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("accept to accept with a certificate of another authority: %v", err)
	}
}
