package envoy

import "testing"

// TestReplaces: rules that replace others of the same request, in whatever order they come.
func TestReplaces(t *testing.T) {
	tell(t, `
domain: d
descriptors:
  - key: user
    rate_limit: {name: everybody, unit: minute, requests_per_unit: 1}
  - key: vip
    rate_limit: {name: important, unit: minute, requests_per_unit: 5, replaces: [{name: everybody}]}
  - key: staff
    rate_limit: {unlimited: true, replaces: [{name: everybody}, {name: important}]}
  - key: part
    quota_mode: true
    rate_limit: {name: part, unit: minute, requests_per_unit: 1, replaces: [{name: other}]}
  - key: other
    quota_mode: true
    rate_limit: {name: other, unit: minute, requests_per_unit: 1}
`, nil, `
		0s user=ann | vip=ann -> ok: ok; ok 5/MINUTE important left=4 reset=1m0s
		0s user=ann -> ok: ok 1/MINUTE everybody left=0 reset=1m0s
		0s user=ann | vip=ann -> ok: ok; ok 5/MINUTE important left=3 reset=1m0s
		0s vip=ann | user=ann | staff=ann -> ok: ok; ok; ok left=4294967295
		0s vip=ann -> ok: ok 5/MINUTE important left=2 reset=1m0s
		0s user=bob +back | vip=bob +hits=6 -> over: ok; over 5/MINUTE important left=0 reset=1m0s
		0s part=x | other=x -> ok: ok 1/MINUTE part left=0 reset=1m0s; ok
		0s part=x | other=x -> over: over 1/MINUTE part left=0 reset=1m0s; ok
	`)
}
