package rules_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluicecluster/sluice/rules"
)

// parse reads one file called f.yaml.
func parse(t testing.TB, text string) (*rules.Set, error) {
	t.Helper()
	return rules.Parse([]rules.File{{Name: "f.yaml", Data: []byte(text)}}, rules.Options{})
}

// load is parse for text that has to be sound, whatever the schema says.
func load(t testing.TB, text string) *rules.Set {
	t.Helper()
	set, err := parse(t, text)
	if err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	return set
}

// mustParse is load for text that the schema accepts.
func mustParse(t testing.TB, text string) *rules.Set {
	t.Helper()
	set := load(t, text)
	if err := validate(t, text); err != nil {
		t.Errorf("the schema says %v of\n%s", err, text)
	}
	return set
}

// one wraps a rate_limit in flow style.
func one(limit string) string {
	return "domain: d\ndescriptors:\n  - key: a\n    rate_limit: {" + limit + "}\n"
}

// beside wraps a line that stands beside a sound rate_limit.
func beside(line string) string { return one("unit: day, requests_per_unit: 1") + "    " + line + "\n" }

// fault is a text that Parse rejects. want is the whole error without the file's name.
type fault struct{ name, text, want string }

// faults are those of some part of the grammar: what the schema rejects as well, and what only the reader can.
type faults struct{ bySchema, byReader []fault }

const head = "domain: d\ndescriptors:\n"

