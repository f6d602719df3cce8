package main

import (
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Every command that calls nodes reaches one whose ports ask for certificates, with the flags for that, and
// not without.
func TestCommandsOverTLS(t *testing.T) {
	ours := newPapers(t)
	s := testSettings(t)
	ours.withDoorTLS(t, &s, "require")
	n := startNode(t, s)
	made := ours.issue(t, time.Hour)
	cert, key := ours.write(t, "me.crt", made.Cert), ours.write(t, "me.key", made.Key)
	flags := []string{"--ca", filepath.Join(ours.dir, "ca"), "--cert", cert, "--cert-key", key, "--server-name", "door"}
	grpcAddr, httpAddr := n.listen.grpc.Addr().String(), n.listen.http.Addr().String()
	load := []string{"--callers", "2", "--duration", "100ms", "--warmup", "0s", "--timeout", "2s"}
	for _, c := range [][]string{
		{"check", "--addr", grpcAddr, "--timeout", "2s", "--domain", "auth", "user=x"},
		{"members", "--addr", grpcAddr, "--timeout", "2s"},
		{"health", "--addr", grpcAddr, "--timeout", "2s"},
		{"top", "--once", "--addr", grpcAddr, "--timeout", "2s"},
		{"audit", "--discover", "--addr", grpcAddr, "--duration", "200ms", "--keys", "5", "--callers", "2", "--answer-within", "2s"},
		append([]string{"bench", "--addr", grpcAddr}, load...),
		append([]string{"bench", "--door", "stream", "--addr", grpcAddr}, load...),
		append([]string{"bench", "--door", "sdk", "--addr", grpcAddr}, load...),
		append([]string{"bench", "--door", "http", "--addr", httpAddr}, load...),
	} {
		if code, out, errs := cli(append(c, flags...)...); code != 0 {
			t.Errorf("%v: exit code %d\n%s%s", c, code, out, errs)
		}
		if code, out, _ := cli(c...); code == 0 {
			t.Errorf("%v: works without a certificate\n%s", c, out)
		}
	}
}

func TestWrongClientTLS(t *testing.T) {
	file := writeFile(t, "nothing")
	for want, args := range map[string][]string{
		"--ca: open":               {"--ca", file + "2"},
		"no certificate in PEM":    {"--ca", file},
		"--cert: missing":          {"--cert-key", file},
		"--cert-key: missing":      {"--cert", file},
		"--cert, --cert-key: tls:": {"--cert", file, "--cert-key", file},
	} {
		for _, command := range [][]string{{"members"}, {"audit"}, {"bench"}} {
			code, _, errs := cli(append(command, args...)...)
			if code != exitUsage || !strings.Contains(errs, want) {
				t.Errorf("%v %v: exit code %d, %q", command, args, code, errs)
			}
		}
	}
}
