package regions

import (
	"fmt"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	l, err := Parse("eu", strings.Split("eu=eu.example,us=us.example:99,10.0.0.1,ap=[fd00::1]", ","), 7462)
	got := ""
	for _, r := range l.others {
		got += r.name
		for _, node := range r.nodes {
			got += " " + node.String()
		}
		got += "; "
	}
	if err != nil || l.self != "eu" || got != "us us.example:99 10.0.0.1:7462; ap [fd00::1]:7462; " || l.Loopback() {
		t.Errorf("%s, %+v, %v", got, l, err)
	}
	if l, err := Parse("eu", []string{"us=127.0.0.1", "localhost"}, 7462); err != nil || !l.Loopback() {
		t.Errorf("%+v, %v", l, err)
	}
	many := func(n int) (items []string) {
		for i := range n {
			items = append(items, fmt.Sprintf("r%d=h%d", i, i))
		}
		return items
	}
	if _, err := Parse("eu", many(MaxRegions-1), 7462); err != nil {
		t.Errorf("%d regions: %v", MaxRegions, err)
	}
	hosts := []string{"us=h"}
	for i := range maxTargets {
		hosts = append(hosts, fmt.Sprintf("h%d", i))
	}
	for _, w := range []struct {
		items []string
		want  string
	}{
		{nil, `no region but this one, "eu"`},
		{[]string{"eu=a"}, `no region but this one, "eu"`},
		{[]string{"us"}, `"us": want region=address`},
		{[]string{"us="}, "want a host: an address or a name"},
		{[]string{"=a"}, `name of a region "": want 1 to 63 of a-z, 0-9 and -`},
		{[]string{"US=a"}, `name of a region "US"`},
		{[]string{strings.Repeat("a", 64) + "=a"}, "want 1 to 63"},
		{[]string{"us=a", "us=b"}, `region "us" is given twice`},
		{[]string{"us=a", "eu=c", "eu=b"}, `region "eu" is given twice`},
		{[]string{"us=a:0"}, "want a port from 1 to 65535"},
		{[]string{"us=a", "b:x"}, `port "x"`},
		{[]string{"us=a", "ap=a:7462"}, `a:7462 is given for region "us" and again for "ap"`},
		{many(MaxRegions), "17 regions, this one included; want at most 16"},
		{hosts, `region "us" has more than 64 addresses`},
	} {
		if _, err := Parse("eu", w.items, 7462); err == nil || !strings.Contains(err.Error(), w.want) {
			t.Errorf("%q: %v; want %q", w.items, err, w.want)
		}
	}
}

// TestNext: a list may change by one region at a time, and by addresses.
func TestNext(t *testing.T) {
	parse := func(text string) *List {
		l, err := Parse("eu", Items([]byte(text)), 7462)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	now := parse("# all regions\nus=us.example, 10.0.0.1\n\nap=ap.example # since May\n")
	for _, c := range []struct{ text, want, removed string }{
		{"us=other.example\nap=ap.example", "", ""},
		{"eu=eu.example\nap=ap.example", "", "us"},
		{"us=us.example\nap=ap.example\nsa=sa.example", "", ""},
		{"us=us.example\nsa=sa.example", "regions added: [sa], removed: [ap]; add or remove one region at a time", ""},
		{"us=us.example\nap=ap.example\nsa=sa.example\nme=me.example", "regions added: [me sa], removed: []", ""},
		{"sa=sa.example", "removed: [ap us]", ""},
	} {
		gone, err := now.Next(parse(c.text))
		if fmt.Sprint(err) != "<nil>" && c.want == "" || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q: %v; want %s", c.text, err, c.want)
		}
		if gone != c.removed {
			t.Errorf("%q: %s is removed; want %s", c.text, gone, c.removed)
		}
	}
}

func TestWeights(t *testing.T) {
	l, err := Parse("eu", []string{"us=a", "ap=b"}, 7462)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []struct {
		items    string
		own, all int
		want     string
	}{
		{"", 1, 3, ""},
		{"eu=2,us=1000", 2, 1003, ""},
		{"eu", 0, 0, `"eu": want region=weight`},
		{"ca=1", 0, 0, `"ca" is neither this region, "eu", nor in --regions`},
		{"us=0", 0, 0, `weight "0" of region "us": want a number from 1 to 1000`},
		{"us=-1,ap=1001,eu=x", 0, 0, `weight "1001" of region "ap"`},
		{"us=1,us=2", 0, 0, `region "us" is given twice`},
	} {
		var items []string
		if w.items != "" {
			items = strings.Split(w.items, ",")
		}
		got, err := l.WithWeights(items)
		if w.want != "" {
			if err == nil || !strings.Contains(err.Error(), w.want) {
				t.Errorf("%s: %v; want %q", w.items, err, w.want)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", w.items, err)
		} else if own, all := got.part(); own != w.own || all != w.all {
			t.Errorf("%s: %d of %d", w.items, own, all)
		}
	}
}