// ruleFaults are those of what is in no other list.
var ruleFaults = faults{
	bySchema: []fault{
		{"empty file", "", "1: domain: a rule file must name its domain, which may not be empty"},
		{"comment only", "# nothing\n", "1: domain: a rule file must name its domain, which may not be empty"},
		{"no domain", "descriptors: []\n", "1: domain: a rule file must name its domain, which may not be empty"},
		{"empty domain", "\ndomain: ''\n", "2: domain: a rule file must name its domain, which may not be empty"},
		{"empty key", head + "  - key: ''\n", `3: d.descriptors[0].key: a descriptor must have a key, which may not be empty`},
		{"no key", head + "  - value: x\n", `3: d.descriptors[0].key: a descriptor must have a key, which may not be empty`},
		{"unknown unit", one("unit: fortnight, requests_per_unit: 1"), `4: d/a.rate_limit.unit: must be one of second, minute, hour, day, week, month, year, not "fortnight"`},
		{"unit of unknown", one("unit: unknown, requests_per_unit: 1"), `4: d/a.rate_limit.unit: must be one of second, minute, hour, day, week, month, year, not "unknown"`},
		{"no unit", one("requests_per_unit: 1"), "4: d/a.rate_limit.period: is missing: give a time such as 90s, 7d or day"},
		{"unlimited with unit", one("unlimited: true, unit: day"), "4: d/a.rate_limit.unit: a rule that is unlimited has no unit"},
		{"empty replaces", one("unit: day, requests_per_unit: 1, replaces: [{name: ''}]"), "4: d/a.rate_limit.replaces[0]: must name a rule"},
		{"no keys at all", "domain: d\nmax_keys: 0\n", `2: max_keys: must be from 1 to 1000000000000, not 0`},
		{"unknown key at the top", "domain: d\nversion: 2\n", `2: version: must be 1, the only version of the format that this sluice reads, not 2`},
		{"unknown key in a descriptor", head + "  - key: a\n    ratelimit: {}\n", `4: d.descriptors[0]: unknown key "ratelimit"; did you mean rate_limit?`},
		{"unknown key in a limit", one("unit: day, requestsperunit: 1, requests_per_unit: 1"), `4: d/a.rate_limit: unknown key "requestsperunit"; did you mean requests_per_unit?`},
		{"unknown key below an ignored one", "domain: d\nrate_limit: {what: 1}\n", `2: unknown key "what"`},
		{"unknown key further below", "domain: d\ndescriptors:\n  - key: a\n    replaces: [{name: x}, {descriptors: [{what: 1}]}]\n", `4: d.descriptors[0]: unknown key "what"`},
		{"list of something else below", "domain: d\nreplaces: [5]\n", "2: the list holds something other than a mapping"},
		{"key that is no string", "domain: d\n0.25: x\n", `2: the key "0.25" is not a string`},
		{"list of something else", head + "  - a\n", "3: d.descriptors[0]: every item of descriptors must be a mapping with a key"},
		{"list where a mapping must be", "domain: d\ndescriptors: {key: a}\n", "2: d.descriptors: must be a list (- …), not a mapping"},
		{"mapping where a list must be", head + "  - key: a\n    rate_limit: [1]\n", "4: d/a.rate_limit: must be a mapping (key: value), not a list"},
		{"negative", one("unit: day, requests_per_unit: -1"), "4: d/a.rate_limit.requests_per_unit: must be from 0 to 4294967295, not -1"},
		{"beyond 32 bits", one("unit: day, requests_per_unit: 4294967296"), "4: d/a.rate_limit.requests_per_unit: must be from 0 to 4294967295, not 4294967296"},
		{"fraction", one("unit: day, requests_per_unit: 1.5"), `4: d/a.rate_limit.requests_per_unit: must be a whole number, not "1.5"`},
		{"number in quotes", one("unit: day, requests_per_unit: '5'"), `4: d/a.rate_limit.requests_per_unit: must be a whole number, not the string "5"`},
		{"fraction as value", head + "  - key: a\n    value: 1.10\n", `4: d.descriptors[0].value: "1.10" is not read as a string; put it in quotes`},
		{"text for a flag", beside("shadow_mode: maybe"), `5: d/a.shadow_mode: must be true or false, not the string "maybe"`},
		{"quoted flag", beside("shadow_mode: 'true'"), `5: d/a.shadow_mode: must be true or false, not the string "true"`},
		{"share without pattern", beside("share_threshold: true"), "5: d/a.share_threshold: needs a * in value: it gives all values of a pattern one counter"},
		{"redact of one value", head + "  - {key: a, value: b, redact: true}\n", "3: d/a=b.redact: needs a descriptor that many values match: value b stands in this file for everybody to read"},
		{"redact of a shared pattern", head + "  - {key: a, value: b*, share_threshold: true, redact: true}\n", "3: d/a=b*.redact: excludes share_threshold, which shows the pattern and no value"},
		{"version of words", "domain: d\nversion: one\n", `2: version: must be a whole number, not the string "one"`},
		{"unknown unmatched", "domain: d\nunmatched: block\n", `2: unmatched: must be one of allow, warn, deny, not "block"`},
		{"near unmatched", "domain: d\nunmatched: alow\n", `2: unmatched: must be one of allow, warn, deny, not "alow"; did you mean allow?`},
		{"unmatched of a rule", head + "  - key: a\n    unmatched: deny\n", "4: d.descriptors[0]: the key unmatched belongs in the file's top level, not here"},
		{"otherwise of nothing", "domain: d\notherwise: {name: rest}\n", "2: d.otherwise.limits: is missing: give limits to descriptors that match nothing else"},
		{"otherwise below of nothing", head + "  - key: a\n    otherwise: {shadow_mode: true}\n", "4: d/a.otherwise.limits: is missing: give limits to descriptors that match nothing else"},
		{"otherwise of envoy's kind", "domain: d\notherwise: {rate_limit: {count: 1, period: 1s}, limits: [1/1s]}\n", "2: d.otherwise: the key rate_limit belongs in a descriptor, not here; did you mean limits?"},
		{"otherwise with a key", "domain: d\notherwise: {key: a, limits: [1/1s]}\n", "2: d.otherwise: the key key belongs in a descriptor, not here"},
		{"otherwise that is a list", "domain: d\notherwise: [1/1s]\n", "2: d.otherwise: must be a mapping (key: value), not a list"},
		{"wrong limit of otherwise", "domain: d\notherwise:\n  limits:\n    - 5/1m\n    - 5/1n\n", `5: d.otherwise.limits[1].period: "1n" is not a duration such as 90s, 1h30m or 7d: its units are ns, us, ms, s, m, h, d and w`},
		{"option of otherwise", "domain: d\notherwise: {limits: [1/1s], on_failure: close}\n", `2: d.otherwise.on_failure: must be one of share, closed, open, not "close"; did you mean closed?`},
		{"name that is a list", beside("name: [n]"), "5: d/a.name: must be a string, not a list"},
		{"short limit without a period", beside("limits: [5]"), `5: d/a.limits[0]: must be a mapping, or a count and a period such as 5/1m or 1000/day, not "5"`},
		{"short limit of words", beside("limits: [five/1m]"), `5: d/a.limits[0].count: must be a whole number, not the string "five"`},
		{"short limit below zero", beside("limits: [-5/1m]"), "5: d/a.limits[0].count: must be from 0 to 9223372036854775807, not -5"},
		{"short limit of no period", beside("limits: [5/]"), "5: d/a.limits[0].period: is missing: give a time such as 90s, 7d or day"},
		{"short limit of no count", beside("limits: [/1m]"), "5: d/a.limits[0].count: is missing: say how many are admitted in each period"},
		{"short limit of no unit", beside("limits: [5/60]"), `5: d/a.limits[0].period: "60" is not a duration such as 90s, 1h30m or 7d: a unit is missing`},
		{"short limit of a wrong length", beside("limits: [5/101y]"), `5: d/a.limits[0].period: "101y" is not a duration such as 90s, 1h30m or 7d: its units are ns, us, ms, s, m, h, d and w`},
		{"short rate_limit", head + "  - key: a\n    rate_limit: 5/1m\n", `4: d/a.rate_limit: must be a mapping (key: value), not the string "5/1m"`},
		{"short limits without a list", head + "  - key: a\n    limits: 5/1m\n", `4: d/a.limits: must be a list (- …), not the string "5/1m"`},
		{"period of an unknown unit", one("period: fortnight, count: 1"), `4: d/a.rate_limit.period: "fortnight" is not a duration such as 90s, 1h30m or 7d: a number is missing`},
		{"period as unit beside unit", one("period: day, unit: day, count: 1"), "4: d/a.rate_limit.period: is given beside unit; give one of them"},
		{"calendar seconds by period", one("align: calendar, period: second, count: 1"), "4: d/a.rate_limit.period: the calendar has no windows of a second; leave align out"},
		{"soft without percent", one("period: 1s, count: 1, soft: 10"), "4: d/a.rate_limit.soft: needs a percent sign: write 10%"},
		{"soft of words", one("period: 1s, count: 1, soft: some"), `4: d/a.rate_limit.soft: must be a whole percentage from 0% to 1000%, not "some"`},
		{"soft of a fraction", one("period: 1s, count: 1, soft: 2.5%"), `4: d/a.rate_limit.soft: must be a whole percentage from 0% to 1000%, not "2.5%"`},
		{"block_for without a unit", one("period: 1s, count: 1, block_for: 10"), `4: d/a.rate_limit.block_for: "10" is not a duration such as 90s, 1h30m or 7d: a unit is missing`},
		{"block_for of a rule", head + "  - key: a\n    limits: [1/1s]\n    block_for: 10m\n", "5: d.descriptors[0]: the key block_for belongs in rate_limit or limits, not here"},
		{"negative weight", one("period: 1s, count: 1, weight: -1"), "4: d/a.rate_limit.weight: must be from 1 to 9223372036854775807, not -1"},
		{"weight by its old key", one("period: 1s, count: 1, cost: 2"), `4: d/a.rate_limit: unknown key "cost"; did you mean weight?`},
		{"cache_denials by its old key", beside("refunds: true"), `5: d.descriptors[0]: unknown key "refunds"; did you mean cache_denials: false?`},
		{"cache_denials of words", beside("cache_denials: never"), `5: d/a.cache_denials: must be true or false, not the string "never"`},
		{"limit for limits", head + "  - key: a\n    limit: {count: 1, period: 1s}\n", "4: d.descriptors[0]: the key limit belongs in pool, not here; did you mean limits?"},
		{"rate", head + "  - key: a\n    rate: {count: 1, period: 1s}\n", `4: d.descriptors[0]: unknown key "rate"; did you mean limits?`},
		{"near key", head + "  - key: a\n    descriptor: []\n", `4: d.descriptors[0]: unknown key "descriptor"; did you mean descriptors?`},
		{"near algorithm", one("algorithm: token-bucket, period: 1s, count: 1"), `4: d/a.rate_limit.algorithm: must be one of token_bucket, leaky_bucket, leaky_queue, fixed_window, sliding_log, sliding_counter, sliding_window, concurrency, not "token-bucket"; did you mean token_bucket?`},
		{"near unit", one("unit: days, count: 1"), `4: d/a.rate_limit.unit: must be one of second, minute, hour, day, week, month, year, not "days"; did you mean day?`},
		{"root is a list", "- domain: d\n", "1: must be a mapping (key: value), not a list"},
		{"key of another mapping", head + "  - key: a\n    burst: 5\n", "4: d.descriptors[0]: the key burst belongs in rate_limit or limits, not here"},
		{"envoy's key in limits", head + "  - key: a\n    limits: [{unit: day, count: 1, shadow_mode: true}]\n", "4: d/a.limits[0]: the key shadow_mode belongs in a descriptor, not here"},
		{"count and its twin", one("unit: day, requests_per_unit: 1, count: 1"), "4: d/a.rate_limit.count: is the same as requests_per_unit; give one of them"},
		{"no count", one("algorithm: token_bucket, period: 1m"), "4: d/a.rate_limit.count: is missing: say how many are admitted in each period"},
		{"unit and period", one("unit: day, period: 1h, count: 1"), "4: d/a.rate_limit.period: is given beside unit; give one of them"},
		{"period without a unit", one("period: 60, count: 1"), `4: d/a.rate_limit.period: "60" is not a duration such as 90s, 1h30m or 7d: a unit is missing`},
		{"negative period", one("period: -1s, count: 1"), `4: d/a.rate_limit.period: "-1s" is not a duration such as 90s, 1h30m or 7d: a number is missing`},
		{"negative count", one("period: 1s, count: -5"), "4: d/a.rate_limit.count: must be from 0 to 9223372036854775807, not -5"},
		{"count beyond 64 bits", one("period: 1s, count: 9223372036854775808"), "4: d/a.rate_limit.count: must be from 0 to 9223372036854775807, not 9223372036854775808"},
		{"zero burst", one("algorithm: token_bucket, period: 1s, count: 1, burst: 0"), "4: d/a.rate_limit.burst: must be from 1 to 9223372036854775807, not 0"},
		{"zero weight", one("period: 1s, count: 1, weight: 0"), "4: d/a.rate_limit.weight: must be from 1 to 9223372036854775807, not 0"},
		{"soft beyond", one("period: 1s, count: 1, soft: 1001%"), `4: d/a.rate_limit.soft: must be a whole percentage from 0% to 1000%, not "1001%"`},
		{"one sub-window", one("algorithm: sliding_window, period: 1s, count: 1, sub_windows: 1"), "4: d/a.rate_limit.sub_windows: must be from 2 to 3600, not 1"},
		{"no log entry", one("algorithm: sliding_log, period: 1s, count: 1, log_entries: 0"), "4: d/a.rate_limit.log_entries: must be from 1 to 65536, not 0"},
		{"unknown algorithm", one("algorithm: gcra, period: 1s, count: 1"), `4: d/a.rate_limit.algorithm: must be one of token_bucket, leaky_bucket, leaky_queue, fixed_window, sliding_log, sliding_counter, sliding_window, concurrency, not "gcra"`},
		{"concurrency with a period", one("algorithm: concurrency, count: 1, period: 1s"), "4: d/a.rate_limit.period: is not for concurrency, which counts what is in use now; leave it out"},
		{"concurrency with a unit", one("algorithm: concurrency, requests_per_unit: 1, unit: day"), "4: d/a.rate_limit.unit: is not for concurrency, which counts what is in use now; leave it out"},
		{"concurrency without a count", one("algorithm: concurrency"), "4: d/a.rate_limit.count: is missing: say how many may be in use at a time"},
		{"concurrency with a zone", one("algorithm: concurrency, count: 1, timezone: UTC"), "4: d/a.rate_limit.timezone: needs align to be calendar; leave it out, or align to the calendar"},
		{"unknown refill", one("algorithm: token_bucket, refill: hourly, period: 1s, count: 1"), `4: d/a.rate_limit.refill: must be one of continuous, interval, not "hourly"`},
		{"unknown align", one("align: lunar, unit: day, count: 1"), `4: d/a.rate_limit.align: must be one of epoch, calendar, first_hit, not "lunar"`},
		{"calendar without unit", one("align: calendar, period: 24h, count: 1"), "4: d/a.rate_limit.align: calendar needs a period of minute, hour, day, week, month or year"},
		{"calendar seconds", one("align: calendar, unit: second, count: 1"), "4: d/a.rate_limit.unit: the calendar has no windows of a second; leave align out"},
		{"zone without calendar", one("unit: day, count: 1, timezone: Europe/Berlin"), "4: d/a.rate_limit.timezone: means something with align: calendar only"},
		{"unlimited with burst", one("unlimited: true, burst: 1"), "4: d/a.rate_limit.burst: a rule that is unlimited has no burst"},
		{"no limits", beside("limits: []"), "5: d/a.limits: is empty; name at least one limit or leave the key out"},
		{"limit that is nothing", beside("limits: [null]"), "5: d/a.limits[0]: must be a mapping with a limit"},
		{"option without limit", head + "  - key: a\n    on_failure: open\n", "4: d/a.on_failure: has no effect without limits beside it"},
		{"cache_denials without limit", head + "  - key: a\n    cache_denials: false\n", "4: d/a.cache_denials: has no effect without limits beside it"},
		{"unknown on_failure", beside("on_failure: maybe"), `5: d/a.on_failure: must be one of share, closed, open, not "maybe"`},
		{"unknown unknown_share", beside("unknown_share: some"), `5: d/a.unknown_share: must be one of limit, none, not "some"`},
		{"unknown on_lost_state", beside("on_lost_state: open"), `5: d/a.on_lost_state: must be one of deny, fresh, not "open"`},
		{"on_lost_state without limit", head + "  - key: a\n    on_lost_state: deny\n", "4: d/a.on_lost_state: has no effect without limits beside it"},
		{"unknown on_partition", beside("on_partition: maybe"), `5: d/a.on_partition: must be one of share, closed, open, not "maybe"`},
		{"unknown consistency", beside("consistency: causal"), `5: d/a.consistency: must be one of strict, eventual, not "causal"`},
		{"unknown replication", beside("replication: twice"), `5: d/a.replication: must be one of async, sync, none, not "twice"`},
		{"status of success", beside("response: {status: 200}"), "5: d/a.response.status: must be from 400 to 599, not 200"},
		{"header that is no name", beside("response: {headers: {'X A': b}}"), `5: d/a.response.headers.X A: "X A" is not the name of an HTTP header`},
		{"long body", beside("response: {body: " + strings.Repeat("x", 65537) + "}"), "5: d/a.response.body: has 65537 bytes; at most 65536 are sent"},
		{"ip_prefix of 0 bits", beside("ip_prefix: {v4: 0}"), "5: d/a.ip_prefix.v4: must be from 1 to 32, not 0"},
		{"ip_prefix of 129 bits", beside("ip_prefix: {v6: 129}"), "5: d/a.ip_prefix.v6: must be from 1 to 128, not 129"},
		{"ip_prefix of one value", head + "  - {key: a, value: 10.0.0.1, ip_prefix: {v4: 8}}\n", "3: d/a=10.0.0.1.ip_prefix: needs a descriptor that many values match, not value 10.0.0.1"},
		{"ip_prefix beside share_threshold", head + "  - {key: a, value: 10.*, share_threshold: true, ip_prefix: {v4: 8}}\n", "3: d/a=10.*.ip_prefix: excludes share_threshold, which gives all values one counter already"},
		{"metadata that is no mapping", beside("metadata: [1]"), "5: d/a.metadata: must be a mapping (key: value), not a list"},
		{"short limit of an unknown unit", beside("limits: [5/fortnight]"), `5: d/a.limits[0].period: "fortnight" is not a duration such as 90s, 1h30m or 7d: a number is missing`},
		{"period of years", one("period: 5y, count: 1"), `4: d/a.rate_limit.period: "5y" is not a duration such as 90s, 1h30m or 7d: its units are ns, us, ms, s, m, h, d and w`},
		{"share of one value", head + "  - {key: a, value: b, share_threshold: true}\n", "3: d/a=b.share_threshold: needs a * in value: it gives all values of a pattern one counter"},
		{"replaces without a name", one("unit: day, requests_per_unit: 1, replaces: [{}]"), "4: d/a.rate_limit.replaces[0]: must name a rule"},
		{"replaces in limits", beside("limits: [{count: 1, period: 1s, replaces: [{name: x}]}]"), "5: d/a.limits[0]: the key replaces belongs in rate_limit, not here"},
		{"ip_prefix of 33 bits", beside("ip_prefix: {v4: 33}"), "5: d/a.ip_prefix.v4: must be from 1 to 32, not 33"},
	},
	byReader: []fault{
		{"duplicate key and value", head + "  - {key: a, value: b}\n  - {key: a, value: b}\n", "4: d/a=b: the same key and value are already at f.yaml:3"},
		{"duplicate key", head + "  - key: a\n  - key: b\n  - key: a\n", "5: d/a: the same key and value are already at f.yaml:3"},
		{"duplicate below", head + "  - key: a\n    descriptors:\n      - key: b\n      - key: b\n", "6: d/a/b: the same key and value are already at f.yaml:5"},
		{"one name when joined", head + "  - {key: a, value: b}\n  - key: a_b\n", "4: d/a_b: cannot be told from a=b at f.yaml:3 where keys and values are joined by _; rename one"},
		{"replaces itself", one("unit: day, requests_per_unit: 1, name: n, replaces: [{name: n}]"), "4: d/a.rate_limit.replaces[0]: a rule cannot replace itself"},
		{"number too long as value", head + "  - key: a\n    value: 18446744073709551616\n", `4: d.descriptors[0].value: "18446744073709551616" is not read as a string; put it in quotes`},
		{"not YAML", "domain: d\ndescriptors: [\n", "2: not YAML: did not find expected node content"},
		{"tabs", "domain: d\ndescriptors:\n\t- key: a\n", "3: not YAML: found character that cannot start any token"},
		{"not UTF-8", "domain: \xff\n", "1: not YAML: invalid leading UTF-8 octet"},
		{"replaces itself by the rule's name", head + "  - key: a\n    name: n\n    rate_limit: {unit: day, requests_per_unit: 1, replaces: [{name: n}]}\n", "5: d/a.rate_limit.replaces[0]: a rule cannot replace itself"},
		{"zero block_for", one("period: 1s, count: 1, block_for: 0s"), "4: d/a.rate_limit.block_for: must be at least 1ns, not 0s"},
		{"block_for too long", one("period: 1s, count: 1, block_for: 40000d"), "4: d/a.rate_limit.block_for: 3456000000000000000 is too large; use at most 3155760000000000000"},
		{"block_for and min_interval", one("period: 1s, count: 1, block_for: 1m, min_interval: 1s"), "4: d/a.rate_limit.block_for: excludes min_interval; leave one of them out"},
		{"eventual and blocking", one("unit: hour, count: 1, block_for: 1s") + "    consistency: eventual\n", "5: d/a.consistency: eventual keeps no block_for: leave it out"},
		{"two documents", "domain: d\n---\ndomain: e\n", "3: a second YAML document begins here; a file holds one, so put it in a file of its own"},
		{"a key twice", "domain: d\ndomain: e\n", "2: domain: the key comes twice; the first is at line 1"},
		{"zero period", one("period: 0s, count: 1"), "4: d/a.rate_limit.period: must be at least 1µs, not 0s"},
		{"period too long", one("period: 40000d, count: 1"), "4: d/a.rate_limit.period: 960000h0m0s is out of range; use 1µs to 876600h0m0s"},
		{"zero min_interval", one("period: 1s, count: 1, min_interval: 0s"), "4: d/a.rate_limit.min_interval: must be at least 1ns, not 0s"},
		{"concurrency with a burst", one("algorithm: concurrency, count: 1, burst: 2"), "4: d/a.rate_limit.burst: is for buckets only; leave it out"},
		{"concurrency with a margin", one("algorithm: concurrency, count: 1, soft: 10%"), "4: d/a.rate_limit.soft: is not for concurrency, which counts what is in use now; leave it out"},
		{"concurrency of the calendar", one("algorithm: concurrency, count: 1, align: calendar"), "4: d/a.rate_limit.align: is for the fixed window and the token bucket with refill by interval only; leave it out"},
		{"concurrency with an interval", head + "  - key: a\n    limits: [5/1m, {algorithm: concurrency, count: 1, min_interval: 1s}]\n", "4: d/a.limits[1].min_interval: is not for concurrency, which counts what is in use now; leave it out"},
		{"eventual concurrency", one("algorithm: concurrency, count: 1") + "    consistency: eventual\n", "5: d/a.consistency: eventual needs a fixed_window, not a concurrency"},
		{"burst of a window", one("period: 1s, count: 1, burst: 5"), "4: d/a.rate_limit.burst: needs algorithm: token_bucket or leaky_bucket"},
		{"unknown zone", one("align: calendar, unit: day, count: 1, timezone: Europe/Atlantis"), `4: d/a.rate_limit.timezone: "Europe/Atlantis" is not a known IANA time zone; use a name like Europe/Berlin`},
		{"unlimited among others", head + "  - key: a\n    limits:\n      - {unit: day, count: 1}\n      - {unlimited: true}\n", "6: d/a.limits[1]: unlimited stands alone, without other limits beside it"},
		{"too many limits", beside("limits: [" + strings.Repeat("{unit: day, count: 1},", 16) + "]"), "3: d/a.limits: has 17 limits, more than the 16 allowed"},
		{"one name for two limits", beside("limits: [{unit: day, count: 1, name: x}, {unit: hour, count: 1, name: x}]"), `5: d/a.limits[1].name: "x" already names another limit of this rule`},
		{"fault in the second limit", beside("limits: [{unit: day, count: 1}, {unit: hour, count: 1, sub_windows: 5}]"), "5: d/a.limits[1].sub_windows: is for the sliding window only; leave it out"},
		{"on_lost_state deny beside eventual", beside("consistency: eventual\n    on_lost_state: deny"), "6: d/a.on_lost_state: deny makes no sense beside consistency: eventual, where every node decides alone: use fresh, or leave it out"},
		{"eventual of two", beside("consistency: eventual\n    limits: [{unit: hour, count: 1}]"), "5: d/a.consistency: eventual takes one limit, and the rule has 2"},
		{"eventual bucket", one("algorithm: token_bucket, unit: hour, count: 1") + "    consistency: eventual\n", "5: d/a.consistency: eventual needs a fixed_window, not a token_bucket"},
		{"eventual from the first hit", one("align: first_hit, unit: hour, count: 1") + "    consistency: eventual\n", "5: d/a.consistency: eventual needs a window that begins for all nodes at once: align epoch or calendar, not first_hit"},
		{"eventual and short", one("period: 999ms, count: 1") + "    consistency: eventual\n", "5: d/a.consistency: eventual needs a period of 1s or more, not 999ms"},
		{"eventual and soft", one("unit: hour, count: 1, soft: 10%") + "    consistency: eventual\n", "5: d/a.consistency: eventual has no soft margin: leave soft out"},
		{"eventual with an interval", one("unit: hour, count: 1, min_interval: 1s") + "    consistency: eventual\n", "5: d/a.consistency: eventual keeps no min_interval: leave it out"},
		{"eventual with a weight", one("unit: hour, count: 1, weight: 2") + "    consistency: eventual\n", "5: d/a.consistency: eventual takes no weight of a limit: leave it out"},
		{"eventual and sync", beside("consistency: eventual\n    replication: sync"), "6: d/a.replication: sync makes no sense beside consistency: eventual, which answers before any other node has the charge"},
		{"header with a line break", beside(`response: {headers: {X-A: "b\r\nSet-Cookie: c"}}`), "5: d/a.response.headers.X-A: a header's value may not hold line breaks or control characters"},
		{"header of the server", beside("response: {headers: {content-length: 5}}"), "5: d/a.response.headers.content-length: the server sets this header itself"},
		{"header twice", beside("response: {headers: {X-A: b, x-a: c}}"), "5: d/a.response.headers.x-a: the header comes twice"},
		{"metadata beyond numbers", beside("metadata: {a: .inf}"), `5: d/a.metadata.a: ".inf" is not a number that can be kept; put it in quotes`},
		{"metadata too deep", beside("metadata: {a: " + strings.Repeat("[", 40) + strings.Repeat("]", 40) + "}"), "5: d/a.metadata.a: is nested deeper than 32 levels"},
		{"merge of something else", head + "  - key: a\n    <<: 5\n", "4: d.descriptors[0]: a merge key (<<) takes a mapping or a list of mappings, not \"5\""},
	},
}

