package main

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/certs"
)

// Of the certificates of `sluice cert`, a node may claim its own name and no other; clients' ports have the names that all share.
func TestCertNames(t *testing.T) {
	const template = "{name}.sluice.svc"
	f := certFlags{dir: t.TempDir(), names: []string{"n1", "n2", "sluice"}, hosts: []string{"api.example.com", "127.0.0.9"}, peerName: template, days: 1}
	do(t, f.validate())
	do(t, f.run(time.Now()))
	files, err := filepath.Glob(filepath.Join(f.dir, "*.crt"))
	if err != nil || len(files) != 2+2*len(f.names) {
		t.Fatalf("%v, %v", files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		do(t, err)
		block, _ := pem.Decode(text)
		cert, err := x509.ParseCertificate(block.Bytes)
		do(t, err)
		own := strings.TrimSuffix(filepath.Base(file), ".crt")
		for _, claimed := range append([]string{"localhost", "127.0.0.1", "127.0.0.9", "::1", "api.example.com", "client", "ca", "n1-peer"}, f.names...) {
			for _, name := range []string{claimed, certs.NameOf(template, claimed, "")} {
				err := certs.CheckNode(tls.ConnectionState{PeerCertificates: []*x509.Certificate{cert}}, name)
				if want := own == claimed+peerSuffix && name != claimed; (err == nil) != want {
					t.Errorf("%s claims %q: %v", own, name, err)
				}
			}
		}
		for _, name := range f.names {
			if own == name && (cert.VerifyHostname(sharedName) != nil || cert.VerifyHostname("localhost") != nil || cert.VerifyHostname("api.example.com") != nil) {
				t.Errorf("%s is not for clients: %v", own, cert.DNSNames)
			}
		}
	}
	f.names = []string{"n1", "n1-peer"}
	if err := f.validate(); err == nil {
		t.Error("two nodes have files of the same name")
	}
}

// A certificate is for one region, so a template of its name in place of that is a mistake.
func TestCertOfAnyRegion(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "certs")
	code, _, stderr := cli("cert", "--dir", dir, "--names", "n1", "--peer-tls-name", "{name}.{region}.example")
	if code != exitUsage || !strings.Contains(stderr, "--peer-tls-name: write the name of the region in place of {region}") {
		t.Errorf("exit code %d: %s", code, stderr)
	}
	if _, err := os.Stat(dir); err == nil {
		t.Error("it has written files")
	}
}
