package main

import (
	"fmt"
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
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	other := newPapers(t)
	for _, command := range []string{"check --domain auth a=b", "audit --answer-within 100ms", "bench"} {
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

// TestNoDNSServer: whatever keeps a DNS server from answering, the address of the node is not at fault.
func TestNoDNSServer(t *testing.T) {
	for _, why := range []string{"connect: network is unreachable", "read: connection refused", "i/o timeout"} {
		err := explain(fmt.Errorf(`rpc error: code = Unavailable desc = dns: A record lookup error: lookup sluice.example on 127.0.0.53:53: dial udp 127.0.0.53:53: %s`, why))
		if want := "the host name is not known, as no DNS server answers"; !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %q, want %q", why, err, want)
		}
	}
}

// TestExpiredCertificate: of a text as gRPC hands it on, as no node starts with such a certificate.
func TestExpiredCertificate(t *testing.T) {
	err := explain(fmt.Errorf(`rpc error: code = Unavailable desc = connection error: desc = "transport: authentication handshake failed: tls: failed to verify certificate: x509: certificate has expired or is not yet valid: current time 2026-11-24T16:00:00Z is after 2026-11-23T00:00:00Z"`))
	if got, want := err.Error(), "the node's certificate has expired or is not valid yet: replace it, or set this machine's clock (certificate has expired or is not yet valid: current time 2026-11-24T16:00:00Z is after 2026-11-23T00:00:00Z)"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestSeveralAddresses: the first that accepts a connection is asked.
func TestSeveralAddresses(t *testing.T) {
	n := startNode(t, testConfig(t))
	for addrs, want := range map[string]int{
		"127.0.0.1:1," + n.grpc:        exitOK,
		n.grpc + ",127.0.0.1:1":        exitOK,
		"127.0.0.1:1,127.0.0.1:2":      exitDenied,
		"127.0.0.1:1,sluice.invalid:2": exitDenied,
	} {
		if code, _, errs := cli("health", "--addr", addrs); code != want {
			t.Errorf("%s: exit code %d, want %d: %s", addrs, code, want, errs)
		}
	}
}

// TestNearestIsSuggested: a misspelt command or flag is told what it is near to, or where to look.
func TestNearestIsSuggested(t *testing.T) {
	for want, args := range map[string][]string{
		`unknown command "chekc" for "sluice"; did you mean check?`:           {"chekc"},
		`unknown command "nothing" for "sluice"; see ` + "`sluice --help`":    {"nothing"},
		`unknown command "chek" for "sluice rules"; did you mean check?`:      {"rules", "chek"},
		`unknown flag: --adr; did you mean --addr?`:                           {"check", "--adr", "x"},
		`unknown flag: --nothing-like; see ` + "`sluice check --help`":        {"check", "--nothing-like", "x"},
		`unknown flag: --merge-domain; did you mean --merge-domains?`:         {"rules", "check", "--merge-domain", "x"},
		`unknown flag: --concurency; did you mean --concurrency?`:             {"bench", "--concurency", "5"},
		`unknown flag: --bootstrap-expct; did you mean --bootstrap-expect?`:   {"serve", "--bootstrap-expct", "3"},
		`unknown shorthand flag: 'x' in -x; see ` + "`sluice members --help`": {"members", "-x"},
	} {
		if code, _, errs := cli(args...); code != exitUsage || errs != "sluice: "+want+"\n" {
			t.Errorf("%q: exit code %d, %q, want %q", args, code, errs, want)
		}
	}
}