// TestRejected: everything that Parse rejects is told with its place and remedy, and the schema rejects what it can.
func TestRejected(t *testing.T) {
	for _, list := range []faults{ruleFaults, poolFaults, authorizeFaults, reservationFaults} {
		for i, c := range slices.Concat(list.bySchema, list.byReader) {
			t.Run(c.name, func(t *testing.T) {
				set, err := parse(t, c.text)
				if err == nil || set != nil {
					t.Fatalf("loaded: %v", err)
				}
				found := rules.Errors(err)
				// A rule's own fault with a pool that is wrong itself may follow.
				if want := "f.yaml:" + c.want; found[0].Error() != want || len(found) > 1 && !strings.Contains(c.text, "pools:") {
					t.Errorf("got  %s\nwant %s", err, want)
				}
				for _, e := range found {
					if e.File != "f.yaml" || e.Line < 1 || e.Reason == "" {
						t.Errorf("%#v lacks file, line or reason", e)
					}
				}
				var v any
				if yaml.Unmarshal([]byte(c.text), &v) == nil && (schema().Validate(v) == nil) != (i >= len(list.bySchema)) {
					t.Errorf("the schema accepts it: %v", i < len(list.bySchema))
				}
			})
		}
	}
}

// files names texts a.yaml, b.yaml and so on.
func files(texts ...string) (list []rules.File) {
	for i, text := range texts {
		list = append(list, rules.File{Name: string(rune('a'+i)) + ".yaml", Data: []byte(text)})
	}
	return list
}

