// Package certs keeps a TLS identity current: a certificate, its key, and the CAs of the other side, each in a file that
// may be replaced while a node runs.
//
// It decides whether new files come into force; every later handshake uses them, and open connections stay. Package access
// decides what a client certificate allows, and peers' names are checked by CheckNode.
//
// Sessions are never resumed: a session ticket would outlive the removal of a CA. A Source works on the goroutine that calls Run.
package certs

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/internal/reload"
)

// Source is a TLS identity that is kept current from Open on. It needs no closing.
type Source struct {
	config Config
	files  *reload.Files
	now    atomic.Pointer[identity]
}

// identity is the contents of one set of files.
type identity struct {
	certificate tls.Certificate
	cas         *x509.CertPool // nil without CA
}

// Open reads the files. It fails, with the flag of the file in the error, if they cannot be read, do not belong
// together, or the certificate has expired.
func Open(c Config) (*Source, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := &Source{config: c.withDefaults()}
	paths := []string{c.Cert, c.Key}
	if c.CA != "" {
		paths = append(paths, c.CA)
	}
	flags := s.config.Flags[:len(paths)]
	var err error
	s.files, err = reload.Open(reload.Config{
		What: strings.Join(flags, ", "), Paths: paths, Names: flags, Every: c.Every, Log: s.config.Log,
		Take: func(contents [][]byte) error {
			next, err := s.config.read(contents, time.Now())
			if err == nil {
				s.now.Store(next)
			}
			return err
		},
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Files are those that are followed; their Run keeps s current.
func (s *Source) Files() *reload.Files { return s.files }

// read validates the contents of certificate, key and, with CA, the CAs.
func (c Config) read(contents [][]byte, now time.Time) (*identity, error) {
	next := new(identity)
	var err error
	if next.certificate, err = tls.X509KeyPair(contents[0], contents[1]); err != nil {
		return nil, fmt.Errorf("%s, %s: %s and %s: %w", c.Flags[0], c.Flags[1], c.Cert, c.Key, err)
	}
	leaf := next.certificate.Leaf
	if !now.Before(leaf.NotAfter) {
		return nil, fmt.Errorf("%s: %s: the certificate has expired at %s", c.Flags[0], c.Cert, leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	if c.CA == "" {
		return next, nil
	}
	if next.cas, err = parseCAs(contents[2]); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", c.Flags[2], c.CA, err)
	}
	if !c.Mutual {
		return next, nil
	}
	if err := leaf.VerifyHostname(c.Name); err != nil {
		return nil, fmt.Errorf("%s: %s: the certificate is not one for %q: %w", c.Flags[0], c.Cert, c.Name, err)
	}
	chain, err := x509.ParseCertificates(slices.Concat(next.certificate.Certificate...))
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", c.Flags[0], c.Cert, err)
	}
	for _, side := range sides {
		if err := next.verify(chain, side.usage, now); err != nil {
			return nil, fmt.Errorf("%s, %s: %s against %s, as a %s: %w", c.Flags[0], c.Flags[2], c.Cert, c.CA, side.name, err)
		}
	}
	return next, nil
}

// sides are those of a connection between nodes, which a node's certificate has to be for.
var sides = []struct {
	usage x509.ExtKeyUsage
	name  string
}{{x509.ExtKeyUsageServerAuth, "server"}, {x509.ExtKeyUsageClientAuth, "client"}}

// parseCAs reads certificates in PEM, and nothing else.
func parseCAs(text []byte) (*x509.CertPool, error) {
	pool, n := x509.NewCertPool(), 0
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		n++
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("block %d is a %s, not a certificate", n, block.Type)
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("block %d: %w", n, err)
		}
		pool.AddCert(cert)
	}
	if n == 0 {
		return nil, errors.New("there is no certificate in PEM")
	}
	return pool, nil
}

// verify checks a chain, its leaf first, against the CAs.
func (i *identity) verify(chain []*x509.Certificate, usage x509.ExtKeyUsage, now time.Time) error {
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: i.cas, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	return err
}

// Server returns the configuration of a listener for the application protocols, for example "h2". Every handshake uses the
// files in force at that time.
func (s *Source) Server(protocols ...string) *tls.Config {
	if s.config.Mutual {
		return s.ServerAsking(RequireClient, protocols...)
	}
	return s.ServerAsking(s.config.Auth, protocols...)
}

// ServerAsking is Server with another ClientAuth.
func (s *Source) ServerAsking(auth ClientAuth, protocols ...string) *tls.Config {
	base := tls.Config{MinVersion: s.config.MinVersion, NextProtos: protocols, SessionTicketsDisabled: true} // #nosec G402 -- at least TLS 1.2, by Validate
	listener := base.Clone()
	listener.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) {
		now, c := s.now.Load(), base.Clone()
		c.Certificates, c.ClientCAs = []tls.Certificate{now.certificate}, now.cas
		switch auth {
		case RequestClient:
			c.ClientAuth = tls.VerifyClientCertIfGiven
		case RequireClient:
			c.ClientAuth = tls.RequireAndVerifyClientCert
		}
		return c, nil
	}
	return listener
}

// Client returns the configuration of connections to other nodes. The server's certificate is checked against the CAs in
// force at that time, but not its name: that is known only later, and for CheckNode. Only for Mutual.
func (s *Source) Client(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: s.config.MinVersion, NextProtos: protocols,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return &s.now.Load().certificate, nil
		},
		// crypto/tls would check against fixed CAs; VerifyConnection does it instead.
		InsecureSkipVerify: true, // #nosec G402
		VerifyConnection: func(state tls.ConnectionState) error {
			if len(state.PeerCertificates) == 0 {
				return errors.New("the other node shows no certificate")
			}
			return s.now.Load().verify(state.PeerCertificates, x509.ExtKeyUsageServerAuth, time.Now())
		},
	}
}

