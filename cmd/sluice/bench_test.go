package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/charmbracelet/x/ansi"

	"github.com/sluicecluster/sluice/internal/load"
	"github.com/sluicecluster/sluice/internal/load/api"
)

// twoNodes starts two nodes that have found each other and returns their addresses at an API.
func twoNodes(t *testing.T) (nodes []*running, addrs func(k *api.Kind) string) {
	t.Helper()
	s := testConfig(t)
	writeRule(t, s.Rules, `domain: asked
authorize:
  descriptors:
    - - {key: user, from: header, name: X-User}
descriptors:
  - key: user
    rate_limit: {count: 20, period: 24h}
`)
	first := startNode(t, s)
	s.Name, s.Join = "n2", []string{first.Addrs().Gossip}
	nodes = []*running{first, startNode(t, s)}
	await(t, "two of two", func() bool {
		for _, n := range nodes {
			if _, out, _ := cli("members", "--addr", n.grpc); strings.Count(out, "serving") != 2 {
				return false
			}
		}
		return true
	})
	return nodes, func(k *api.Kind) string {
		var list []string
		for _, n := range nodes {
			if k.HTTP {
				list = append(list, n.http)
			} else {
				list = append(list, n.grpc)
			}
		}
		return strings.Join(list, ",")
	}
}

// benchUntil runs sluice bench with args and interrupts it once enough. The time that it has otherwise only guards against a hang:
// how far a load gets in a given time is the machine's affair.
func benchUntil(t *testing.T, enough func() bool, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	var polling sync.WaitGroup
	polling.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for !enough() {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
		stop()
	})
	var out, errs bytes.Buffer
	code = run(ctx, append([]string{"bench", "--warmup", "0s", "--duration", "1m"}, args...), &out, &errs)
	stop()
	polling.Wait()
	return code, out.String(), errs.String()
}

// answered returns a function that reports whether nodes have answered n checks since.
func answered(n uint64, nodes ...*running) (enough func() bool) {
	count := func() (sum uint64) {
		for _, r := range nodes {
			for _, n := range r.Stats().Results {
				sum += n
			}
		}
		return sum
	}
	before := count()
	return func() bool { return count() >= before+n }
}

// Each API admits exactly what its keys' limits have, and says so: five keys of 20 a day,
// asked far more often, at both nodes.
func TestBenchAPIs(t *testing.T) {
	t.Parallel()
	nodes, addrs := twoNodes(t)
	for i := range api.Kinds {
		k := &api.Kinds[i]
		for _, batch := range []string{"1", "7"} {
			if batch != "1" && k.MaxBatch == 1 {
				continue // this API takes one check a call
			}
			t.Run(k.Name+" "+batch, func(t *testing.T) {
				args := []string{"--limits", "20/day", "--domain", k.Name + batch}
				if k.MaxLimits == 0 {
					args = []string{"--domain", "asked"}
				}
				// 100 are there to be had, and then there are denials of each kind, of which the SDK remembers most.
				wanted := uint64(300)
				if k.Name == "sdk" {
					wanted = 105
				}
				enough, began := answered(wanted, nodes...), time.Now()
				code, stdout, stderr := benchUntil(t, func() bool { return enough() && (k.Name != "sdk" || time.Since(began) > 500*time.Millisecond) },
					append([]string{"--addr", addrs(k), "--api", k.Name, "--batch", batch, "--rate", "4000", "-o", "json", "--seed", "1", "--concurrency", "8", "--keys", "5"}, args...)...)
				if code != 0 {
					t.Fatalf("exit code %d\n%s%s", code, stdout, stderr)
				}
				var got benchJSON
				do(t, json.Unmarshal([]byte(stdout), &got))
				whole := k.Name == "sdk" && batch != "1" // whole calls may leave some over
				if got.Allowed != 5*20 && !(whole && got.Allowed > 5*20-7*5 && got.Allowed < 5*20) || got.Denied == 0 || got.Errors != 0 || got.FirstError != "" || got.FailedCalls != 0 {
					t.Errorf("want 100 allowed, some denied and no error: %s", stdout)
				}
				if got.Checks != got.Allowed+got.Denied || got.Checks != got.Calls*int64(got.Batch) {
					t.Errorf("calls, checks and decisions do not add up: %s", stdout)
				}
				var sum load.Decided
				for _, d := range got.Sources {
					sum.Allowed += d.Allowed
					sum.Denied += d.Denied
				}
				if (sum != load.Decided{Allowed: got.Allowed, Denied: got.Denied}) {
					t.Errorf("sources do not add up: %s", stdout)
				}
				sources := []string{"owned", "forwarded"}
				switch {
				case k.Name == "envoy", k.Name == "authorize":
					sources = []string{"untold"}
				case k.Name == "sdk" && !whole:
					// The client finds the owner of each key, and remembers what is denied.
					sources = []string{"owned", "deny_cache"}
				case k.Name == "sdk":
					// It asks the owner of a call's first key, and of few keys that may be the only one.
					sources = []string{"owned"}
				}
				for _, name := range sources {
					if got.Sources[name].Denied == 0 {
						t.Errorf("no check was decided as %s: %s", name, stdout)
					}
				}
				l := got.Latency
				if !(0 < l.P50 && l.P50 <= l.P90 && l.P90 <= l.P99 && l.P99 <= l.P999 && l.P999 <= l.Max && l.Max < 10) {
					t.Errorf("latencies: %s", stdout)
				}
			})
		}
	}
}

