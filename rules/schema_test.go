package rules_test

import (
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"

	"github.com/sluicecluster/sluice/rules"
)

// schema returns the schema, checked against its own meta-schema.
var schema = sync.OnceValue(func() *jsonschema.Schema {
	doc, err := jsonschema.UnmarshalJSON(strings.NewReader(rules.Schema))
	if err != nil {
		panic(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", doc); err != nil {
		panic(err)
	}
	return c.MustCompile("schema.json")
})

// validate holds YAML to the schema.
func validate(t testing.TB, text string) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	return schema().Validate(v)
}

func TestSchemaAcceptsExamples(t *testing.T) {
	files, _ := readExamples(t)
	if len(files) < 5 {
		t.Fatalf("only %d examples", len(files))
	}
	for _, f := range files {
		if err := validate(t, string(f.Data)); err != nil {
			t.Errorf("%s: %v", f.Name, err)
		}
		if !strings.HasPrefix(string(f.Data), "# yaml-language-server: $schema=../../rules/schema.json\n") {
			t.Errorf("%s does not name its schema for editors", f.Name)
		}
	}
}

// TestSchemaAccepts what no other test reads.
func TestSchemaAccepts(t *testing.T) {
	for _, text := range []string{
		one("unit: day, requests_per_unit: 1, name: n, replaces: [{name: o}]"),
		one("algorithm: sliding_log, count: 0, period: 1w2d, log_entries: 5, count_denied: true, min_interval: 1ms"),
		one("period: 1m, count: 5, block_for: 10m"),
		one("algorithm: concurrency, count: 10, weight: 2, name: n, replaces: [{name: o}]") + "    replication: sync\n    reservation: {on_expiry: release}\n",
		"domain: d\notherwise: {limits: [{algorithm: concurrency, requests_per_unit: 10}, {count: 100, period: 1m}, 5/1s]}",
		one("count: 1, unit: month, align: calendar, timezone: Asia/Tokyo"),
		one("unlimited: true, name: n, requests_per_unit: 1"),
		beside("limits: [{count: 1, period: 1s}, {requests_per_unit: 1, unit: year, weight: 3, soft: 5%}]"),
		beside("response: {status: 503, headers: {X-A: 1}, body: b}"),
		beside("cache_denials: false"),
		beside("ip_prefix: {v4: 24, v6: 64}\n    on_failure: open\n    metadata: {a: [1]}"),
		"domain: d\ndescriptors: [{key: a, value: 'x*', share_threshold: true, value_to_metric: true, descriptors: [{key: b}]}]",
		"domain: d\nversion: 1\nunmatched: deny\notherwise: {limits: [5/1m], name: rest, shadow_mode: true}",
		"domain: d\ndescriptors: [{key: a, name: n, limits: [5/1m, 1000/day, 3 / 90s, {count: 1, period: month, align: calendar}], otherwise: {limits: [1/1s]}}]",
		"domain: d\ndescriptors: [{key: a, value: 'x*', redact: true, rate_limit: {unit: day, requests_per_unit: 1}}]",
		beside("unknown_share: none"),
		beside("on_lost_state: deny"),
	} {
		mustParse(t, text)
	}
}