// CheckNode returns an error unless the other side of a connection, whose certificate was verified for its side, is the node
// of that DNS name. A node's certificate must be for both sides, so a client's certificate of the same CA is none.
func CheckNode(state tls.ConnectionState, name string) error {
	if len(state.PeerCertificates) == 0 {
		return errors.New("it shows no certificate")
	}
	if err := state.PeerCertificates[0].VerifyHostname(name); err != nil {
		return fmt.Errorf("its certificate is not one for %q: %w", name, err)
	}
	usages := state.PeerCertificates[0].ExtKeyUsage
	for _, side := range sides {
		if len(usages) > 0 && !slices.Contains(usages, side.usage) && !slices.Contains(usages, x509.ExtKeyUsageAny) {
			return fmt.Errorf("its certificate is not one for a %s, and a node's has to be for both", side.name)
		}
	}
	return nil
}

// Expires returns when the certificate in force does.
func (s *Source) Expires() time.Time { return s.now.Load().certificate.Leaf.NotAfter }

// LifeLeft returns how much of the life of the certificate in force is left, from 1 to 0.
func (s *Source) LifeLeft(now time.Time) float64 {
	leaf := s.now.Load().certificate.Leaf
	return max(0, min(1, float64(leaf.NotAfter.Sub(now))/float64(max(1, leaf.NotAfter.Sub(leaf.NotBefore)))))
}

const (
	oldAge    = 0.1           // the part of a certificate's life that is left when Run begins to warn
	lookEvery = time.Minute   // between two looks at the certificate's age
	warnEvery = 6 * time.Hour // between two warnings
)

// Run follows the files and warns of a certificate that expires soon, until ctx ends. It then returns nil.
func (s *Source) Run(ctx context.Context) error {
	ended := make(chan error, 1)
	go func() { ended <- s.files.Run(ctx) }()
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	var warned time.Time
	for {
		now := time.Now()
		if s.LifeLeft(now) < oldAge && now.Sub(warned) >= warnEvery {
			warned = now
			left := s.Expires().Sub(now).Round(time.Minute)
			s.config.Log.Warn("less than a tenth of the certificate's life is left; connections fail when it is over",
				"file", s.config.Cert, "left", left, "expires", s.Expires().UTC())
		}
		select {
		case err := <-ended:
			return err
		case <-look.C:
		}
	}
}

// ClientAuth says whether clients of a server need a certificate.
type ClientAuth int

const (
	// NoClient asks for no certificate.
	NoClient ClientAuth = iota
	// RequestClient asks for one, and rejects one that does not verify.
	RequestClient
	// RequireClient rejects clients without one as well.
	RequireClient
)

// ParseClientAuth reads none, request or require.
func ParseClientAuth(text string) (ClientAuth, error) {
	auth, ok := map[string]ClientAuth{"none": NoClient, "request": RequestClient, "require": RequireClient}[text]
	if !ok {
		return 0, fmt.Errorf("%q is none of none, request, require", text)
	}
	return auth, nil
}

// ParseVersion reads 1.2 or 1.3.
func ParseVersion(text string) (uint16, error) {
	version, ok := map[string]uint16{"1.2": tls.VersionTLS12, "1.3": tls.VersionTLS13}[text]
	if !ok {
		return 0, fmt.Errorf("%q is neither 1.2 nor 1.3", text)
	}
	return version, nil
}

// Config of a Source. Errors name its files as Flags does.
type Config struct {
	// Cert and Key are files in PEM: the certificate with intermediate ones behind it, and its key, not encrypted. Required.
	Cert, Key string
	// CA is a file in PEM with the CAs of the other side, one or more. Empty if the other side needs no certificate.
	CA string
	// Auth says whether clients of Server need a certificate.
	Auth ClientAuth
	// MinVersion is the oldest TLS version that is accepted. 0 means 1.3.
	MinVersion uint16
	// Mutual: the certificate is for both sides of connections between nodes, so CA itself must verify it, as server and as
	// client, under the name Name.
	Mutual bool
	Name   string
	// Flags name Cert, Key and CA in errors and log lines, for example --tls-cert.
	Flags [3]string
	// Every is the time between two readings. 0 means reload.DefaultEvery.
	Every time.Duration
	// Log gets a line when files change, and when a certificate expires soon. Nil logs nothing.
	Log *slog.Logger
}

// Validate names the first field that is wrong.
func (c Config) Validate() error {
	switch {
	case c.Cert == "":
		return errors.New("certs: Cert: is empty")
	case c.Key == "":
		return errors.New("certs: Key: is empty")
	case c.CA == "" && (c.Auth != NoClient || c.Mutual):
		return errors.New("certs: CA: is empty, and certificates are to be checked against it")
	case c.Mutual && c.Name == "":
		return errors.New("certs: Name: is empty")
	case c.MinVersion != 0 && c.MinVersion != tls.VersionTLS12 && c.MinVersion != tls.VersionTLS13:
		return fmt.Errorf("certs: MinVersion: %#x is neither TLS 1.2 nor 1.3", c.MinVersion)
	}
	return nil
}

func (c Config) withDefaults() Config {
	if c.MinVersion == 0 {
		c.MinVersion = tls.VersionTLS13
	}
	for i, name := range []string{"certificate", "key", "CA"} {
		if c.Flags[i] == "" {
			c.Flags[i] = name
		}
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return c
}

// NameOf puts a member's name and its region into a template such as {name}.{region}.sluice.example.
func NameOf(template, member, region string) string {
	return strings.NewReplacer("{name}", member, "{region}", region).Replace(template)
}
