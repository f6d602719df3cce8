package limiter

import (
	"fmt"
	"strings"
	"testing"
)

// TestDescriptorStats: rules with a metric key are counted by the values that came, private ones by their hash and long ones short;
// the others are not, and there is a bound.
func TestDescriptorStats(t *testing.T) {
	const file = `
domain: d
descriptors:
  - key: plain
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: tenant
    value_to_metric: true
    descriptors:
      - {key: user, rate_limit: {unit: minute, requests_per_unit: 1}}
  - key: all
    detailed_metric: true
    rate_limit: {unit: minute, requests_per_unit: 1000}
  - {key: mail, detailed_metric: true, redact: true, rate_limit: {unit: minute, requests_per_unit: 1}}
  - {key: ip, detailed_metric: true, ip_prefix: {v4: 24}, rate_limit: {unit: minute, requests_per_unit: 1}}
`
	s := newScript(t, file)
	s.do("plain=x | tenant=t1 user=ann | tenant=t1 user=ann | all=v | mail=ann@example.org | ip=192.0.2.7 | all=\xff | all=" + strings.Repeat("long", 300))
	got := map[string]RuleStats{}
	for _, d := range s.Stats().Descriptors {
		got[d.Name] = d
		if strings.Contains(d.Name, "ann@") || len(d.Name) > 600 {
			t.Errorf("%q is shown", d.Name)
		}
	}
	if d := got["d/tenant=t1/user"]; d.Results[ResultAllowed] != 1 || d.Results[ResultDenied] != 1 || d.Domain != "d" {
		t.Errorf("tenant t1 has %+v", d)
	}
	for _, name := range []string{"d/all=v", "d/ip=192.0.2.0/24"} {
		if got[name].Results[ResultAllowed] != 1 {
			t.Errorf("%s is not among %v", name, got)
		}
	}
	// A name of more than 512 bytes is among the others.
	if len(got) != 6 || got[OtherNames].Results[ResultAllowed] != 1 {
		t.Errorf("%d names, %v", len(got), got)
	}
	before := len(got)
	for i := range 2 * MaxNames {
		s.do(fmt.Sprint("all=n", i))
	}
	stats := s.Stats().Descriptors
	sum := uint64(0)
	for _, d := range stats {
		if d.Name == OtherNames {
			sum = d.Results[ResultAllowed]
		}
	}
	if len(stats) != MaxNames || sum != uint64(2*MaxNames-(MaxNames-before)+1) {
		t.Errorf("%d names, %d others", len(stats), sum)
	}
	s.SetRules(parse(t, strings.ReplaceAll(file, "detailed_metric: true", "detailed_metric: false")))
	s.do("all=v")
	if n := len(s.Stats().Descriptors); n != 0 {
		t.Errorf("%d names without the key", n)
	}
}
