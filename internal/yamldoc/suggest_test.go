package yamldoc

import "testing"

func TestSuggest(t *testing.T) {
	keys := []string{"rate_limit", "limits", "shadow_mode", "on_failure", "unit", "name", "v4", "v6"}
	for _, c := range []struct{ word, want string }{
		{"ratelimit", "rate_limit"},
		{"Rate-Limit", "rate_limit"},
		{"rate", "rate_limit"}, // a prefix goes before two replaced letters
		{"limit", "limits"},
		{"shadowmode", "shadow_mode"},
		{"shadow", "shadow_mode"},
		{"on_faliure", "on_failure"},
		{"units", "unit"},
		{"v5", ""},
		{"x", ""},
		{"", ""},
		{"zzzz", ""},
		{"on_partition", ""},
	} {
		want := ""
		if c.want != "" {
			want = "; did you mean " + c.want + "?"
		}
		if got := Suggest(c.word, keys); got != want {
			t.Errorf("%q: got %q, want %q", c.word, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "ab", 2}, {"ab", "", 2}, {"kitten", "sitting", 3}, {"flaw", "lawn", 2}, {"unti", "unit", 2}, {"same", "same", 0}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("%q and %q: got %d, want %d", c.a, c.b, got, c.want)
		}
	}
}
