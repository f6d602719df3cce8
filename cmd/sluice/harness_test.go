package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sluicecluster/sluice/internal/certs/mint"
	"github.com/sluicecluster/sluice/internal/node"
)

// testConfig is that of a node on free ports of 127.0.0.1 with one rule.
func testConfig(t *testing.T) node.Config {
	t.Helper()
	c := node.Defaults()
	c.Name, c.Secret = "n1", bytes.Repeat([]byte("x"), 32)
	c.GRPCPort, c.HTTPPort, c.PeerPort, c.GossipPort = 0, 0, 0, 0
	// The machine may do other things too: see internal/node's tests.
	c.Bounds.MaxWait, c.QuorumTimeout, c.CheckTimeout, c.Rejoin = 0, 1800*time.Millisecond, 10*time.Second, 50*time.Millisecond
	c.Rules = t.TempDir()
	writeRule(t, c.Rules, "domain: auth\ndescriptors:\n  - key: user\n    rate_limit: {count: 2, period: 1h}\n")
	return c
}

// writeRule puts text into force whole: nobody reads half of it.
func writeRule(t *testing.T, dir, text string) {
	t.Helper()
	next := filepath.Join(dir, ".next")
	do(t, os.WriteFile(next, []byte(text), 0o644))
	do(t, os.Rename(next, filepath.Join(dir, "rules.yaml")))
}

// running is a node that the commands ask.
type running struct {
	*node.Node
	grpc, http string
	rules      string
}

// startNode runs a node with c until the test ends.
func startNode(t *testing.T, c node.Config) *running {
	t.Helper()
	r := startNodeUnready(t, c)
	await(t, "ready", func() bool { ok, _ := r.Ready(); return ok })
	return r
}

// startNodeUnready is startNode without waiting until it is ready.
func startNodeUnready(t *testing.T, c node.Config) *running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	n, err := node.Open(ctx, c, slog.New(slog.DiscardHandler))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- n.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	return &running{n, n.Addrs().GRPC.String(), n.Addrs().HTTP.String(), c.Rules}
}

// serveGRPC serves what register puts on a gRPC server until the test ends, and returns its address.
func serveGRPC(t *testing.T, register func(*grpc.Server)) (addr string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	server := grpc.NewServer()
	register(server)
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return listener.Addr().String()
}

// await polls until ok, at most a minute.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(time.Minute)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("not %s within a minute", what)
		}
		<-tick.C
	}
}

// cli runs one command line and returns its exit code and what it printed.
func cli(args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	code = run(context.Background(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// cliWith is cli with something to read.
func cliWith(in string, args ...string) (code int, stdout, stderr string) {
	var out, errs bytes.Buffer
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(strings.NewReader(in))
	root.SetOut(&out)
	root.SetErr(&errs)
	if err := root.ExecuteContext(context.Background()); err != nil {
		code = exitUsage
		if coded, ok := errors.AsType[*codedError](err); ok {
			code = coded.code
		}
		fmt.Fprintln(&errs, err)
	}
	return code, out.String(), errs.String()
}

// papers are an authority's files for one node under test.
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

// files writes a certificate for both sides and returns the paths of it, its key and the authority.
func (p papers) files(t *testing.T, name string, hosts ...string) (cert, key, ca string) {
	t.Helper()
	made, err := p.Issue(mint.Leaf{
		CommonName: "test", Hosts: append(hosts, name), Server: true, Client: true,
		From: time.Now().Add(-time.Hour), Until: time.Now().Add(time.Hour),
	})
	do(t, err)
	return p.write(t, name+".crt", made.Cert), p.write(t, name+".key", made.Key), filepath.Join(p.dir, "ca")
}

// withTLS turns TLS on for the gRPC and the HTTP port of a node.
func (p papers) withTLS(t *testing.T, c *node.Config, auth string) {
	t.Helper()
	c.TLS.Cert, c.TLS.Key, c.TLS.ClientCA = p.files(t, "api")
	c.TLS.ClientAuth = auth
}

// do fails the test if a step of it cannot be done.
func do(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