func TestBenchExitCodes(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig(t)) // its rule: auth, user, 2 an hour
	of := func(args ...string) []string {
		return append([]string{"--addr", n.grpc, "--concurrency", "2"}, args...)
	}
	for _, c := range []struct {
		name   string
		args   []string
		code   int
		stdout string
		stderr string
	}{
		{"plain", of(), 0, "2 callers, 1 check a call, 10000 keys\n", ""},
		{"skewed, with a rate", of("--skew", "0.99", "--rate", "1000", "--batch", "10"), 0, "10 checks a call, 10000 keys with a skew of 0.99, at most 1000 checks/s\n", ""},
		{"by rules", of("--limits", "rules", "--domain", "auth", "--keys", "1"), 0, "allowed   2: 2 owned\n", ""},
		{"no rule", of("--limits", "rules"), 0, " unmatched\n", ""},
		{"several limits", of("--limits", "1/day,3/240h", "--domain", "several", "--keys", "1"), 0, "allowed   1: 1 owned\n", ""},
		{"bad API", of("--api", "window"), 2, "", "--api: \"window\" is none of grpc, stream, sdk, http"},
		{"bad output", of("-o", "xml"), 2, "", "--output"},
		{"no callers", of("--concurrency", "0"), 2, "", "--concurrency: 0; want 1 to 100000"},
		{"no batch", of("--batch", "0"), 2, "", "--batch: 0"},
		{"gubernator's batch", of("--api", "gubernator", "--batch", "1001"), 2, "", "--batch: 1001; with API gubernator want 1 to 1000"},
		{"no keys", of("--keys", "0"), 2, "", "--keys: 0"},
		{"skew", of("--skew", "-1"), 2, "", "--skew: -1"},
		{"rate", of("--rate", "-1"), 2, "", "--rate: -1"},
		{"no time", of("--duration", "0s"), 2, "", "--duration: 0s"},
		{"no timeout", of("--timeout", "0s"), 2, "", "--timeout: 0s"},
		{"no connection", of("--connections", "-1"), 2, "", "--connections: -1"},
		{"no domain", of("--domain", ""), 2, "", "--domain: is empty"},
		{"no key", of("--key", ""), 2, "", "--key: is empty"},
		{"half a limit", of("--limits", "100"), 2, "", `--limits: "100": want count/period`},
		{"no count", of("--limits", "x/1s"), 2, "", `the count "x" is no whole number`},
		{"no period", of("--limits", "1/fortnight"), 2, "", `the period "fortnight"`},
		{"gubernator by rules", of("--api", "gubernator", "--limits", "rules"), 2, "", "must bring their limit"},
		{"two for Envoy", of("--api", "envoy", "--limits", "1/1s,2/1m"), 2, "", "at most 1"},
		{"limits for a proxy", of("--api", "authorize", "--limits", "1/1s"), 2, "", "API authorize brings none"},
		{"no header", of("--api", "authorize", "--header", ""), 2, "", "--header: is empty"},
		{"no authorize", []string{"--addr", n.http, "--concurrency", "2", "--api", "authorize", "--domain", "auth"}, 3, "", "status 404"},
		{"Envoy's units", of("--api", "envoy", "--limits", "1/5s"), 2, "", "Envoy has 1s, 1m, 1h and 24h"},
		{"gubernator's periods", of("--api", "gubernator", "--limits", "1/1us"), 2, "", "whole milliseconds"},
		{"no address", []string{"--addr", ""}, 2, "", "--addr: give at least one"},
		{"an argument", of("n1"), 2, "", "n1"},
		{"what no check may have", of("--domain", strings.Repeat("d", 1025)), 3, "", "checks[0].domain"},
		{"the same by HTTP", []string{"--addr", n.http, "--concurrency", "2", "--api", "http", "--domain", strings.Repeat("d", 1025)}, 3, "", "status 400: domain"},
		{"nobody there", []string{"--addr", "127.0.0.1:1", "--timeout", "1s"}, 3, "", "nothing listens there"},
		{"nobody there for the SDK", []string{"--addr", "127.0.0.1:1", "--api", "sdk", "--timeout", "1s"}, 3, "", "no answer in time"},
		{"nobody there for HTTP", []string{"--addr", "127.0.0.1:1", "--api", "http", "--timeout", "1s"}, 3, "", "nothing listens there"},
	} {
		t.Run(c.name, func(t *testing.T) {
			code, stdout, stderr := benchUntil(t, answered(100, n), c.args...)
			if code != c.code || !strings.Contains(stdout, c.stdout) || !strings.Contains(stderr, c.stderr) {
				t.Errorf("exit code %d, want %d\nstdout: %s\nstderr: %s", code, c.code, stdout, stderr)
			}
		})
	}
}

