package rules_test

import (
	"strings"
	"testing"

	"github.com/sluicecluster/sluice/rules"
)

// TestScope: what a rule says of regions, and what is wrong with it.
func TestScope(t *testing.T) {
	known := func(name string) bool { return name == "eu" || name == "us" }
	for _, c := range []struct {
		name, text       string
		regions          func(string) bool
		home, err, warns string
	}{
		{"none", "", known, "", "", ""},
		{"region", "scope: region", known, "", "", ""},
		{"global", "{scope: global, home: eu}", known, "eu", "", ""},
		{"no home", "scope: global", known, "", "global needs home beside it", ""},
		{"home alone", "home: eu", known, "", "is for scope: global", ""},
		{"auto", "{scope: global, home: auto}", known, "auto", "", ""},
		{"unknown", "{scope: global, home: ap}", known, "", `"ap" is no region that this process knows`, ""},
		{"no name", "{scope: global, home: e u}", nil, "", "must be the name of a region", ""},
		{"eventual", "{scope: global, home: eu, consistency: eventual, limits: [{count: 5, period: 1m, algorithm: fixed_window}]}", known, "eu", "", ""},
		{"eventual, auto", "{scope: global, home: auto, consistency: eventual, limits: [{count: 5, period: 1m, algorithm: fixed_window}]}", known, "", "auto has no use beside consistency: eventual", ""},
		{"no regions", "{scope: global, home: eu}", nil, "eu", "", "no effect on nodes without a list of regions"},
		{"no leases", "{scope: global, home: eu, limits: [{count: 5, period: 1s, algorithm: leaky_queue}]}", known, "eu", "", "they grant no leases"},
	} {
		text := strings.Trim(c.text, "{}")
		if !strings.Contains(text, "limits:") {
			text = strings.TrimPrefix(text+", limits: [5/1m]", ", ")
		}
		set, err := rules.Parse([]rules.File{{Name: "f", Data: []byte("domain: d\ndescriptors: [{key: a, " + text + "}]\n")}}, rules.Options{Regions: c.regions})
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v; want %q", c.name, err, c.err)
			}
			continue
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if r := set.Rules()[0]; r.Home != c.home || r.Global != (c.home != "") || r.Limits.Home() != c.home {
			t.Errorf("%s: home %q, global=%v, home of the limits %q", c.name, r.Home, r.Global, r.Limits.Home())
		}
		found := ""
		for _, w := range set.Warnings() {
			if strings.Contains(w.Path, "scope") {
				found += w.Text
			}
		}
		if !strings.Contains(found, c.warns) || c.warns == "" && found != "" {
			t.Errorf("%s: warning %q; want %q", c.name, found, c.warns)
		}
	}
}