// TestSeveralFiles: every file is read to its end, and told what does not go with the files before it, or what it lacks.
func TestSeveralFiles(t *testing.T) {
	const pool, auth = "domain: d\npools: {p: {" + somePool + "}}\n", "domain: d\nauthorize: {descriptors: [[{key: a, value: x}]]}\n"
	rule := one("unit: day, count: 1")
	for _, c := range []struct {
		want  string // faults, or else warnings
		files []string
	}{
		{"b.yaml:3: d/a: the same key and value are already at a.yaml:3", []string{rule, rule}},
		{`b.yaml:2: max_keys: another file has it for domain "d" already; leave one out`, []string{"domain: d\nmax_keys: 9\n", "domain: d\nmax_keys: 9\n"}},
		{`b.yaml:2: unmatched: another file has it for domain "d" already; leave one out`, []string{"domain: d\nunmatched: allow\n", "domain: d\nunmatched: deny\n"}},
		{"b.yaml:2: d.otherwise: the level has one already, at a.yaml:2", slices.Repeat([]string{"domain: d\notherwise: {limits: [2/1s]}\n"}, 2)},
		{"b.yaml:2: authorize: the domain has one already, at a.yaml:2", []string{auth, auth}},
		{"", []string{auth, rule}},
		{"c.yaml:2: pools.p: the domain has a pool of this name already, at b.yaml:2", []string{rule + "    elastic: {pool: p}\n", pool, pool}},
		{`a.yaml:5: d/a.elastic.pool: the domain has no pool "p"`, []string{rule + "    elastic: {pool: p}\n", strings.Replace(pool, ": d", ": e", 1)}},
		{"a.yaml:2: pools.p: no rule of the domain takes from this pool", []string{pool}},
		{`a.yaml:4: a/x.rate_limit.unit: must be one of second, minute, hour, day, week, month, year, not "eon"
a.yaml:5: a.descriptors[1].key: a descriptor must have a key, which may not be empty
b.yaml:1: not YAML: did not find expected node content
c.yaml:2: unknown key "shadow"`, []string{
			"domain: a\ndescriptors:\n  - key: x\n    rate_limit: {unit: eon}\n  - value: y\n", "domain: [\n", "domain: c\nshadow: 1\n", "domain: c\n"}},
	} {
		set, err := rules.Parse(files(c.files...), rules.Options{MergeDomains: true})
		var got []string
		for _, e := range rules.Errors(err) {
			got = append(got, e.Error())
		}
		if err == nil {
			for _, w := range set.Warnings() {
				got = append(got, w.String())
			}
		}
		if strings.Join(got, "\n") != c.want {
			t.Errorf("%q:\ngot  %s\nwant %s", c.files, strings.Join(got, "\n"), c.want)
		}
	}
	_, err := rules.Parse(files(rule, strings.Replace(rule, "key: a", "key: b", 1)), rules.Options{})
	if want := `b.yaml:1: domain: domain "d" is already described in a.yaml:1; put both in one file, or allow domains to be merged (--merge-domains)`; err == nil || err.Error() != want {
		t.Errorf("without merging: %v", err)
	}
}

