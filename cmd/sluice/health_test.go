package main

import (
	"net"
	"strings"
	"testing"
)

// healthCommand tells a node that is ready, which the first address that accepts a connection or a file of settings names.
func healthCommand(t *testing.T, n *running) {
	_, port, err := net.SplitHostPort(n.grpc)
	do(t, err)
	config := func(text string) []string { return []string{"--config", writeFile(t, text)} }
	for _, c := range []struct {
		args []string
		code int
		errs string
	}{
		{[]string{"--addr", n.grpc}, 0, ""},
		{[]string{"--addr", "127.0.0.1:1," + n.grpc}, 0, ""},
		{[]string{"--addr", n.grpc + ",127.0.0.1:1"}, 0, ""},
		{config("bind: 127.0.0.1\ngrpc-port: " + port), 0, ""},
		{[]string{"--addr", "127.0.0.1:1", "--timeout", "1s"}, exitDenied, "127.0.0.1:1"},
		{[]string{"--addr", "127.0.0.1:1,127.0.0.1:2"}, exitDenied, ""},
		{[]string{"--addr", "127.0.0.1:1,sluice.invalid:2"}, exitDenied, ""},
		{config("grpc-port: 1"), exitDenied, ""},
		{config("grpc-port: x"), exitUsage, ""},
		{config("greeting: hello"), exitUsage, ""},
		{[]string{"now"}, exitUsage, "now"},
	} {
		code, out, errs := cli(append([]string{"health"}, c.args...)...)
		if code != c.code || (out == "ready\n") != (code == 0) || !strings.Contains(errs, c.errs) {
			t.Errorf("%q: exit code %d, %q, %s", c.args, code, out, errs)
		}
	}
}

// In a container the node's own settings say where it is.
func TestHealthFindsItsNode(t *testing.T) {
	file := writeFile(t, "bind: 127.0.1.3\ngrpc-port: 9001\n")
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
	do(t, err)
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
