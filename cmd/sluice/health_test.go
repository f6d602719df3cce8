package main

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// health tells a node that is ready from one that is not, and says why.
func TestHealth(t *testing.T) {
	n := startNode(t, testConfig(t))
	addr := n.grpc
	if code, out, errs := cli("health", "--addr", addr); code != 0 || out != "ready\n" {
		t.Errorf("ready: exit code %d, %q, %s", code, out, errs)
	}
	c := testConfig(t)
	c.BootstrapExpect = 2
	alone := startNodeUnready(t, c).grpc
	if code, out, errs := cli("health", "--addr", alone); code != 1 || out != "" || !strings.Contains(errs, alone+" is not ready: still joining the cluster") {
		t.Errorf("joining: exit code %d, %q, %s", code, out, errs)
	}
	if code, _, errs := cli("health", "--addr", "127.0.0.1:1", "--timeout", "1s"); code != 1 || !strings.Contains(errs, "127.0.0.1:1") {
		t.Errorf("nobody there: exit code %d, %s", code, errs)
	}
	if code, _, errs := cli("health", "now"); code != 2 || !strings.Contains(errs, "now") {
		t.Errorf("wrong usage: exit code %d, %s", code, errs)
	}
}

// In a container the node's own settings say where it is.
func TestHealthFindsItsNode(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(file, []byte("bind: 127.0.1.3\ngrpc-port: 9001\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"SLUICE_CONFIG": file}, "127.0.1.3:9001"},
		{map[string]string{"SLUICE_CONFIG": file, "SLUICE_GRPC_PORT": "9000"}, "127.0.1.3:9000"},
		{nil, "127.0.0.1:7460"},
		{map[string]string{"SLUICE_GRPC_PORT": "9000"}, "127.0.0.1:9000"},
		{map[string]string{"SLUICE_BIND": "0.0.0.0"}, "127.0.0.1:7460"},
		{map[string]string{"SLUICE_BIND": "127.0.1.2", "SLUICE_GRPC_PORT": "9000"}, "127.0.1.2:9000"},
		{map[string]string{"SLUICE_BIND": "fd00::1"}, "[fd00::1]:7460"},
		{map[string]string{"SLUICE_BIND": "::"}, "127.0.0.1:7460"},
	} {
		s, err := settingsHere("", fromMap(c.env))
		if got := s.addrHere(s.GRPCPort); got != c.want || err != nil {
			t.Errorf("%v: %s, %v; want %s", c.env, got, err, c.want)
		}
	}
}

// Where the environment has turned TLS on, health asks where no certificate is asked for, and believes the node's
// own certificate and no other.
func TestHealthOverTLS(t *testing.T) {
	p := newPapers(t)
	s := testConfig(t)
	p.withTLS(t, &s, "require")
	n := startNode(t, s)
	_, port, err := net.SplitHostPort(n.http)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("SLUICE_BIND", "127.0.0.1")
	t.Setenv("SLUICE_HTTP_PORT", port)
	t.Setenv("SLUICE_TLS_CERT", s.TLS.Cert)
	if code, out, errs := cli("health"); code != 0 || out != "ready\n" {
		t.Errorf("ready: exit code %d, %q, %s", code, out, errs)
	}
	other, _, _ := p.files(t, "other", "localhost")
	t.Setenv("SLUICE_TLS_CERT", other)
	if code, _, errs := cli("health"); code != 1 || !strings.Contains(errs, "not the certificate in") {
		t.Errorf("another certificate: exit code %d, %s", code, errs)
	}
	t.Setenv("SLUICE_TLS_CERT", s.TLS.Cert)
	s.BootstrapExpect = 2
	_, port, _ = net.SplitHostPort(startNodeUnready(t, s).http)
	t.Setenv("SLUICE_HTTP_PORT", port)
	if code, _, errs := cli("health"); code != 1 || !strings.Contains(errs, "is not ready: still joining the cluster") {
		t.Errorf("joining: exit code %d, %s", code, errs)
	}
	t.Setenv("SLUICE_TLS_CERT", s.TLS.Cert+".gone")
	if code, _, errs := cli("health"); code != 2 || !strings.Contains(errs, "tls-cert") {
		t.Errorf("no such file: exit code %d, %s", code, errs)
	}
}

// The file that the node was given says where it is, too.
func TestHealthByConfig(t *testing.T) {
	n := startNode(t, testConfig(t))
	_, port, err := net.SplitHostPort(n.grpc)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	for text, want := range map[string]int{
		"bind: 127.0.0.1\ngrpc-port: " + port: 0, "grpc-port: 1": 1, "grpc-port: x": 2, "greeting: hello": 2,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if code, out, errs := cli("health", "--config", file); code != want || code == 0 && out != "ready\n" {
			t.Errorf("%q: exit code %d, %q, %s", text, code, out, errs)
		}
	}
}
