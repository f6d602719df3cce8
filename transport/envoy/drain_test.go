package envoy

import "testing"

// TestHeavyRequests: what does not fit, and what would have to wait.
func TestHeavyRequests(t *testing.T) {
	for _, c := range []struct{ name, rules, lines string }{
		{"hits that do not fit use up what is left", three, `
			0s  user=ann +hits=2 -> ok: ok 3/MINUTE left=1 reset=1m0s
			0s  user=ann +hits=2 -> over: over 3/MINUTE left=0 reset=1m0s
			0s  user=ann -> over: over 3/MINUTE left=0 reset=1m0s
			60s user=ann +hits=18446744073709551615 -> over: over 3/MINUTE left=0 reset=1m0s
			60s user=ann -> over: over 3/MINUTE left=0 reset=1m0s
		`},
		{"in shadow mode too", `
domain: d
descriptors:
  - key: watched
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 3}
`, `
			0s watched=x +hits=2 -> ok: ok 3/MINUTE left=1 reset=1m0s
			0s watched=x +hits=2 -> ok: ok 3/MINUTE left=0 reset=1m0s
		`},
		{"one that must not wait charges none of the rule's limits", `
domain: d
descriptors:
  - key: print
    limits: [{algorithm: leaky_queue, period: 1m, count: 6, burst: 3}, {period: 1h, count: 9, name: hourly}]
`, `
			0s  print=x -> ok: ok 3/UNKNOWN left=2 reset=10s
			0s  print=x -> over: over 3/UNKNOWN left=0 reset=10s
			10s print=x +hits=0 -> ok: ok 3/UNKNOWN left=3 reset=0s
			1m  print=x -> ok: ok 3/UNKNOWN left=2 reset=10s
			2m  print=x +hits=8 -> over: over 3/UNKNOWN left=3 reset=1m0s
		`},
		{"nobody waits here: a queue denies, with the time", `
domain: d
descriptors:
  - key: print
    rate_limit: {algorithm: leaky_queue, period: 1m, count: 6, burst: 3}
`, `
			0s  print=x -> ok: ok 3/UNKNOWN left=2 reset=10s
			0s  print=x -> over: over 3/UNKNOWN left=0 reset=10s
			4s  print=x -> over: over 3/UNKNOWN left=0 reset=6s
			10s print=x -> ok: ok 3/UNKNOWN left=2 reset=10s
		`},
	} {
		t.Run(c.name, func(t *testing.T) { tell(t, c.rules, nil, c.lines) })
	}
}
