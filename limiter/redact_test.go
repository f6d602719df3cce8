package limiter

import (
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
)

const privateRules = `
domain: shop
descriptors:
  - key: user
    redact: true
    rate_limit: {unit: minute, requests_per_unit: 3}
    descriptors:
      - {key: path, rate_limit: {unit: minute, requests_per_unit: 3}}
  - key: addr
    redact: true
    ip_prefix: {v4: 24}
    rate_limit: {unit: minute, requests_per_unit: 3}
`

// shownBy returns a descriptor as people may see it under the rules of l.
func shownBy(l *Limiter, domain string, d []rules.Entry) []rules.Entry {
	rule, _ := l.Rules().Match(domain, d)
	return l.shown(l.Rules(), rule, domain, d)
}

func TestShown(t *testing.T) {
	s := newService(t, newNode(t))
	s.SetRules(parse(t, privateRules))
	shown := func(domain string, pairs ...string) string {
		var d []rules.Entry
		for i := 0; i < len(pairs); i += 2 {
			d = append(d, rules.Entry{Key: pairs[i], Value: pairs[i+1]})
		}
		var out []string
		for i, e := range shownBy(s, domain, d) {
			if e.Key != d[i].Key {
				t.Errorf("key %q is shown as %q", d[i].Key, e.Key)
			}
			out = append(out, e.Value)
		}
		return strings.Join(out, " ")
	}
	ann := shown("shop", "user", "ann")
	if !strings.HasPrefix(ann, "redacted:") || len(ann) != len("redacted:")+12 {
		t.Fatalf("ann is shown as %q", ann)
	}
	for _, c := range []struct{ got, want string }{
		{shown("shop", "user", "ann"), ann},
		{shown("shop", "user", "ann", "path", "/x"), ann + " /x"},
		{shown("shop", "nobody", "x", "user", "ann"), "x " + ann}, // no rule
		{shown("shop", "addr", "10.0.0.7"), shown("shop", "addr", "10.0.0.9")},
		{shown("other", "user", "ann"), "ann"},
	} {
		if c.got != c.want {
			t.Errorf("%q, want %q", c.got, c.want)
		}
	}
	for _, other := range []string{shown("shop", "user", "bob"), shown("shop", "addr", "ann"), shown("shop", "addr", "10.0.1.7")} {
		if other == ann || other == shown("shop", "addr", "10.0.0.7") || !strings.HasPrefix(other, "redacted:") {
			t.Errorf("another value is shown as %q, ann as %q", other, ann)
		}
	}
	other := newService(t, newNode(t), func(c *Config) { c.Hasher, _ = NewHasher([]byte(strings.Repeat("z", MinSecret))) })
	other.SetRules(parse(t, privateRules))
	if got := shownBy(other, "shop", []rules.Entry{{Key: "user", Value: "ann"}})[0].Value; got == ann {
		t.Error("another secret gives the same hash")
	}
	buf := make([]byte, 0, 128)
	set := s.Rules()
	rule, _ := set.Match("shop", []rules.Entry{{Key: "user", Value: "ann"}})
	if n := testing.AllocsPerRun(100, func() {
		buf = s.config.Hasher.AppendShown(buf[:0], set, rule, "shop", 0, rules.Entry{Key: "user", Value: "ann"})
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestTopRedacts: private values are not in what a node counts, also of checks that bring their own limits, and
// no other node is told of them.
func TestTopRedacts(t *testing.T) {
	var now time.Duration
	s := counted(t, &now)
	s.SetRules(parse(t, privateRules))
	mustCheck(t, s, batch(t, entry("user", "secret-ann"),
		all(entry("user", "secret-bob"), limits(bucket.Limit{Algorithm: bucket.FixedWindow, Count: 4, Period: time.Minute}))))
	keys := s.TopHere(TopQuery{By: ByFrequent, N: 10}).Keys
	if len(keys) != 2 {
		t.Fatalf("%d keys, want 2", len(keys))
	}
	for _, k := range keys {
		if strings.Contains(string(k.Name), "secret") || !strings.Contains(string(k.Name), "redacted:") {
			t.Errorf("counted as %q", k.Name)
		}
	}
	if got := top(t, s, ByFrequent, 10).Keys; got[0].Descriptor[0].Value == got[1].Descriptor[0].Value {
		t.Errorf("two users are one: %+v", got)
	}
}
