package rules_test

import (
	"strings"
	"testing"
)

// TestLongLogWarns: a sliding log that cannot keep as many entries as it admits checks is approximate, which is said.
func TestLongLogWarns(t *testing.T) {
	for _, c := range []struct{ limit, want string }{
		{"algorithm: sliding_log, count: 1024, period: 1h", ""},
		{"algorithm: sliding_log, count: 3000, period: 1h, log_entries: 3000", ""},
		{"algorithm: sliding_log, count: 3000, period: 1h, weight: 3", ""},
		{"algorithm: sliding_window, count: 3000, period: 1h", ""},
		{"algorithm: sliding_log, count: 3000, period: 1h", "f.yaml:4: d/a.limits[0]: count is above log_entries: a check may count 7.04501s longer than the period; use sliding_window, or more log_entries"},
		{"algorithm: sliding_log, count: 6, period: 12s, log_entries: 3", "f.yaml:4: d/a.limits[0]: count is above log_entries: a check may count 6s longer than the period; use sliding_window, or more log_entries"},
	} {
		var got []string
		for _, w := range mustParse(t, "domain: d\ndescriptors:\n  - key: a\n    limits: [{"+c.limit+"}]\n").Warnings() {
			got = append(got, w.String())
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%s: %q, want %q", c.limit, got, c.want)
		}
	}
}
