package rules_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluicecluster/sluice/rules"
)

// entries reads "a=b c=d".
func entries(s string) []rules.Entry {
	var out []rules.Entry
	for _, f := range strings.Fields(s) {
		k, v, _ := strings.Cut(f, "=")
		out = append(out, rules.Entry{Key: k, Value: v})
	}
	return out
}

const tree = `
domain: d
descriptors:
  - {key: path, value: "/a/*", rate_limit: {unit: day, requests_per_unit: 1, name: wild-first}}
  - {key: path, value: "/a/b", rate_limit: {unit: day, requests_per_unit: 1, name: exact}}
  - {key: path, value: "/a/*/c", rate_limit: {unit: day, requests_per_unit: 1, name: wild-second}}
  - {key: path, value: "*.png", rate_limit: {unit: day, requests_per_unit: 1, name: suffix}}
  - {key: path, value: "x*y*z", rate_limit: {unit: day, requests_per_unit: 1, name: middle}}
  - {key: path, rate_limit: {unit: day, requests_per_unit: 1, name: key}}
  - key: user
    value: root
    descriptors:
      - {key: op, value: read, rate_limit: {unlimited: true, name: root-read}}
  - key: user
    rate_limit: {unit: day, requests_per_unit: 1, name: user}
    descriptors:
      - {key: op, rate_limit: {unit: day, requests_per_unit: 1, name: user-op}}
  - {key: over, value: "aa*a", rate_limit: {unlimited: true, name: over}}
  - {key: all, value: "*", rate_limit: {unit: day, requests_per_unit: 1, name: star}}
  - {key: all, rate_limit: {unit: day, requests_per_unit: 1, name: never}}
`

// TestMatch shows what TestMatchAgainstSlow proves, and allocates nothing.
func TestMatch(t *testing.T) {
	set := mustParse(t, tree)
	for descriptor, want := range map[string]string{
		"path=/a/b":             "exact",
		"path=/a/x/c":           "wild-first",
		"path=/a/*/c":           "wild-second", // the pattern's own text is an exact value
		"path=/b.png":           "suffix",
		"path=x1y2z":            "middle",
		"path=xz":               "key",
		"path=":                 "key",
		"user=root":             "", // a level without limit, and no way back to the key alone
		"user=root op=read":     "root-read",
		"user=root op=write":    "",
		"user=ann op=write":     "user-op",
		"user=ann op=write x=y": "", // too deep
		"op=write user=ann":     "",
		"over=aa":               "", // first and last part may not overlap
		"over=aaa":              "over",
		"all=":                  "star",
		"PATH=/a/b":             "",
		"":                      "",
	} {
		d, got := entries(descriptor), ""
		r, known := set.Match("d", d)
		if r != nil {
			got = r.Name
		}
		if got != want || !known {
			t.Errorf("%q: got %q, known %v, want %q", descriptor, got, known, want)
		}
		if n := testing.AllocsPerRun(10, func() { set.Match("d", d) }); n != 0 {
			t.Errorf("%q: %v allocations", descriptor, n)
		}
	}
	if r, known := set.Match("e", entries("path=/a/b")); r != nil || known {
		t.Errorf("unknown domain: %v, %v", r, known)
	}
	if r, known := new(rules.Set).Match("d", nil); r != nil || known {
		t.Errorf("zero set: %v, %v", r, known)
	}
}

// A set has slots if one rule has, wherever it is.
func TestSlots(t *testing.T) {
	const rate, slots = "{count: 1, period: 1s}", "{count: 1, algorithm: concurrency}"
	for text, want := range map[string]bool{
		"domain: d": false,
		"domain: d\ndescriptors:\n  - {key: a, rate_limit: {unlimited: true}}\n  - {key: b, limits: [" + rate + ", " + slots + "]}": true,
		"domain: d\notherwise: {limits: [" + slots + "]}":                                                                     true,
		"domain: d\ndescriptors:\n  - {key: a, rate_limit: " + rate + ", descriptors: [{key: b, rate_limit: " + slots + "}]}": true,
	} {
		if got := mustParse(t, text).Slots(); got != want {
			t.Errorf("%s\n%v, want %v", text, got, want)
		}
	}
	if (*rules.Set)(nil).Slots() {
		t.Error("no rules have slots")
	}
}

const otherwiseTree = `
domain: d
descriptors:
  - key: user
    limits: [5/1m]
  - key: path
    value: "/r/*"
    share_threshold: true
    descriptors:
      - {key: op, value: read, limits: [5/1m]}
      - {key: op, value: copy, descriptors: [{key: to, limits: [5/1m]}]}
    otherwise: {name: reports, limits: [2/1m], shadow_mode: true}
  - {key: path, value: /free, limits: [{unlimited: true}]}
otherwise: {limits: [1/1m]}
`

