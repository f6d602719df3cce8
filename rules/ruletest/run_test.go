package ruletest_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/rules/ruletest"
)

const ruleFile = `
domain: d
descriptors:
  - key: a
    rate_limit: {name: two, unit: minute, requests_per_unit: 2, soft: 50%}
  - key: b
    shadow_mode: true
    rate_limit: {name: watched, unit: minute, requests_per_unit: 1}
  - key: c
    rate_limit: {unlimited: true, name: free}
  - key: e
    limits:
      - {name: fast, unit: second, count: 1}
      - {name: slow, unit: hour, count: 3}
  - key: q
    rate_limit: {algorithm: leaky_queue, count: 1, period: 10s, burst: 2}
  - key: blocked
    rate_limit: {unit: day, count: 0}
`

func run(t *testing.T, tests string) ([]ruletest.Result, error) {
	t.Helper()
	set, err := rules.Parse([]rules.File{{Name: "r.yaml", Data: []byte(ruleFile)}}, rules.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return ruletest.Run(set, []rules.File{{Name: "r_test.yaml", Data: []byte(tests)}})
}

// TestEveryWantCanFail: each test below wants something wrong in its last step,
// and must be told so with place, answer and wish.
func TestEveryWantCanFail(t *testing.T) {
	results, err := run(t, `
domain: d
descriptor: [a=1]
tests:
  - {name: allowed, steps: [{want: {allowed: false}}]}
  - {name: soft, steps: [{repeat: 2, want: {soft: false}}, {want: {allowed: true, soft: false}}]}
  - {name: shadow, descriptor: [b=1], steps: [{want: {shadow: false}}, {want: {allowed: true, shadow: false}}]}
  - {name: matched, descriptor: [x=1], steps: [{want: {allowed: true, matched: true}}]}
  - {name: limit, steps: [{want: {limit: 3}}]}
  - {name: remaining, steps: [{want: {remaining: 2}}]}
  - {name: retry, steps: [{cost: 3, at: 15s}, {want: {retry_after: 1m}}]}
  - {name: never, descriptor: [blocked=1], steps: [{want: {allowed: false, retry_after: 1m}}]}
  - {name: reset, steps: [{at: 15s, want: {reset_after: 15s}}]}
  - {name: delay, descriptor: [q=1], steps: [{want: {delay: 0s}}, {want: {delay: 0s}}]}
  - {name: rule, descriptor: [c=1], steps: [{want: {rule: paid}}]}
  - {name: no rule, descriptor: [x=1], steps: [{want: {rule: x}}]}
  - {name: decided, descriptor: [e=1], steps: [{repeat: 1}, {want: {allowed: false, decided_by: slow}}]}
  - {name: which time, steps: [{repeat: 9, want: {allowed: true}}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, r := range results {
		if r.Passed() || len(r.Failures) != 1 {
			t.Errorf("%s: failures %v", r.Name, r.Failures)
			continue
		}
		got = append(got, r.Failures[0].String())
	}
	want := []string{
		"r_test.yaml:5: allowed: got true, want false",
		"r_test.yaml:6: soft: got true, want false",
		"r_test.yaml:7: shadow: got true, want false",
		"r_test.yaml:8: matched: got false, want true",
		"r_test.yaml:9: limit: got 2, want 3",
		"r_test.yaml:10: remaining: got 1, want 2",
		"r_test.yaml:11: retry_after: got 45s, want 1m0s",
		"r_test.yaml:12: retry_after: got never, want 1m0s",
		"r_test.yaml:13: reset_after: got 45s, want 15s",
		"r_test.yaml:14: delay: got 10s, want 0s",
		`r_test.yaml:15: rule: got "free", want "paid"`,
		`r_test.yaml:16: rule: got "", want "x"`,
		`r_test.yaml:17: decided_by: got "fast", want "slow"`,
		"r_test.yaml:18: allowed (time 4): got false, want true",
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestStory goes through verbs, times, overrides and fresh counters.
func TestStory(t *testing.T) {
	results, err := run(t, `
domain: elsewhere
start: 2024-02-29T12:00:00+01:00
tests:
  - name: story
    domain: d
    descriptor: {a: one}
    steps:
      - {verb: read, want: {allowed: true, remaining: 2}}
      - {cost: 2, want: {remaining: 0}}
      - {verb: refund, want: {remaining: 1}}
      - {verb: reset}
      - {want: {remaining: 1}}
      - {verb: charge, cost: 5}
      - {at: 59999ms, verb: read, want: {allowed: false, retry_after: 1ms}}
      - {at: 2024-02-29T11:01:00Z, want: {allowed: true, remaining: 1}}
      - {descriptor: [a=two], want: {remaining: 1}}
      - {descriptor: [{a: one}], cost: 0, want: {remaining: 1}}
      - {domain: other, want: {matched: false}}
  - name: fresh
    domain: d
    descriptor: [a=one]
    steps:
      - {repeat: 2, want: {remaining: 0}}
      - {at: 1m, repeat: 2, want: {remaining: 0}}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		for _, f := range r.Failures {
			t.Errorf("%s: %s", r.Name, f)
		}
	}
	if got := fmt.Sprint(len(results), results[0].Line, results[0].Steps, results[1].Line, results[1].Steps); got != "2 5 11 20 4" {
		t.Errorf("tests, and line and steps of each: %s", got)
	}
}

func TestRejected(t *testing.T) {
	const head = "domain: d\ndescriptor: [a=1]\ntests:\n"
	for _, c := range []struct{ text, want string }{
		{"", "1: tests: is missing: a list of tests"},
		{"[", "1: not YAML: did not find expected node content"},
		{"tests: []\nrules: 1\n", `2: unknown key "rules"; a file takes tests, domain, descriptor and start`},
		{head + "  - {nam: x, steps: []}\n", `4: tests[0]: unknown key "nam"; a test takes name, steps, domain, descriptor and start`},
		{head + "  - {name: x}\n", "4: tests[0].steps: is missing: a list of checks and the decisions that they must get"},
		{head + "  - {steps: [{wants: {}}]}\n", `4: tests[0].steps[0]: unknown key "wants"; a step takes descriptor, domain, at, cost, verb, repeat and want`},
		{head + "  - {steps: [{want: {denied: true}}]}\n", `4: tests[0].steps[0].want: unknown key "denied"; want takes allowed, soft, shadow, elastic, matched, limit, remaining, retry_after, reset_after, delay, rule and decided_by`},
		{head + "  - {steps: [{want: {allowed: 5}}]}\n", `4: tests[0].steps[0].want.allowed: must be true or false, not "5"`},
		{head + "  - {steps: [{want: {remaining: -5}}]}\n", "4: tests[0].steps[0].want.remaining: must be from 0 to 9223372036854775807, not -5"},
		{head + "  - {steps: [{want: {delay: soon}}]}\n", `4: tests[0].steps[0].want.delay: "soon" is not a duration such as 90s, 1h30m or 7d: a number is missing`},
		{head + "  - {steps: [{at: soon}]}\n", `4: tests[0].steps[0].at: must be a duration since start such as 90s, or a time such as 2024-01-01T00:00:00Z, not "soon"`},
		{head + "  - steps:\n    - {at: 2s}\n    - {at: 1s}\n", "6: tests[0].steps[1].at: is before the step above it, at 2024-01-01T00:00:02Z"},
		{head + "  - {start: today, steps: []}\n", `4: tests[0].start: must be a time such as 2024-01-01T00:00:00Z, not "today"`},
		{head + "  - {steps: [{verb: take}]}\n", `4: tests[0].steps[0].verb: must be one of check, read, charge, refund, reset, not "take"`},
		{head + "  - {steps: [{cost: -1}]}\n", "4: tests[0].steps[0].cost: must be from 0 to 9223372036854775807, not -1"},
		{head + "  - {steps: [{repeat: 0}]}\n", "4: tests[0].steps[0].repeat: must be from 1 to 1000000, not 0"},
		{head + "  - {steps: [{descriptor: [a]}]}\n", `4: tests[0].steps[0].descriptor[0]: must be key=value or a mapping, not "a"`},
		{"domain: d\ntests:\n  - {steps: [{cost: 1}]}\n", "3: tests[0].steps[0].descriptor: is missing: give it in the step, the test or the file"},
		{"descriptor: [a=1]\ntests:\n  - {steps: [{cost: 1}]}\n", "3: tests[0].steps[0].domain: is missing: give it in the step, the test or the file"},
	} {
		results, err := run(t, c.text)
		if err == nil || results != nil {
			t.Errorf("%q: results %v, error %v", c.text, results, err)
			continue
		}
		if want := "r_test.yaml:" + c.want; err.Error() != want {
			t.Errorf("%q:\ngot  %s\nwant %s", c.text, err, want)
		}
		for _, e := range rules.Errors(err) {
			if e.File != "r_test.yaml" || e.Line < 1 {
				t.Errorf("%#v lacks file or line", e)
			}
		}
	}
}
