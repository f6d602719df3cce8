package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
)

func TestAuditExitCodes(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig(t)) // its rule: auth, user, 2 an hour
	addr := n.grpc
	log := filepath.Join(t.TempDir(), "checks.jsonl")
	of := func(args ...string) []string {
		return append([]string{"audit", "--addr", addr, "--duration", "100ms", "--keys", "5", "--concurrency", "2"}, args...)
	}
	rule := func(args ...string) []string {
		return of(append([]string{"--inline-limits=false", "--descriptor-key", "user", "--align", "epoch", "--until-exhausted"}, args...)...)
	}
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"passes", of("--until-exhausted"), 0, "fixed_window first_hit, 10 per 1h  5     5         50", ""},
		{"says why", of("--until-exhausted"), 0,
			"\nPASS: 5 of 5 keys reached their limit; none is over or under its quota, and every check was answered\n", ""},
		{"as JSON", of("-o", "json", "--until-exhausted"), 0, `{"verdict":"PASS",`, ""},
		{"discovered", of("--discover", "--batch", "1,7", "--until-exhausted"), 0, "\nPASS: ", ""},
		{"tests nothing", of("--rate", "20", "--keys", "1000"), 4, "\nINCONCLUSIVE: 0 of 1000 keys reached their limit; the others show nothing. Give --until-exhausted", ""},
		{"tests nothing, as JSON", of("--rate", "20", "-o", "json"), 4, `{"verdict":"INCONCLUSIVE",`, ""},
		{"runs out of time", of("--rate", "100", "--until-exhausted", "--exhaust-within", "100ms"), 4, "5 were not denied often enough within --exhaust-within", ""},
		{"several limits", of("--until-exhausted", "--spec", "algorithm=token_bucket,burst=20", "--spec", "keys=3,algorithm=sliding_log", "--log", log), 0,
			"token_bucket burst 20, 10 per 1h", ""},
		{"a rule", rule("--domain", "auth", "--limit", "2"), 0, "fixed_window epoch, 2 per 1h", ""},
		{"a rule that allows more", rule("--domain", "auth", "--limit", "1"), 1, "\nFAIL: over quota 5 keys by 5 units, under quota 0 keys, 0 checks without an answer\n", ""},
		{"a rule that allows less", rule("--domain", "auth", "--limit", "3"), 1, "\nFAIL: over quota 0 keys, under quota 5 keys by ", ""},
		{"no rule", of("--inline-limits=false"), 1, "error unmatched", ""},
		{"wrong output", of("-o", "xml"), 2, "", "--output"},
		{"wrong algorithm", of("--algorithm", "dice"), 2, "", "--algorithm: \"dice\""},
		{"concurrency", of("--algorithm", "concurrency"), 2, "", "concurrency has no model"},
		{"wrong align", of("--align", "calendar"), 2, "", "unit"},
		{"wrong spec", of("--spec", "limit"), 2, "", "--spec limit: \"limit\": want key=value"},
		{"unknown in a spec", of("--spec", "count=3"), 2, "", "count"},
		{"no limit", of("--limit", "0"), 2, "", "count"},
		{"no time", of("--duration", "0s"), 2, "", "--duration"},
		{"no times", of("--duration", "0s", "--attempt", "0s", "--answer-within", "0s", "--exhaust-within", "0s"), 2, "", "--duration"},
		{"no caller", of("--concurrency", "0"), 2, "", "--concurrency"},
		{"no batch", of("--batch", "0"), 2, "", "batch"},
		{"an argument", of("n1"), 2, "", "n1"},
		{"no room for the log", of("--log", t.TempDir()), 2, "", "--log"},
		{"nobody there", []string{"audit", "--addr", "127.0.0.1:1", "--answer-within", "1s"}, 3, "", "nothing listens there"},
		{"nobody to discover", []string{"audit", "--discover", "--addr", "127.0.0.1:1", "--answer-within", "1s"}, 3, "", "nothing listens there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := cli(c.args...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
				t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", code, c.code, stdout, stderr)
			}
			if c.name == "as JSON" {
				if !json.Valid([]byte(stdout)) {
					t.Errorf("no JSON: %s", stdout)
				}
			}
		})
	}
	data, err := os.Open(log)
	do(t, err)
	defer data.Close()
	checks := 0
	if err := audit.ReadLog(data, func(c audit.Check) error { checks++; return nil }); err != nil || checks == 0 {
		t.Errorf("log of %d checks, error %v", checks, err)
	}
}

func TestAuditSpecs(t *testing.T) {
	defaults := auditSpec{keys: 1000, limit: 10, period: time.Hour, algorithm: "fixed_window", align: "epoch", burst: 7, descriptor: "key"}
	for text, want := range map[string]audit.Spec{
		"keys=5": {Keys: 5, Descriptor: "key", Limit: bucket.Limit{
			Algorithm: bucket.FixedWindow, Align: bucket.AlignEpoch, Count: 10, Burst: 7, Period: time.Hour}},
		"algorithm=token_bucket,period=1s": {Keys: 1000, Descriptor: "key", Limit: bucket.Limit{
			Algorithm: bucket.TokenBucket, Count: 10, Burst: 7, Period: time.Second}},
		"algorithm=sliding_log,limit=2000,descriptor=user": {Keys: 1000, Descriptor: "user", Limit: bucket.Limit{
			Algorithm: bucket.SlidingLog, Count: 2000, Period: time.Hour, LogEntries: 2000}},
		"algorithm=fixed_window,align=first_hit,burst=0": {Keys: 1000, Descriptor: "key", Limit: bucket.Limit{
			Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Count: 10, Period: time.Hour}},
	} {
		if got, err := defaults.parse(text); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, error %v; want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "key=value", "keys": "key=value", "keys=0": "keys", "keys=x": "keys", "keys=1,keys=2": "twice", "period=1": "period",
		"algorithm=x": "algorithm", "align=x": "align", "descriptor=": "descriptor", "soft=10": "none of",
	} {
		if _, err := defaults.parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: error %v, want one about %s", text, err, want)
		}
	}
}