// TestOtherwise: the rule of the deepest level that was reached applies, with a counter for each descriptor.
func TestOtherwise(t *testing.T) {
	set := mustParse(t, otherwiseTree)
	names := map[string]string{} // of counters
	for _, c := range []struct{ descriptor, rule, counter, why string }{
		{"user=ann", "d/user", "ann", "the rule at f.yaml:4 applies"},
		{"user=ann route=/y", "d.otherwise", "1", "nothing matches route=/y at level 2, so otherwise at f.yaml:14 applies"},
		{"user=ann route=/z", "d.otherwise", "2", "nothing matches route=/z at level 2, so otherwise at f.yaml:14 applies"},
		{"user=bob route=/y", "d.otherwise", "3", "nothing matches route=/y at level 2, so otherwise at f.yaml:14 applies"},
		{"ip=::1", "d.otherwise", "4", "nothing matches ip=::1 at level 1, so otherwise at f.yaml:14 applies"},
		{"path=/x", "d.otherwise", "5", "nothing matches path=/x at level 1, so otherwise at f.yaml:14 applies"},
		{"path=/free", "d/path=/free", "free", "the rule at f.yaml:13 applies"},
		{"path=/r/a op=read", "d/path=/r/*/op=read", "6", "the rule at f.yaml:10 applies"},
		{"path=/r/a op=write", "reports", "7", "nothing matches op=write at level 2, so otherwise at f.yaml:12 applies"},
		{"path=/r/b op=write", "reports", "7", "nothing matches op=write at level 2, so otherwise at f.yaml:12 applies"},
		{"path=/r/b op=write x=y", "reports", "8", "nothing matches op=write at level 2, so otherwise at f.yaml:12 applies"},
		{"path=/r/b op=read x=y", "reports", "9", "nothing matches x=y at level 3, so otherwise at f.yaml:12 applies"},
		{"path=/r/b op=copy", "reports", "10", "op=copy at f.yaml:11 has no limit of its own, only levels below it can have one, so otherwise at f.yaml:12 applies"},
		{"path=/r/b", "reports", "11", "path=/r/* at f.yaml:6 has no limit of its own, only levels below it can have one, so otherwise at f.yaml:12 applies"},
	} {
		d := entries(c.descriptor)
		r, known := set.Match("d", d)
		if r == nil || !known || r.Name != c.rule {
			t.Errorf("%s: rule %v, known %v; want %s", c.descriptor, r, known, c.rule)
			continue
		}
		x := set.Explain("d", d)
		if x.Rule != r || x.Reason != c.why {
			t.Errorf("%s: %s; want %s", c.descriptor, x.Reason, c.why)
		}
		key := string(r.AppendKey(nil, "d", d))
		if other, ok := names[key]; ok && other != c.counter {
			t.Errorf("%s has the counter of %s", c.descriptor, other)
		}
		names[key] = c.counter
		if n := testing.AllocsPerRun(10, func() { set.Match("d", d) }); n != 0 {
			t.Errorf("%s: %v allocations", c.descriptor, n)
		}
	}
	if len(names) != 13 { // two of the fourteen descriptors share one
		t.Errorf("%d counters, want 13", len(names))
	}
	r, _ := set.Match("d", entries("path=/r/a op=write"))
	if !r.Shadow || r.Limits.At(0).Count != 2 || r.Path != "d/path=/r/*.otherwise" || string(r.AppendMetric(nil, entries("path=/r/a op=write"), nil)) != r.Path {
		t.Errorf("%+v", r)
	}
	if x := mustParse(t, "domain: d\nunmatched: deny\n"); x.Explain("d", entries("a=b")).Reason != "nothing matches a=b at level 1; unmatched is deny" {
		t.Error(x.Explain("d", entries("a=b")).Reason)
	}
}

// slowRule is a rule of one domain, as a list that is searched from the start.
type slowRule struct {
	entries         []rules.Entry
	name, otherwise string
}

// slowMatch is Match by its description: level by level, the exact value, else the first pattern, else the key alone, among
// the rules that lead there; else the last otherwise on the way.
func slowMatch(list []slowRule, descriptor []rules.Entry) (rest string) {
	reach := func(depth int) {
		for _, r := range list {
			if len(r.entries) == depth && r.otherwise != "" {
				rest = r.otherwise
			}
		}
	}
	for i, e := range descriptor {
		reach(i)
		better := func(r slowRule) int {
			if i >= len(r.entries) || r.entries[i].Key != e.Key {
				return 0
			}
			v := r.entries[i].Value
			pattern := "^" + strings.ReplaceAll(regexp.QuoteMeta(v), `\*`, "(?s:.*)") + "$"
			switch {
			case v != "" && v == e.Value:
				return 3
			case strings.Contains(v, "*") && regexp.MustCompile(pattern).MatchString(e.Value):
				return 2
			case v == "":
				return 1
			}
			return 0
		}
		best, value := 0, ""
		for _, r := range list {
			if b := better(r); b > best {
				best, value = b, r.entries[i].Value
			}
		}
		var next []slowRule
		for _, r := range list {
			if i < len(r.entries) && best > 0 && r.entries[i] == (rules.Entry{Key: e.Key, Value: value}) {
				next = append(next, r)
			}
		}
		list = next
	}
	reach(len(descriptor))
	for _, r := range list {
		if len(r.entries) == len(descriptor) && r.name != "" {
			return r.name
		}
	}
	return rest
}

