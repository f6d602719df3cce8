package rules

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/internal/yamldoc"
)

// TestNumberOfAlgorithms: the pages that compare sluice with others say how many algorithms rules accept, and the page about them has each.
func TestNumberOfAlgorithms(t *testing.T) {
	words := map[int]string{7: "seven", 8: "eight", 9: "nine", 10: "ten"}
	for page, want := range map[string]string{
		"../README.md":                fmt.Sprintf("| algorithms | %d |", len(algorithms)),
		"../docs/start/comparison.md": fmt.Sprintf("| algorithms | %d: ", len(algorithms)),
		"../docs/start/faq.md":        fmt.Sprintf(" %s algorithms", words[len(algorithms)]),
	} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.ReplaceAll(string(text), "\n", " "), want) {
			t.Errorf("%s does not say %q", page, want)
		}
	}
	page, err := os.ReadFile("../docs/use/algorithms.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range algorithms {
		if !strings.Contains(string(page), "\n| `"+a.Name+"` |") {
			t.Errorf("docs/use/algorithms.md has no row for %s", a.Name)
		}
	}
}

// schemaNode is what the tests need of a JSON Schema.
type schemaNode struct {
	Properties map[string]json.RawMessage
	Then       struct {
		PropertyNames struct{ Enum []string }
	}
	Defs map[string]schemaNode `json:"$defs"`
}

// TestGrammarIsWrittenDown: the reader, the schema and the reference know the
// same keys in the same mappings.
func TestGrammarIsWrittenDown(t *testing.T) {
	var schema schemaNode
	if err := json.Unmarshal([]byte(Schema), &schema); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile("../docs/use/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	reference, _, _ := strings.Cut(string(data), "## Test cases")
	for mapping, keys := range grammar {
		properties := schema.Defs[mapping].Properties
		switch mapping {
		case inFile:
			properties = schema.Properties
		case inLimits:
			properties = schema.Defs["limit"].Properties
		case inReplaces:
			continue // inline in rate_limit; TestSchema has it
		}
		for _, k := range keys {
			if _, ok := properties[k]; !ok {
				t.Errorf("%s: the schema lacks %s", mapping, k)
			}
			if !strings.Contains(reference, "\n| `"+k+"` |") {
				t.Errorf("%s: docs/use/rules.md has no row for %s", mapping, k)
			}
		}
		for k := range properties {
			if !slices.Contains(keys, k) {
				t.Errorf("%s: the schema has %s, which is not read", mapping, k)
			}
		}
	}
	for _, list := range [][]string{valueNames(algorithms), valueNames(refills), valueNames(aligns), valueNames(onFailures), valueNames(unmatcheds), valueNames(consistencies), valueNames(replications), valueNames(onExpiries), valueNames(sources[1:]), unitNames()} {
		inSchema, err := json.Marshal(list)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(strings.Join(strings.Fields(Schema), ""), string(inSchema)) {
			t.Errorf("the schema lacks the values %s", inSchema)
		}
		for _, v := range list {
			if !strings.Contains(reference, "`"+v+"`") {
				t.Errorf("docs/use/rules.md does not mention the value %s", v)
			}
		}
	}
}

// TestEveryKeyIsRead: a key that the grammar has and no reader takes up would be
// accepted and ignored. What no key can be is rejected at every one.
func TestEveryKeyIsRead(t *testing.T) {
	const head = "domain: d\ndescriptors:\n  - key: a\n"
	for mapping, keys := range grammar {
		for _, k := range keys {
			var text, path string
			switch mapping {
			case inFile:
				text, path = k+": {[x]: y}\n", k
				if k == "otherwise" {
					text, path = "domain: d\n"+text, "d."+k
				}
			case inDescriptor:
				text, path = "domain: d\ndescriptors:\n  - "+k+": {[x]: y}\n", "d.descriptors[0]."+k
				if k != "key" && k != "value" {
					text, path = head+"    "+k+": {[x]: y}\n", "d/a."+k
				}
			case inRateLimit, inResponse, inIPPrefix, inReservation:
				text, path = head+"    "+mapping+": {"+k+": {[x]: y}}\n", "d/a."+mapping+"."+k
			case inOtherwise:
				text, path = "domain: d\notherwise: {"+k+": {[x]: y}}\n", "d.otherwise."+k
			case inLimits:
				text, path = head+"    limits: [{"+k+": {[x]: y}}]\n", "d/a.limits[0]."+k
			case inReplaces:
				text, path = head+"    rate_limit: {replaces: [{"+k+": {[x]: y}}]}\n", "d/a.rate_limit.replaces[0]."+k
			case inPool:
				text, path = "domain: d\npools: {p: {"+k+": {[x]: y}}}\n", "pools.p."+k
			case inPoolLimit:
				text, path = "domain: d\npools: {p: {limit: {"+k+": {[x]: y}}}}\n", "pools.p.limit."+k
			case inLoad:
				text, path = "domain: d\npools: {p: {load: {"+k+": {[x]: y}}}}\n", "pools.p.load."+k
			case inElastic:
				text, path = head+"    elastic: {"+k+": {[x]: y}}\n", "d/a.elastic."+k
			case inAuthorize:
				text, path = "domain: d\nauthorize: {"+k+": {[x]: y}}\n", "authorize."+k
			case inClientAddress, inOriginal:
				text, path = "domain: d\nauthorize: {"+mapping+": {"+k+": {[x]: y}}}\n", "authorize."+mapping+"."+k
			case inEntry:
				text, path = "domain: d\nauthorize: {descriptors: [[{"+k+": {[x]: y}}]]}\n", "authorize.descriptors[0][0]."+k
			}
			_, err := Parse([]File{{Name: "f", Data: []byte(text)}}, Options{})
			if !slices.ContainsFunc(Errors(err), func(e *Error) bool { return e.Path == path }) {
				t.Errorf("%s of %s is not read: %v", k, mapping, err)
			}
		}
	}
}

// TestEnvoyKeys: each is in the grammar, so that it can be told where it belongs.
func TestEnvoyKeys(t *testing.T) {
	for _, k := range envoyKeys {
		if belongs(k) == "" {
			t.Errorf("%s is in no mapping", k)
		}
	}
	if got := belongs("name"); got != "a descriptor or rate_limit or limits or replaces" {
		t.Errorf("name belongs in %s", got)
	}
}

func valueNames[T any](values []yamldoc.Named[T]) []string {
	out := make([]string, len(values))
	for i := range values {
		out[i] = values[i].Name
	}
	return out
}

func unitNames() []string {
	out := make([]string, len(units))
	for i := range units {
		out[i] = units[i].name
	}
	return out
}
