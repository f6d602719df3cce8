package envoy

import "testing"

// three is a rule of three a minute for each user.
const three = `
domain: d
descriptors:
  - key: user
    rate_limit: {unit: minute, requests_per_unit: 3}
`

func TestSemantics(t *testing.T) {
	for _, c := range []struct{ name, rules, lines string }{
		{"one hit by default, until the minute is over", three, `
			0s  user=ann -> ok: ok 3/MINUTE left=2 reset=1m0s
			1s  user=ann -> ok: ok 3/MINUTE left=1 reset=59s
			1s  user=bob -> ok: ok 3/MINUTE left=2 reset=59s
			2s  user=ann -> ok: ok 3/MINUTE left=0 reset=58s
			2s  user=ann -> over: over 3/MINUTE left=0 reset=58s
			59s user=ann -> over: over 3/MINUTE left=0 reset=1s
			60s user=ann -> ok: ok 3/MINUTE left=2 reset=1m0s
		`},
		{"hits of the request and of the descriptor", three, `
			0s user=ann +all=2 -> ok: ok 3/MINUTE left=1 reset=1m0s
			0s user=bob +all=2 +hits=1 | user=cid -> ok: ok 3/MINUTE left=2 reset=1m0s; ok 3/MINUTE left=1 reset=1m0s
			0s user=dan +all=0 -> ok: ok 3/MINUTE left=2 reset=1m0s
			0s user=eve +hits=3 -> ok: ok 3/MINUTE left=0 reset=1m0s
		`},
		{"no hits only read", three, `
			0s user=ann +all=9 +hits=0 -> ok: ok 3/MINUTE left=3 reset=0s
			0s user=ann +hits=0 +back -> ok: ok 3/MINUTE left=3 reset=0s
			0s user=ann +hits=2 -> ok: ok 3/MINUTE left=1 reset=1m0s
			0s user=ann +hits=0 -> ok: ok 3/MINUTE left=1 reset=1m0s
			0s user=ann -> ok: ok 3/MINUTE left=0 reset=1m0s
			0s user=ann +hits=0 -> over: over 3/MINUTE left=0 reset=1m0s
		`},
		{"negative hits give back, never above full", three, `
			0s user=ann +hits=3 -> ok: ok 3/MINUTE left=0 reset=1m0s
			0s user=ann +back -> ok: ok 3/MINUTE left=1 reset=1m0s
			0s user=ann +all=2 +back -> ok: ok 3/MINUTE left=3 reset=0s
			0s user=ann +hits=18446744073709551615 +back -> ok: ok 3/MINUTE left=3 reset=0s
			0s user=ann +hits=1 +all=5 -> ok: ok 3/MINUTE left=2 reset=1m0s
		`},
		{"what nothing limits", three + `
  - key: staff
    rate_limit: {unlimited: true, name: free}
`, `
			0s nobody=x -> ok: ok
			0s user=ann path=x | user=ann | staff=x +hits=99 -> ok: ok; ok 3/MINUTE left=2 reset=1m0s; ok left=4294967295
			0s user=ann +domain=other | staff=x -> ok: ok; ok
		`},
		{"each for itself, and one that is over is enough", three, `
			0s user=ann +hits=3 -> ok: ok 3/MINUTE left=0 reset=1m0s
			0s user=bob | user=ann | user=bob | nobody=x -> over: ok 3/MINUTE left=2 reset=1m0s; over 3/MINUTE left=0 reset=1m0s; ok 3/MINUTE left=1 reset=1m0s; ok
			0s user=bob -> ok: ok 3/MINUTE left=0 reset=1m0s
		`},
		{"an override goes before the rule, and counts apart", three, `
			0s user=ann +limit=1/HOUR -> ok: ok 1/HOUR left=0 reset=1h0m0s
			0s user=ann +limit=1/HOUR -> over: over 1/HOUR left=0 reset=1h0m0s
			0s user=ann -> ok: ok 3/MINUTE left=2 reset=1m0s
			0s user=ann +domain=other +limit=1/SECOND -> ok: ok 1/SECOND left=0 reset=1s
			0s user=bob +limit=0/DAY -> over: over 0/DAY left=0 reset=24h0m0s
			0s user=cid +limit=4294967295/MONTH -> ok: ok 4294967295/MONTH left=4294967294 reset=96h0m0s
			0s user=dan +limit=2/YEAR -> ok: ok 2/YEAR left=1 reset=816h0m0s
			0s user=eve +limit=2/MINUTE*15 -> ok: ok 2/UNKNOWN left=1 reset=15m0s
			0s user=fay +limit=2/MINUTE*60 -> ok: ok 2/HOUR left=1 reset=1h0m0s
		`},
		{"shadow mode counts and admits", `
domain: d
descriptors:
  - key: watched
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: both
    shadow_mode: true
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
`, `
			0s watched=x -> ok: ok 1/MINUTE left=0 reset=1m0s
			0s watched=x -> ok: ok 1/MINUTE left=0 reset=1m0s
			0s both=x -> ok: ok 1/MINUTE left=0 reset=1m0s
			0s both=x -> ok: ok 1/MINUTE left=0 reset=1m0s
		`},
		{"quota mode", three + `
  - key: part
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: free
    quota_mode: true
    rate_limit: {unlimited: true}
`, `
			0s part=a -> ok: ok 1/MINUTE left=0 reset=1m0s
			0s part=a -> over: over 1/MINUTE left=0 reset=1m0s
			0s part=a | part=b -> ok: over 1/MINUTE left=0 reset=1m0s; ok 1/MINUTE left=0 reset=1m0s
			0s part=a | part=b -> over: over 1/MINUTE left=0 reset=1m0s; over 1/MINUTE left=0 reset=1m0s
			0s part=a | user=x -> over: over 1/MINUTE left=0 reset=1m0s; ok 3/MINUTE left=2 reset=1m0s
			0s part=a | free=y -> over: over 1/MINUTE left=0 reset=1m0s; ok left=4294967295
			0s user=z +hits=3 -> ok: ok 3/MINUTE left=0 reset=1m0s
			0s part=c | user=z -> over: ok 1/MINUTE left=0 reset=1m0s; over 3/MINUTE left=0 reset=1m0s
		`},
		{"units and names", `
domain: d
descriptors:
  - {key: u1, rate_limit: {unit: second, requests_per_unit: 1}}
  - {key: u2, rate_limit: {unit: minute, requests_per_unit: 1, name: two}}
  - {key: u3, rate_limit: {unit: hour, requests_per_unit: 1}}
  - {key: u4, rate_limit: {unit: day, requests_per_unit: 1}}
  - {key: u5, rate_limit: {unit: week, requests_per_unit: 1}}
  - {key: u6, rate_limit: {unit: month, requests_per_unit: 1}}
  - {key: u7, rate_limit: {unit: year, requests_per_unit: 1}}
  - {key: u8, rate_limit: {unit: month, count: 1, align: calendar}}
  - {key: u9, rate_limit: {period: 90s, count: 1}}
  - {key: u10, rate_limit: {period: 7d, count: 9223372036854775807}}
  - {key: u11, rate_limit: {algorithm: token_bucket, period: 1m, count: 2}}
  - {key: u12, rate_limit: {algorithm: token_bucket, period: 1m, count: 2, burst: 6}}
  - key: u13
    limits: [{period: 1m, count: 9}, {period: 1h, count: 5, name: hourly}]
  - key: u14
    limits: [{period: 1m, count: 5}, {period: 1h, count: 9}]
`, `
			0s u1=x -> ok: ok 1/SECOND left=0 reset=1s
			0s u2=x -> ok: ok 1/MINUTE two left=0 reset=1m0s
			0s u3=x -> ok: ok 1/HOUR left=0 reset=1h0m0s
			0s u4=x -> ok: ok 1/DAY left=0 reset=24h0m0s
			0s u5=x -> ok: ok 1/WEEK left=0 reset=24h0m0s
			0s u6=x -> ok: ok 1/MONTH left=0 reset=96h0m0s
			0s u7=x -> ok: ok 1/YEAR left=0 reset=816h0m0s
			0s u8=x -> ok: ok 1/MONTH left=0 reset=384h0m0s
			0s u9=x -> ok: ok 1/UNKNOWN left=0 reset=1m30s
			0s u10=x -> ok: ok 4294967295/WEEK left=4294967295 reset=24h0m0s
			0s u11=x +hits=2 | u11=x -> over: ok 2/MINUTE left=0 reset=1m0s; over 2/MINUTE left=0 reset=30s
			0s u12=x -> ok: ok 6/UNKNOWN left=5 reset=30s
			0s u13=x -> ok: ok 5/HOUR hourly left=4 reset=1h0m0s
			0s u14=x -> ok: ok 5/MINUTE left=4 reset=1m0s
		`},
		{"what never fits says when to look again", `
domain: d
descriptors:
  - key: blocked
    rate_limit: {unit: hour, requests_per_unit: 0}
  - key: bucket
    rate_limit: {algorithm: sliding_log, count: 3, period: 1m}
  - key: jobs
    rate_limit: {algorithm: concurrency, count: 3}
`, `
			0s  blocked=x -> over: over 0/HOUR left=0 reset=1h0m0s
			0s  jobs=x +hits=3 -> ok: ok 3/UNKNOWN left=3 reset=0s
			0s  jobs=x +hits=4 -> over: over 3/UNKNOWN left=3 reset=1m0s
			0s  bucket=x -> ok: ok 3/MINUTE left=2 reset=1m0s
			20s bucket=x -> ok: ok 3/MINUTE left=1 reset=1m0s
			20s bucket=x +hits=0 -> ok: ok 3/MINUTE left=1 reset=1m0s
		`},
	} {
		t.Run(c.name, func(t *testing.T) { tell(t, c.rules, nil, c.lines) })
	}
}

