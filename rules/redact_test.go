package rules_test

import "testing"

func TestRedacts(t *testing.T) {
	set := mustParse(t, `
domain: d
descriptors:
  - key: user
    redact: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: user
    value: admin
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: user
    value: "vip-*"
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: user
    value: "bot-*"
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 1}
  - key: path
    descriptors:
      - key: card
        redact: true
      - key: user
        rate_limit: {unit: day, requests_per_unit: 1}
`)
	for _, c := range []struct {
		domain, descriptor string
		want               string // y for each entry that is private
	}{
		{"d", "user=ann", "y"},
		{"d", "user=admin", "n"},
		{"d", "user=vip-1", "y"},
		{"d", "user=bot-1", "n"},
		{"d", "path=/ user=ann", "ny"},
		{"d", "path=/ card=4711", "ny"},
		{"d", "card=4711 user=ann", "yy"}, // no rule
		{"other", "user=ann", "n"},
	} {
		d := entries(c.descriptor)
		rule, _ := set.Match(c.domain, d)
		got := ""
		for i, e := range d {
			got += map[bool]string{true: "y", false: "n"}[set.Redacts(rule, c.domain, i, e.Key)]
		}
		if got != c.want {
			t.Errorf("%s %s: %s, want %s", c.domain, c.descriptor, got, c.want)
		}
	}
}
