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
	const (
		head     = "domain: d\ndescriptors:\n  - key: a\n"
		of       = "    %s: {%s: {[x]: y}}\n" // a mapping of a descriptor
		original = "domain: d\nauthorize: {%s: {%s: {[x]: y}}}\n"
	)
	forms := map[string]struct{ text, path string }{
		inFile:          {"domain: d\n%[2]s: {[x]: y}\n", "%[2]s"},
		inDescriptor:    {head + "    %[2]s: {[x]: y}\n", "d/a.%[2]s"},
		inRateLimit:     {head + of, "d/a.%s.%s"},
		inResponse:      {head + of, "d/a.%s.%s"},
		inIPPrefix:      {head + of, "d/a.%s.%s"},
		inReservation:   {head + of, "d/a.%s.%s"},
		inElastic:       {head + of, "d/a.%s.%s"},
		inOtherwise:     {"domain: d\n%s: {%s: {[x]: y}}\n", "d.%s.%s"},
		inLimits:        {head + "    limits: [{%[2]s: {[x]: y}}]\n", "d/a.limits[0].%[2]s"},
		inReplaces:      {head + "    rate_limit: {replaces: [{%[2]s: {[x]: y}}]}\n", "d/a.rate_limit.replaces[0].%[2]s"},
		inPool:          {"domain: d\npools: {p: {%[2]s: {[x]: y}}}\n", "pools.p.%[2]s"},
		inPoolLimit:     {"domain: d\npools: {p: {limit: {%[2]s: {[x]: y}}}}\n", "pools.p.limit.%[2]s"},
		inLoad:          {"domain: d\npools: {p: {load: {%[2]s: {[x]: y}}}}\n", "pools.p.load.%[2]s"},
		inAuthorize:     {"domain: d\nauthorize: {%[2]s: {[x]: y}}\n", "authorize.%[2]s"},
		inClientAddress: {original, "authorize.%s.%s"},
		inOriginal:      {original, "authorize.%s.%s"},
		inEntry:         {"domain: d\nauthorize: {descriptors: [[{%[2]s: {[x]: y}}]]}\n", "authorize.descriptors[0][0].%[2]s"},
	}
	for mapping, keys := range grammar {
		for _, k := range keys {
			text, path := fmt.Sprintf(forms[mapping].text, mapping, k), fmt.Sprintf(forms[mapping].path, mapping, k)
			switch {
			case mapping == inFile && k == "domain":
				text = "domain: {[x]: y}\n"
			case mapping == inFile && (k == "otherwise" || k == "descriptors"):
				path = "d." + k
			case mapping == inDescriptor && (k == "key" || k == "value"):
				text, path = "domain: d\ndescriptors:\n  - "+k+": {[x]: y}\n", "d.descriptors[0]."+k
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
