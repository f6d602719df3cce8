package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// Every command that calls nodes reaches one whose ports ask for certificates, with the flags for that, and
// not without.
func TestCommandsOverTLS(t *testing.T) {
	t.Parallel()
	ours := newPapers(t)
	s := testConfig(t)
	s.TopKeys = "on"
	ours.withTLS(t, &s, "require")
	n := startNode(t, s)
	cert, key, _ := ours.files(t, "me")
	flags := []string{"--ca", filepath.Join(ours.dir, "ca"), "--cert", cert, "--cert-key", key, "--server-name", "api"}
	grpcAddr, httpAddr := n.grpc, n.http
	load, another := []string{"--concurrency", "2"}, []string{"--operators-dir", t.TempDir()} // as another user, who is no operator
	for _, c := range [][]string{
		{"check", "--addr", grpcAddr, "--domain", "auth", "user=x"},
		append([]string{"members", "--addr", grpcAddr}, another...),
		{"health", "--addr", grpcAddr},
		append([]string{"top", "--once", "--addr", grpcAddr}, another...),
		{"audit", "--discover", "--addr", grpcAddr, "--duration", "100ms", "--until-exhausted", "--keys", "5", "--concurrency", "2"},
		append([]string{"bench", "--addr", grpcAddr}, load...),
		append([]string{"bench", "--api", "stream", "--addr", grpcAddr}, load...),
		append([]string{"bench", "--api", "sdk", "--addr", grpcAddr}, load...),
		append([]string{"bench", "--api", "http", "--addr", httpAddr}, load...),
	} {
		run, patience := cli, "--timeout"
		switch c[0] {
		case "audit":
			patience = "--answer-within"
		case "bench":
			run = func(args ...string) (int, string, string) { return benchUntil(t, answered(100, n), args[1:]...) }
		}
		c = slices.Clip(c)
		if code, out, errs := run(append(append(c, flags...), patience, "20s")...); code != 0 {
			t.Errorf("%v: exit code %d\n%s%s", c, code, out, errs)
		}
		if code, out, _ := run(append(c, patience, "2s")...); code == 0 {
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
