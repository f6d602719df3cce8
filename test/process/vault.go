package process

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	sluice "github.com/sluicecluster/sluice/client"
	"github.com/sluicecluster/sluice/client/sluicegrpc"
	"github.com/sluicecluster/sluice/internal/certs/mint"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// Tokens are files with tokens, and one that says who may do what.
type Tokens struct {
	*testing.T
	Dir string
}

// NewTokens returns an empty directory for tokens.
func NewTokens(t *testing.T) Tokens { return Tokens{t, t.TempDir()} }

// Make makes a token and returns its file and its digest.
func (k Tokens) Make(name string) (path, digest string) {
	k.Helper()
	path = filepath.Join(k.Dir, name)
	out, err := exec.Command(Binary, "token", "--out", path).Output()
	if err != nil {
		k.Fatal(err)
	}
	return path, strings.TrimSpace(string(out))
}

// Write replaces a file as a whole.
func (k Tokens) Write(name, text string) {
	k.Helper()
	path := filepath.Join(k.Dir, name)
	if err := os.WriteFile(path+".next", []byte(text), 0o600); err != nil {
		k.Fatal(err)
	}
	if err := os.Rename(path+".next", path); err != nil {
		k.Fatal(err)
	}
}

// Allow writes the callers file: the load has these digests.
func (k Tokens) Allow(thief string, load ...string) {
	k.Helper()
	k.Write("callers.yaml", fmt.Sprintf(`
callers:
  - {name: load, tokens: [%s], grants: [{domains: ["rotate*"], verbs: [check, read]}]}
  - {name: thief, tokens: [%s], grants: [{domains: [theirs], verbs: [check, read, charge, refund, reset]}]}
`, strings.Join(load, ", "), thief))
}

// Vault is where the nodes of a cluster, and its callers, have certificates, keys, tokens and
// rules.
type Vault struct {
	Tokens
	Before, After *mint.CA
	Shows         atomic.Pointer[tls.Certificate] // what callers show now
	Trust         *x509.CertPool                  // both authorities
}

// NewVault returns a vault with two authorities and nothing issued.
func NewVault(t *testing.T) *Vault {
	t.Helper()
	v := &Vault{Tokens: NewTokens(t), Trust: x509.NewCertPool()}
	for _, a := range []**mint.CA{&v.Before, &v.After} {
		var err error
		if *a, err = mint.NewCA("e2e", time.Now(), 48*time.Hour); err != nil {
			t.Fatal(err)
		}
		v.Trust.AppendCertsFromPEM((*a).PEM)
	}
	return v
}

func (v *Vault) issue(a *mint.CA, life time.Duration, name string, server bool) mint.Pair {
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

// Equip gives nodes certificates of an authority.
func (v *Vault) Equip(a *mint.CA, life time.Duration, names ...string) {
	v.Helper()
	for _, name := range names {
		pair := v.issue(a, life, name, true)
		// The pair is not whole between these two.
		v.Write(name+".crt", string(pair.Cert))
		v.Write(name+".key", string(pair.Key))
	}
}

// Show gives callers a certificate of an authority.
func (v *Vault) Show(a *mint.CA) {
	v.Helper()
	pair := v.issue(a, time.Hour, "caller", false)
	c, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		v.Fatal(err)
	}
	v.Shows.Store(&c)
}

func (v *Vault) Caller() *tls.Config {
	return &tls.Config{
		RootCAs: v.Trust, ServerName: "sluice",
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return v.Shows.Load(), nil },
	}
}

// Keys writes the keyring.
func (v *Vault) Keys(seeds ...byte) {
	v.Helper()
	var text strings.Builder
	for _, s := range seeds {
		fmt.Fprintln(&text, base64.StdEncoding.EncodeToString(bytes.Repeat([]byte{s}, 32)))
	}
	v.Write("keyring", text.String())
}

// Rules writes the rules: one that stays, and one that every new set of them has otherwise.
func (v *Vault) Rules(fresh int64) {
	v.Helper()
	v.Write("rules.yaml", fmt.Sprintf(`
domain: rotate
descriptors:
  - key: key
    rate_limit: {count: 20, period: 1h, algorithm: fixed_window, align: first_hit}
  - key: fresh
    rate_limit: {name: fresh-%d, count: %d, period: 1h}
`, fresh, fresh))
}

// Carry gives callers the token of a file.
func (v *Vault) Carry(path string) {
	v.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		v.Fatal(err)
	}
	v.Write("token", string(text))
}

// Token is the file with what callers carry now.
func (v *Vault) Token() string { return filepath.Join(v.Dir, "token") }

func (v *Vault) Flags() []string {
	in := func(name string) string { return filepath.Join(v.Dir, name) }
	return []string{
		"--tls-cert", in("{name}.crt"), "--tls-key", in("{name}.key"), "--tls-client-ca", in("ca"), "--tls-client-auth", "require",
		"--peer-tls-cert", in("{name}.crt"), "--peer-tls-key", in("{name}.key"), "--peer-tls-ca", in("ca"),
		"--gossip-keyring", in("keyring"), "--callers", in("callers.yaml"), "--rules", in("rules.yaml"),
	}
}

// Dial is how callers reach a node: over TLS, with the token of a file.
func (v *Vault) Dial(config *tls.Config, token string) []grpc.DialOption {
	return []grpc.DialOption{
		grpc.WithTransportCredentials(credentials.NewTLS(config)),
		grpc.WithPerRPCCredentials(sluicegrpc.TokenCredentials(sluice.TokenFile(token), true)),
	}
}

// Ask makes one check over a connection of its own, and returns the limit it was held to.
func (v *Vault) Ask(addr string, config *tls.Config, token string) (limit int64, err error) {
	conn, err := grpc.NewClient(addr, v.Dial(config, token)...)
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