func TestFaultsAreBounded(t *testing.T) {
	_, err := parse(t, "domain: d\n"+strings.Repeat("x: 1\n", 10_000))
	faults := rules.Errors(err)
	if len(faults) != 51 {
		t.Fatalf("%d faults", len(faults))
	}
	if last := faults[50].Error(); last != "f.yaml:10001: and 9950 more errors like these" {
		t.Error(last)
	}
}

// TestTooMuch: files made to exhaust the reader get a clear error, soon.
func TestTooMuch(t *testing.T) {
	nested := func(levels int) string {
		return "domain: d\ndescriptors: [" + strings.Repeat("{key: a, descriptors: [", levels-1) + "{key: a}" + strings.Repeat("]}", levels-1) + "]\n"
	}
	bomb := "domain: d\nmetadata:\n  a0: &a0 {x: 1}\n"
	for i := range 30 {
		bomb += fmt.Sprintf("  a%d: &a%d {x: *a%d, y: *a%d}\n", i+1, i+1, i, i)
	}
	bomb = strings.Replace(bomb, "metadata:", "descriptors: [{key: k, metadata: *a30}]\nmetadata:", 1)
	bomb = "domain: d\ndescriptors:\n- key: k\n  metadata:\n" + strings.ReplaceAll(bomb[strings.Index(bomb, "  a0"):], "  a", "    a")
	merges := "domain: d\ndescriptors:\n  - key: k\n    metadata:\n      m0: &m0 {x: 1}\n"
	for i := range 20 {
		merges += fmt.Sprintf("      m%d: &m%d {<<: *m%d}\n", i+1, i+1, i)
	}
	for _, c := range []struct{ name, text, want string }{
		{"10 MB", "domain: d\n" + strings.Repeat("# x\n", 10<<20/4), "f.yaml:1: the file has 10485770 bytes, more than the 1048576 allowed; split it"},
		{"65 levels", nested(65), "f.yaml:2: descriptors are nested deeper than the 64 levels allowed"},
		{"10,000 levels", nested(10_000), "f.yaml:2: is nested far deeper than any such file may be: exceeded max depth of 10000"},
		{"a megabyte of brackets", strings.Repeat("[", 1<<20), "f.yaml:1: is nested far deeper than any such file may be: exceeded max depth of 10000"},
		{"aliases of aliases", bomb, "f.yaml:6: the aliases in this file expand to too much; write the values out"},
		{"alias of itself", "domain: d\ndescriptors: &x\n  - key: a\n    descriptors: *x\n", "f.yaml:2: descriptors are nested deeper than the 64 levels allowed"},
		{"merge of merges", merges, "f.yaml:6: d/k.metadata.m9: merge keys (<<) are nested deeper than 8"},
		{"merge of itself", "domain: d\ndescriptors:\n  - &x\n    key: a\n    <<: *x\n", "f.yaml:5: d.descriptors[0]: merge keys (<<) are nested deeper than 8"},
	} {
		t.Run(c.name, func(t *testing.T) {
			begin := time.Now()
			_, err := parse(t, c.text)
			if took := time.Since(begin); took > 5*time.Second {
				t.Errorf("took %s", took)
			}
			faults := rules.Errors(err)
			if len(faults) == 0 || faults[0].Error() != c.want {
				t.Errorf("got %v\nwant %s", err, c.want)
			}
		})
	}
	if _, err := parse(t, nested(64)); err != nil {
		t.Errorf("64 levels: %v", err)
	}
}
