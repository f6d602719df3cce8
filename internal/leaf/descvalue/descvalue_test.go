package descvalue

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestOf(t *testing.T) {
	long := "/login" + strings.Repeat("x", Max)
	seen := map[string]string{}
	for _, c := range []struct{ value, prefix string }{
		{"", ""}, {"naïve", "naïve"}, {strings.Repeat("x", Max), strings.Repeat("x", Max)},
		{long, "/loginxxx"}, {long + "y", "/loginxxx"}, {"na\xefve", "na?ve#"}, {"na\xeeve", "na?ve#"},
		{strings.Repeat("é", Max), "ééé"}, {"x" + strings.Repeat("é", Max), "xééé"}, {strings.Repeat("\xff", 5000), "?#"},
	} {
		got := Of(c.value)
		if !strings.HasPrefix(got, c.prefix) || len(got) > Max || !utf8.ValidString(got) || Of(got) != got {
			t.Errorf("%.20q becomes %q", c.value, got)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%.20q and %.20q are one", c.value, other)
		}
		seen[got] = c.value
	}
	if n := testing.AllocsPerRun(100, func() { Of("naïve") }); n != 0 {
		t.Errorf("%v allocations for a value that stays", n)
	}
}

func FuzzOf(f *testing.F) {
	f.Add("a", "b")
	f.Add(strings.Repeat("x", 2000), "\xff")
	f.Fuzz(func(t *testing.T, a, b string) {
		x, y := Of(a), Of(b)
		if len(x) > Max || !utf8.ValidString(x) || Of(x) != x {
			t.Errorf("%q", x)
		}
		// A value may spell the short form of another; only values that were shortened are told apart by their hash.
		if a != b && x == y && x != a && y != b {
			t.Errorf("%q and %q are both %q", a, b, x)
		}
	})
}