func TestAllOrNothing(t *testing.T) {
	rules := three + `
  - key: watched
    shadow_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
  - key: part
    quota_mode: true
    rate_limit: {unit: minute, requests_per_unit: 1}
`
	tell(t, rules, func(c *Config) { c.AllOrNothing = true }, `
		0s user=ann | user=bob +hits=2 -> ok: ok 3/MINUTE left=2 reset=1m0s; ok 3/MINUTE left=1 reset=1m0s
		0s user=ann | user=bob +hits=2 | nobody=x -> over: over 3/MINUTE left=2 reset=1m0s; over 3/MINUTE left=1 reset=1m0s; ok
		0s user=ann +hits=0 | user=bob +hits=0 -> ok: ok 3/MINUTE left=2 reset=1m0s; ok 3/MINUTE left=1 reset=1m0s
		0s user=bob | watched=x +hits=2 -> ok: ok 3/MINUTE left=0 reset=1m0s; ok 1/MINUTE left=1 reset=0s
		0s user=ann | user=bob +hits=0 -> over: over 3/MINUTE left=2 reset=1m0s; over 3/MINUTE left=0 reset=1m0s
		0s user=ann | user=bob | watched=x -> over: over 3/MINUTE left=2 reset=1m0s; over 3/MINUTE left=0 reset=1m0s; ok 1/MINUTE left=1 reset=0s
		0s user=ann +hits=0 -> ok: ok 3/MINUTE left=2 reset=1m0s
		0s user=bob +back | nobody=x +back -> ok: ok 3/MINUTE left=1 reset=1m0s; ok
		0s user=bob +hits=2 | user=ann +back -> over: over 3/MINUTE left=1 reset=1m0s; ok 3/MINUTE left=2 reset=1m0s
		0s user=bob | user=ann +back -> ok: ok 3/MINUTE left=0 reset=1m0s; ok 3/MINUTE left=3 reset=0s
		0s user=ann | user=bob +back -> ok: ok 3/MINUTE left=2 reset=1m0s; ok 3/MINUTE left=1 reset=1m0s
		0s part=a | part=b -> ok: ok 1/MINUTE left=0 reset=1m0s; ok 1/MINUTE left=0 reset=1m0s
		0s part=a | part=c -> over: over 1/MINUTE left=0 reset=1m0s; over 1/MINUTE left=1 reset=1m0s
		0s part=c -> ok: ok 1/MINUTE left=0 reset=1m0s
	`)
}
