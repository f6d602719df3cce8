package e2e

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// printed are the commands that `sluice cert` prints, each as its words.
func printed(text string) (commands [][]string) {
	text = strings.ReplaceAll(text, "\\\n", " ")
	for line := range strings.Lines(text) {
		if words := strings.Fields(line); len(words) > 0 && words[0] == "sluice" {
			commands = append(commands, words[1:])
		}
	}
	return commands
}

// clientOf trusts an authority and shows a client's certificate, as the files of `sluice cert` have them.
func clientOf(t *testing.T, dir string) *tls.Config {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "client.crt"), filepath.Join(dir, "client.key"))
	if err != nil {
		t.Fatal(err)
	}
	ca, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	return &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: "sluice"}
}

// TestCert makes a set of files, starts nodes with exactly the flags that were printed, and asks them with the
// command that was printed.
func TestCert(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "certs")
	names := []string{"n1", "n2", "n3"}
	code, out := command("cert", "--dir", dir, "--names", strings.Join(names, ","))
	if code != 0 {
		t.Fatalf("%d\n%s", code, out)
	}
	commands := printed(out)
	if len(commands) != len(names)+1 {
		t.Fatalf("%d commands are printed, want one for each node and one for callers:\n%s", len(commands), out)
	}
	var nodes []*process.Node
	for i, name := range names {
		c := process.Config{Name: name, TLS: clientOf(t, dir), Args: commands[i][1:]}
		if commands[i][0] != "serve" || strings.Join(commands[i][1:3], " ") != "--name "+name {
			t.Fatalf("command %d is %v", i, commands[i])
		}
		if i > 0 {
			c.Join = []string{nodes[0].Gossip}
		}
		nodes = append(nodes, process.Start(t, c))
	}
	process.WaitAgreed(t, nodes, 10*time.Second)

	for _, n := range nodes {
		if code, out := command(append(commands[3], "--addr", n.GRPC)...); code != 0 || !strings.Contains(out, "n3") {
			t.Errorf("%v: %d\n%s", commands[3], code, out)
		}
	}
	allowed := 0
	for i := range 30 {
		resp, err := nodes[i%3].API().Check(context.Background(), &sluicev1.CheckRequest{Checks: []*sluicev1.Check{process.InlineCheck("one")}})
		if err != nil {
			t.Fatal(err)
		}
		if resp.Decisions[0].Allowed {
			allowed++
		}
	}
	if allowed != 10 {
		t.Errorf("%d of 30 are allowed, want 10", allowed)
	}

	// Who comes without is not let in, and a probe is.
	for _, args := range [][]string{{}, {"--ca", filepath.Join(dir, "ca.crt"), "--server-name", "sluice"}} {
		args = append([]string{"members", "--timeout", "2s", "--addr", nodes[0].GRPC, "--operators-dir", t.TempDir()}, args...) // as another user
		if code, out := command(args...); code != 3 {
			t.Errorf("%v: exit code %d, want 3\n%s", args, code, out)
		}
	}
	bare := clientOf(t, dir)
	bare.Certificates = nil
	for path, want := range map[string]int{"/readyz": 200, "/metrics": 401, "/admin/v1alpha1/members": 401} {
		n := *nodes[0]
		n.TLS = bare
		if status, body, err := n.Get(path); err != nil || status != want {
			t.Errorf("%s without a certificate: %d %v, want %d\n%s", path, status, err, want, body)
		}
	}

	// A second time, nothing is overwritten.
	key := fileText(t, dir, "ca.key")
	if code, out := command("cert", "--dir", dir, "--names", "n1"); code != 1 || !strings.Contains(out, "is there already") {
		t.Errorf("again: %d\n%s", code, out)
	}
	if fileText(t, dir, "ca.key") != key {
		t.Error("the authority's key has changed")
	}
	for _, n := range nodes {
		for _, secret := range []string{"PRIVATE KEY", fileText(t, dir, "gossip.keyring"), fileText(t, dir, "secret")} {
			if strings.Contains(n.Log.String(), secret) {
				t.Errorf("%s logs a secret", n.Name)
			}
		}
	}
}

func fileText(t *testing.T, dir, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// command runs sluice and returns its exit code and what it printed.
func command(args ...string) (int, string) {
	cmd := exec.Command(process.Binary, args...)
	out, _ := cmd.CombinedOutput()
	return cmd.ProcessState.ExitCode(), string(out)
}

// TestWrongCert wants every wrong use of `sluice cert` to name its flag and to write nothing.
func TestWrongCert(t *testing.T) {
	for want, args := range map[string]string{
		"--dir: required":         "--names n1",
		"--names: required":       "--dir DIR",
		`--names: "a/b"`:          "--dir DIR --names a/b",
		`--names: "n1" is given`:  "--dir DIR --names n1,n1",
		`--names: "ca" is given`:  "--dir DIR --names ca",
		`--hosts: "http://x"`:     "--dir DIR --names n1 --hosts http://x",
		"--days: 0":               "--dir DIR --names n1 --days 0",
		"--peer-tls-name: is emp": "--dir DIR --names n1 --peer-tls-name=",
	} {
		dir := filepath.Join(t.TempDir(), "certs")
		words := strings.Fields(strings.ReplaceAll(args, "DIR", dir))
		if code, out := command(append([]string{"cert"}, words...)...); code != 2 || !strings.Contains(out, want) {
			t.Errorf("%s: %d, want %q\n%s", args, code, want, out)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: the directory was made", args)
		}
	}
}
