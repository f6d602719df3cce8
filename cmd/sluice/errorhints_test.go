package main

import (
	"errors"
	"net"
	"path/filepath"
	"strings"
	"testing"
)

// TestCausesAreExplained: whatever keeps a command from its node, it says what happened, at which address, and what to do, and shows
// nothing of the libraries between.
func TestCausesAreExplained(t *testing.T) {
	t.Parallel()
	plain := startNode(t, testConfig(t))
	ours := newPapers(t)
	s := testConfig(t)
	ours.withTLS(t, &s, "none")
	secured := startNode(t, s)
	asked := testConfig(t)
	ours.withTLS(t, &asked, "require")
	asking := startNode(t, asked)
	ca := filepath.Join(ours.dir, "ca")

	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts and says nothing
	do(t, err)
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	do(t, err)
	closed.Close()
	other := newPapers(t)
	for _, command := range []string{"check --domain auth a=b", "audit --answer-within 1s", "bench"} {
		if _, _, errs := cli(append(strings.Fields(command), "--addr", "127.0.0.99")...); !strings.HasPrefix(errs, "sluice: 127.0.0.99:7460: nothing listens there") {
			t.Errorf("%s, without a port: %q", command, errs)
		}
	}

	for _, c := range []struct {
		name, addr string
		args       []string
		want       string
	}{
		{"refused", closed.Addr().String(), nil, "nothing listens there"},
		{"DNS", "sluice.invalid:7460", nil, "the host name is not known"},
		{"TLS expected", secured.grpc, nil, "does the port have TLS (--tls"},
		{"no TLS", plain.grpc, []string{"--tls"}, "the port has no TLS"},
		{"unknown CA", secured.grpc, []string{"--tls", "--server-name", "api"}, "signed by a CA that this machine does not know"},
		{"another CA", secured.grpc, []string{"--ca", filepath.Join(other.dir, "ca"), "--server-name", "api"}, "signed by a CA that this machine does not know"},
		{"name mismatch", secured.grpc, []string{"--ca", ca, "--server-name", "elsewhere"}, "the node's certificate is for another name (certificate is valid for"},
		{"no client certificate", asking.grpc, []string{"--ca", ca, "--server-name", "api"}, "certificate of the client"},
		{"port of the HTTP API", plain.http, nil, "7460"},
		{"deadline", silent.Addr().String(), []string{"--timeout", "100ms"}, "no answer in time"},
	} {
		for _, command := range [][]string{{"check", "--domain", "auth", "a=b"}, {"members"}, {"health"}, {"bench", "--duration", "1s"}} {
			args := append(append(command, "--addr", c.addr), c.args...)
			if command[0] == "members" {
				args = append(args, "--operators-dir", t.TempDir()) // not by the operators' socket
			}
			code, out, errs := cli(args...)
			if want := map[string]int{"health": exitDenied}[command[0]]; code != max(want, exitDenied) && code != exitNoAnswer || out != "" {
				t.Errorf("%s, %s: exit code %d, %q", c.name, command[0], code, out)
			}
			if !strings.Contains(errs, c.want) || !strings.HasPrefix(errs, "sluice: "+c.addr+": ") || strings.Contains(errs, "rpc error") || strings.Contains(errs, "desc =") {
				t.Errorf("%s, %s: %q, want the address and %q", c.name, command[0], errs, c.want)
			}
		}
	}
	for _, c := range []struct{ command, addr, want string }{
		{"bench --api http", secured.http, "the port has TLS: give --ca"},
		{"audit --answer-within 2s", plain.http, "give the node's gRPC port, 7460 by default"},
	} {
		code, out, errs := cli(append(strings.Fields(c.command), "--duration", "1s", "--addr", c.addr)...)
		if code != exitNoAnswer || out != "" || !strings.HasPrefix(errs, "sluice: "+c.addr+": ") || !strings.Contains(errs, c.want) {
			t.Errorf("%s: exit code %d, %q, %q, want %q", c.command, code, out, errs, c.want)
		}
	}
}

// TestTexts: of texts as gRPC hands them on: whatever keeps a DNS server from answering, the address of the node is not at fault; and
// no node starts with an expired certificate.
func TestTexts(t *testing.T) {
	const unavailable = "rpc error: code = Unavailable desc = "
	const dns = unavailable + "dns: A record lookup error: lookup sluice.example on 127.0.0.53:53: dial udp 127.0.0.53:53: "
	const expired = "certificate has expired or is not yet valid: current time 2026-11-24T16:00:00Z is after 2026-11-23T00:00:00Z"
	for text, want := range map[string]string{
		dns + "connect: network is unreachable": "the host name is not known, as no DNS server answers",
		dns + "read: connection refused":        "the host name is not known, as no DNS server answers",
		dns + "i/o timeout":                     "the host name is not known, as no DNS server answers",
		unavailable + `connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: ` + expired + `"`: "the node's " +
			"certificate has expired or is not valid yet: replace it, or set this machine's clock (" + expired + ")",
	} {
		if got := explain(errors.New(text)).Error(); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}