// What is not a decision over HTTP is an error that says what the node said.
func TestBenchHTTPAnswers(t *testing.T) {
	for _, c := range []struct {
		name   string
		status int
		body   string
		code   int
		want   string
	}{
		{"a denial", 200, `{"allowed":false,"source":"owned"}`, 0, "denied    "},
		{"a proxy's answer", 502, "<html>", 3, "status 502: Bad Gateway"},
		{"no JSON", 200, "hello", 3, "answer: "},
		{"a redirection", 302, "", 3, "status 302"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var asked atomic.Int64
			s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				asked.Add(1)
				w.Header().Set("Location", "/")
				w.WriteHeader(c.status)
				_, _ = w.Write([]byte(c.body))
			}))
			defer s.Close()
			code, stdout, stderr := benchUntil(t, func() bool { return asked.Load() > 10 }, "--addr", s.Listener.Addr().String(), "--api", "http", "--concurrency", "1")
			if code != c.code || !strings.Contains(stdout+stderr, c.want) {
				t.Errorf("exit code %d, want %d with %q\n%s%s", code, c.code, c.want, stdout, stderr)
			}
		})
	}
}

func TestProgressText(t *testing.T) {
	p := load.Progress{
		Elapsed: 3*time.Second + time.Millisecond, Warming: true, Decided: load.Decided{Allowed: 1000, Denied: 24}, Latency: 1_234_567,
	}
	if got, want := progressText(p), "warming up, 1024 checks/s, 24 denied, 1.23ms a call"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	p.Warming, p.Failed, p.FirstError = false, 7, errors.New("rejected\n"+strings.Repeat("x", 100))
	if got, want := ansi.Strip(progressText(p)), "1024 checks/s, 24 denied, 1.23ms a call, 7 errors, the first: rejected "+strings.Repeat("x", 71); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	for d, want := range map[time.Duration]string{0: "0s", 999: "999ns", 12_345: "12.3µs", 123_456_789: "123ms", 12_345_678_901: "12.3s"} {
		if got := short(d.Seconds()).String(); got != want {
			t.Errorf("%v is %s, want %s", d, got, want)
		}
	}
}

// TestBenchCompare: a run is compared with the report of one before, and with one of another load it is not.
func TestBenchCompare(t *testing.T) {
	t.Parallel()
	n := startNode(t, testConfig(t))
	bench := func(args ...string) (code int, out, errs string) {
		return benchUntil(t, answered(100, n), append([]string{"--addr", n.grpc, "--concurrency", "2"}, args...)...)
	}
	_, report, _ := bench("-o", "json")
	old := writeFile(t, report)
	code, out, errs := bench("--compare", old)
	if code != 0 || !regexp.MustCompile(`FIGURE +BEFORE +NOW +CHANGE\nchecks/s +\d+ +\d+ +[+-][\d.]+%\np50 +\S+ +\S+ +[+-][\d.]+%\n`).MatchString(out) ||
		!regexp.MustCompile(`errors +0 +0 +-\n`).MatchString(out) {
		t.Errorf("exit code %d, %s%s", code, out, errs)
	}
	if _, out, _ := bench("--compare", old, "-o", "json"); !strings.Contains(out, `"compared":[{"figure":"checks/s","before":`) || !strings.Contains(out, `"histogram":[{"below":`) {
		t.Errorf("%s", out)
	}
	if code, _, errs := bench("--compare", old, "--batch", "2"); code != exitUsage || !strings.Contains(errs, "is of another load: want --api grpc --concurrency 2 --batch 1") {
		t.Errorf("another load: exit code %d, %s", code, errs)
	}
}
