package rules_test

import (
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/sluicecluster/sluice/rules"
)

// compileSchema returns the schema, checked against its own meta-schema.
func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(rules.Schema))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// validate holds YAML to the schema.
func validate(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return s.Validate(v)
}

func TestSchemaAcceptsExamples(t *testing.T) {
	s := compileSchema(t)
	files, _ := readExamples(t)
	if len(files) < 5 {
		t.Fatalf("only %d examples", len(files))
	}
	for _, f := range files {
		if err := validate(t, s, string(f.Data)); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		if !strings.HasPrefix(string(f.Data), "# yaml-language-server: $schema=../../rules/schema.json\n") {
			t.Errorf("%s does not name its schema for editors", f.Name)
		}
	}
}

// TestSchemaAgrees: what the schema accepts and rejects, Parse accepts and
// rejects.
func TestSchemaAgrees(t *testing.T) {
	s := compileSchema(t)
	for _, c := range []struct {
		sound bool
		text  string
	}{
		{true, one("unit: day, requests_per_unit: 1, name: n, replaces: [{name: o}]")},
		{true, one("algorithm: sliding_log, count: 0, period: 1w2d, log_entries: 5, count_denied: true, min_interval: 1ms")},
		{true, one("period: 1m, count: 5, block_for: 10m")},
		{true, one("algorithm: concurrency, count: 10, weight: 2, name: n, replaces: [{name: o}]") + "    replication: sync\n    reservation: {on_expiry: release}\n"},
		{true, "domain: d\notherwise: {limits: [{algorithm: concurrency, requests_per_unit: 10}, {count: 100, period: 1m}, 5/1s]}"},
		{false, one("algorithm: concurrency, count: 10, period: 1m")},
		{false, one("algorithm: concurrency, count: 10, unit: day")},
		{false, one("algorithm: concurrency")},
		{false, one("period: 1m, count: 5, block_for: 10")},
		{true, one("count: 1, unit: month, align: calendar, timezone: Asia/Tokyo")},
		{true, one("unlimited: true, name: n, requests_per_unit: 1")},
		{true, beside("limits: [{count: 1, period: 1s}, {requests_per_unit: 1, unit: year, weight: 3, soft: 5%}]")},
		{true, beside("response: {status: 503, headers: {X-A: 1}, body: b}")},
		{true, beside("cache_denials: false")},
		{false, beside("cache_denials: often")},
		{true, beside("ip_prefix: {v4: 24, v6: 64}\n    on_failure: open\n    metadata: {a: [1]}")},
		{true, "domain: d\ndescriptors: [{key: a, value: 'x*', share_threshold: true, value_to_metric: true, descriptors: [{key: b}]}]"},
		{false, "descriptors: []"},
		{false, "domain: ''"},
		{true, "domain: d\nversion: 1\nunmatched: deny\notherwise: {limits: [5/1m], name: rest, shadow_mode: true}"},
		{true, "domain: d\ndescriptors: [{key: a, name: n, limits: [5/1m, 1000/day, 3 / 90s, {count: 1, period: month, align: calendar}], otherwise: {limits: [1/1s]}}]"},
		{false, "domain: d\nversion: 2"},
		{false, "domain: d\nunmatched: block"},
		{false, "domain: d\notherwise: {name: rest}"},
		{false, "domain: d\notherwise: {rate_limit: {count: 1, period: 1s}}"},
		{false, "domain: d\notherwise: {limits: [1/1s], key: a}"},
		{false, beside("limits: [5]")},
		{false, beside("limits: [5/60]")},
		{false, beside("limits: [5/fortnight]")},
		{false, one("period: second, count: 1, align: calendar")},
		{false, one("period: fortnight, count: 1")},
		{false, one("period: 1s, count: 1, soft: 5")},
		{false, one("period: 1s, count: 1, soft: 1001%")},
		{false, one("period: 1s, count: 1, cost: 5")},
		{false, beside("refunds: true")},
		{false, "domain: d\ndescriptors: [{value: a}]"},
		{false, "domain: d\ndescriptors: [{key: a, rate_limits: {}}]"},
		{true, "domain: d\ndescriptors: [{key: a, value: 'x*', redact: true, rate_limit: {unit: day, requests_per_unit: 1}}]"},
		{false, "domain: d\ndescriptors: [{key: a, value: b, redact: true}]"},
		{false, "domain: d\ndescriptors: [{key: a, value: 'b*', share_threshold: true, redact: true}]"},
		{false, "domain: d\ndescriptors: [{key: a, share_threshold: true}]"},
		{false, "domain: d\ndescriptors: [{key: a, value: b, share_threshold: true}]"},
		{false, "domain: d\ndescriptors: [{key: a, value: 10.0.0.1, ip_prefix: {v4: 8}}]"},
		{false, "domain: d\ndescriptors: [{key: a, on_failure: open}]"},
		{false, "domain: d\ndescriptors: [{key: a, cache_denials: false}]"},
		{false, one("unit: fortnight, requests_per_unit: 1")},
		{false, one("requests_per_unit: 1")},
		{false, one("period: 60, count: 1")},
		{false, one("period: 5y, count: 1")},
		{false, one("unit: day, period: 1s, count: 1")},
		{false, one("unit: day, count: 1, requests_per_unit: 1")},
		{false, one("unit: day, count: -1")},
		{false, one("unit: day, count: 1, algorithm: gcra")},
		{false, one("period: 24h, count: 1, align: calendar")},
		{false, one("unit: second, count: 1, align: calendar")},
		{false, one("unit: day, count: 1, timezone: UTC")},
		{false, one("unlimited: true, unit: day")},
		{false, one("unit: day, count: 1, replaces: [{name: ''}]")},
		{false, one("unit: day, count: 1, replaces: [{}]")},
		{false, beside("limits: []")},
		{false, beside("limits: [{count: 1, period: 1s, replaces: [{name: x}]}]")},
		{false, beside("response: {status: 302}")},
		{false, beside("response: {headers: {'a b': c}}")},
		{false, beside("ip_prefix: {v4: 33}")},
		{false, beside("consistency: causal")},
		{false, beside("replication: twice")},
		{false, beside("on_failure: perhaps")},
		{false, beside("on_partition: perhaps")},
		{true, beside("unknown_share: none")},
		{false, beside("unknown_share: all")},
		{true, beside("on_lost_state: deny")},
		{false, beside("on_lost_state: share")},
		{false, beside("metadata: 5")},
	} {
		if err := validate(t, s, c.text); (err == nil) != c.sound {
			t.Errorf("the schema says %v of\n%s", err, c.text)
		}
		if _, err := parse(t, c.text); (err == nil) != c.sound {
			t.Errorf("Parse says %v of\n%s", err, c.text)
		}
	}
}