// TestMatchAgainstSlow compares random trees and descriptors with the list, and
// Explain with Match.
func TestMatchAgainstSlow(t *testing.T) {
	keys := rapid.SampledFrom([]string{"k", "l"})
	ruleValues := rapid.SampledFrom([]string{"", "a", "b", "ab", "*", "a*", "*b", "a*b", "*a*", "a**b", "*ab*a"})
	values := rapid.StringOfN(rapid.SampledFrom([]rune("ab*")), 0, 4, -1)
	rapid.Check(t, func(t *rapid.T) {
		var list []slowRule
		otherwise := func(b *strings.Builder, path []rules.Entry, indent string) (name string) {
			if rapid.IntRange(0, 3).Draw(t, "otherwise") == 0 {
				name = fmt.Sprint("otherwise ", path)
				fmt.Fprintf(b, "%sotherwise: {limits: [{unlimited: true}], name: %q}\n", indent, name)
			}
			return name
		}
		var write func(depth int, above []rules.Entry, indent string) string
		write = func(depth int, above []rules.Entry, indent string) string {
			var b strings.Builder
			seen := map[rules.Entry]bool{}
			for range rapid.IntRange(1, 4).Draw(t, "rules") {
				e := rules.Entry{Key: keys.Draw(t, "key"), Value: ruleValues.Draw(t, "value")}
				if seen[e] {
					continue
				}
				seen[e] = true
				path := append(above[:len(above):len(above)], e)
				fmt.Fprintf(&b, "%s- key: %q\n%s  value: %q\n", indent, e.Key, indent, e.Value)
				name := ""
				if rapid.Bool().Draw(t, "limit") {
					name = fmt.Sprint(path)
					fmt.Fprintf(&b, "%s  rate_limit: {unlimited: true, name: %q}\n", indent, name)
				}
				list = append(list, slowRule{path, name, otherwise(&b, path, indent+"  ")})
				if depth < 3 && rapid.Bool().Draw(t, "deeper") {
					fmt.Fprintf(&b, "%s  descriptors:\n%s", indent, write(depth+1, path, indent+"    "))
				}
			}
			return b.String()
		}
		var top strings.Builder
		list = append(list, slowRule{otherwise: otherwise(&top, nil, "")})
		text := "domain: d\n" + top.String() + "descriptors:\n" + write(1, nil, "  ")
		set, err := rules.Parse([]rules.File{{Name: "f.yaml", Data: []byte(text)}}, rules.Options{})
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		for range 20 {
			var descriptor []rules.Entry
			for range rapid.IntRange(0, 4).Draw(t, "depth") {
				descriptor = append(descriptor, rules.Entry{Key: keys.Draw(t, "key"), Value: values.Draw(t, "value")})
			}
			r, _ := set.Match("d", descriptor)
			got := ""
			if r != nil {
				got = r.Name
			}
			if want := slowMatch(list, descriptor); got != want {
				t.Fatalf("%v: got %q, want %q\n%s", descriptor, got, want, text)
			}
			if x := set.Explain("d", descriptor); x.Rule != r || !x.Known {
				t.Fatalf("%v: Explain has %v, Match %v\n%s", descriptor, x.Rule, r, text)
			}
		}
	})
}

func TestExplain(t *testing.T) {
	set := mustParse(t, tree)
	for _, c := range []struct {
		domain, descriptor, reason, tries string
	}{
		{"e", "path=x", `no rule file describes the domain "e"`, ""},
		{"d", "", "the descriptor is empty", ""},
		{"d", "path=/a/x", "the rule at f.yaml:4 applies", "key and value path=/a/x no; pattern path=/a/* f.yaml:4 yes"},
		{"d", "user=root op=read", "the rule at f.yaml:13 applies", "key and value user=root f.yaml:10 yes; key and value op=read f.yaml:13 yes"},
		{"d", "user=root", "user=root at f.yaml:10 has no limit of its own, only levels below it can have one", "key and value user=root f.yaml:10 yes"},
		{"d", "user=ann op=x y=z", "nothing matches y=z at level 3", "key and value user=ann no; key alone user f.yaml:14 yes; key and value op=x no; key alone op f.yaml:17 yes; key and value y=z no; key alone y no"},
	} {
		x := set.Explain(c.domain, entries(c.descriptor))
		var tries []string
		for _, l := range x.Levels {
			for _, try := range l.Tries {
				s := string(try.How) + " " + try.Written
				if try.Line > 0 {
					s += fmt.Sprintf(" %s:%d", try.File, try.Line)
				}
				tries = append(tries, s+map[bool]string{true: " yes", false: " no"}[try.Matched])
			}
		}
		if got := strings.Join(tries, "; "); x.Reason != c.reason || got != c.tries {
			t.Errorf("%s %s:\ngot  %s: %s\nwant %s: %s", c.domain, c.descriptor, x.Reason, got, c.reason, c.tries)
		}
	}
}

func BenchmarkMatch(b *testing.B) {
	set := mustParse(b, tree)
	for _, s := range []string{"path=/a/b", "path=x1y2z", "user=ann op=write"} {
		d := entries(s)
		b.Run(s, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				set.Match("d", d)
			}
		})
	}
}
