package system

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// papers are what servers show and clients trust, made by sluice itself: `sluice cert`.
type papers struct {
	cert, key string
	client    grpc.DialOption
}

// newPapers makes a certificate for nodes and the echo alike.
func (b *Binaries) newPapers(ctx context.Context) (*papers, error) {
	dir, err := os.MkdirTemp(b.scratch, "certs-")
	if err != nil {
		return nil, err
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	made := exec.CommandContext(ctx, b.sluice, "cert", "--dir", dir, "--names", nodeName(0))
	if text, err := made.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("making certificates: %w\n%s", err, text)
	}
	authority, err := os.ReadFile(in("ca.crt"))
	if err != nil {
		return nil, err
	}
	trust := x509.NewCertPool()
	trust.AppendCertsFromPEM(authority)
	config := &tls.Config{RootCAs: trust, ServerName: "sluice"}
	return &papers{
		cert: in(nodeName(0) + ".crt"), key: in(nodeName(0) + ".key"),
		client: grpc.WithTransportCredentials(credentials.NewTLS(config)),
	}, nil
}

// dial returns what connections need beside the usual, nothing without papers.
func (p *papers) dial() []grpc.DialOption {
	if p == nil {
		return nil
	}
	return []grpc.DialOption{p.client}
}

// EchoTLS is Echo over TLS 1.3.
func (b *Binaries) EchoTLS(ctx context.Context) (*System, error) {
	p, err := b.newPapers(ctx)
	if err != nil {
		return nil, err
	}
	return b.openEcho(ctx, "echo, TLS", 1, p)
}

// SluiceTLS is Sluice with one node, over TLS 1.3.
func (b *Binaries) SluiceTLS(ctx context.Context, keys int) (*System, error) {
	p, err := b.newPapers(ctx)
	if err != nil {
		return nil, err
	}
	s := &System{Name: "sluice ×1, TLS"}
	return s, s.opened(s.startSluice(ctx, b, 1, keys, p, "--tls-cert", p.cert, "--tls-key", p.key))
}
