package main

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const migrateData = "../../internal/migrate/testdata/"

// TestMigratedIsAccepted: what is made of every setting of a product is a configuration of serve, and the rules are valid.
func TestMigratedIsAccepted(t *testing.T) {
	written := t.TempDir()
	for _, args := range [][]string{
		{"gubernator", migrateData + "gubernator.env"},
		{"gubernator"},
		{"ratelimit", migrateData + "ratelimit.env", "--runtime", migrateData + "rules", "--write-rules", written, "--join", "n1,n2,n3"},
		{"ratelimit"},
	} {
		code, stdout, stderr := cli(append([]string{"migrate"}, args...)...)
		if code != 0 {
			t.Fatalf("%v: %d, %s", args, code, stderr)
		}
		s, f := parsed(t, "--config", writeFile(t, stdout))
		if err := settle(f, fromMap(nil)); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		if err := s.validate(); err != nil {
			t.Errorf("%v: %v", args, err)
		}
		if s.GRPCPort != 1051 && s.GRPCPort != 8081 || s.BootstrapExpect == 0 {
			t.Errorf("%v: %+v", args, s)
		}
	}
	if code, stdout, stderr := cli("rules", "check", written); code != 0 || !strings.Contains(stdout, "4 rules: valid") || strings.Count(stdout, "shadow\n") < 3 {
		t.Errorf("%d\n%s%s", code, stdout, stderr)
	}
}

func TestMigrateErrors(t *testing.T) {
	for text, want := range map[string]string{
		"GUBER_HTTP_ADDRESS=0.0.0.0:99999": `: GUBER_HTTP_ADDRESS: "99999" is no value for --http-port`,
		"GUBER_INSTANCE_ID=<id>":           `: GUBER_INSTANCE_ID: --name: "<id>" contains '<'`,
		"OTEL_TRACES_SAMPLER_ARG=2":        ": OTEL_TRACES_SAMPLER_ARG: --trace-sample: 2 is not between 0 and 1",
		"GUBER_CACHE_SIZE=-1":              ": GUBER_CACHE_SIZE: --max-entries: -2 is below 0",
		"nonsense":                         ": want NAME=VALUE",
	} {
		file := writeFile(t, "# settings\n"+text+"\n")
		if code, _, stderr := cli("migrate", "gubernator", file); code != 1 || !strings.Contains(stderr, file+":2"+want) {
			t.Errorf("%s: %d, %s", text, code, stderr)
		}
	}
	if code, _, stderr := cli("migrate", "gubernator", "none.env"); code != 1 || !strings.Contains(stderr, "none.env") {
		t.Errorf("%d, %s", code, stderr)
	}
	code, stdout, _ := cli("migrate", "ratelimit", "-o", "json", "--runtime", migrateData+"rules")
	var r struct {
		Settings []struct{ Outcome, Flag, Value string }
	}
	if err := json.Unmarshal([]byte(stdout), &r); err != nil || code != 0 || len(r.Settings) < 8 {
		t.Errorf("%d, %v, %s", code, err, stdout)
	}
}

func TestSizing(t *testing.T) {
	for _, c := range []struct {
		args, want string
		code       int
	}{
		{"--rate 20000 --keys 2000000", "1.12 cores in use at the peak; 1.0 for each of 3 nodes\nmemory    2000000 counters, 342 MiB", 0},
		{"--rate 1000000 --batch 1000 --keys 10000 --nodes 1", "1.30 cores in use at the peak; 2.2 for each of 1", 0}, // as measured
		{"--rate 1000000 --batch 100 --keys 10000 --nodes 3 --replicas 0", "2.50 cores in use", 0},
		{"--rate 1000000 --keys 10000 --nodes 9 --replicas 0", "109.00 cores in use", 0},
		{"--rate 10000 --keys 10000", "3.4 MB/s", 0},
		{"--rate 1 --keys 1e7 --nodes 5 --replicas 2", "7500000 counters", 0},
		{"--rate 1 --keys 1e7 --nodes 3 --replicas 2", "10000000 counters", 0}, // two nodes are left, and one replica
		{"--rate 5 --keys 5 -o json", `"memory_limit_mib":128`, 0},
		{"--rate 0 --keys 5", "--rate: 0 is not from 1 to 100000000", 2},
		{"--keys 5", "--rate: ", 2},
		{"--rate 1 --keys 1e11", "--keys: ", 2},
		{"--rate 1 --keys 1 --batch 1001", "--batch: ", 2},
		{"--rate 1 --keys 1 --replicas 3", "--replicas: ", 2},
		{"--rate 1 --keys 1 --nodes 0", "--nodes: ", 2},
		{"--rate 1 --keys 1 --nodes 2", "--nodes: 2 do not survive the loss of one", 2},
	} {
		if code, stdout, stderr := cli(append([]string{"sizing"}, strings.Fields(c.args)...)...); code != c.code || !strings.Contains(stdout+stderr, c.want) {
			t.Errorf("%s: %d\n%s%s", c.args, code, stdout, stderr)
		}
	}
}

var updateDocs = flag.Bool("update", false, "write the golden files and the references of docs/operate anew")

// TestSizingDoc: docs/operate/sizing.md shows what its commands print.
func TestSizingDoc(t *testing.T) {
	pages, err := filepath.Glob("../../docs/*sizing.md")
	more, err2 := filepath.Glob("../../docs/*/sizing.md")
	if pages = append(pages, more...); err != nil || err2 != nil || len(pages) != 1 {
		t.Fatal(pages, err, err2)
	}
	text, err := os.ReadFile(pages[0])
	do(t, err)
	n := 0
	shown := regexp.MustCompile("(?s)```sh\nbin/sluice (sizing [^\n]*)\n```\n\n```\n.*?```\n").ReplaceAllStringFunc(string(text), func(block string) string {
		n++
		line, _, _ := strings.Cut(strings.TrimPrefix(block, "```sh\nbin/sluice "), "\n")
		code, stdout, stderr := cli(strings.Fields(line)...)
		if code != 0 {
			t.Errorf("%s: %s", line, stderr)
		}
		return "```sh\nbin/sluice " + line + "\n```\n\n```\n" + stdout + "```\n"
	})
	if *updateDocs {
		do(t, os.WriteFile(pages[0], []byte(shown), 0o644))
	} else if n == 0 || shown != string(text) {
		t.Errorf("%s has %d examples, or shows another output than: go test ./cmd/sluice -run SizingDoc -update", pages[0], n)
	}
}
