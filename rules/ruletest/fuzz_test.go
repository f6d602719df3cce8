package ruletest_test

import (
	"testing"
	"time"

	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/rules/ruletest"
	"github.com/sluicecluster/sluice/test/faulttest"
)

// FuzzRun: whatever stands in a file of tests, it is run soon, or has faults that have a place.
func FuzzRun(f *testing.F) {
	set, err := rules.Parse([]rules.File{{Name: "r.yaml", Data: []byte(ruleFile)}}, rules.Options{})
	if err != nil {
		f.Fatal(err)
	}
	for _, s := range []string{
		"", "domain: d\ntests: []\n", "tests: [{}]",
		"domain: d\ndescriptor: [a=1]\ntests:\n  - {name: t, steps: [{repeat: 3, cost: 2, at: 15s, want: {allowed: false, remaining: 1}}]}\n",
		"domain: d\ntests:\n  - {name: t, descriptor: [q=1], steps: [{want: {delay: 0s, retry_after: 1m, reset_after: never}}, {at: 9999999h}]}\n",
		"domain: d\ntests:\n  - &t\n    name: t\n    steps: [*t]\n",
		"domain: d\ntests:\n  - {name: t, descriptor: [a=], steps: [{repeat: 1000000000}]}\n",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		begin := time.Now()
		results, err := ruletest.Run(set, []rules.File{{Name: "f_test.yaml", Data: data}})
		if took := time.Since(begin); took > 10*time.Second {
			t.Errorf("took %s", took)
		}
		if err != nil {
			faulttest.Placed(t, err, "f_test.yaml")
			return
		}
		for _, r := range results {
			if r.Steps < 1 || r.Line < 1 || len(r.Failures) > 0 && r.Failures[0].Line < r.Line {
				t.Errorf("%+v", r)
			}
		}
	})
}
