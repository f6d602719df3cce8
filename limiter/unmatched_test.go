package limiter

import (
	"bytes"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
	"github.com/sluicecluster/sluice/rules"
)

// unmatchedRules are the tests' rules with a policy for checks that no rule matches.
func unmatchedRules(t testing.TB, policy string) *rules.Set {
	return parse(t, strings.Replace(testRules, "domain: shop\n", "domain: shop\nunmatched: "+policy+"\n", 1))
}

// logTo returns a logger without times.
func logTo(b *bytes.Buffer) *slog.Logger {
	return slog.New(slog.NewTextHandler(b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// TestUnmatchedPolicies: each policy decides, counts and logs.
func TestUnmatchedPolicies(t *testing.T) {
	const line = "level=WARN msg=\"no rule matches a check; sluice rules explain says why\" domain=shop keys=\"user route\" unmatched="
	for _, c := range []struct {
		policy  string
		allowed bool
		counted uint64
		line    string
	}{
		{"allow", true, 0, ""},
		{"warn", true, 2, line + "warn\n"},
		{"deny", false, 2, line + "deny\n"},
	} {
		var log bytes.Buffer
		s := newScript(t, testRules, func(c *Config) { c.Log = logTo(&log) })
		s.SetRules(unmatchedRules(t, c.policy))
		for _, v := range []bucket.Verb{bucket.Check, bucket.Read} {
			r := mustCheck(t, s.Limiter, batch(t, all(entry("user", "secret"), entry("route", "x"), verb(v))))[0]
			if r.Allowed != c.allowed || r.DeniedUnmatched() == c.allowed || r.Never() == c.allowed || r.Source != check.Unmatched || r.DeniedFor != 0 || r.Err != nil {
				t.Errorf("%s: %v: %+v", c.policy, v, r)
			}
		}
		s.play("user=x | free=x | @other user=x => allowed 2/3 | unmatched allowed | unmatched allowed")
		free := all(entry("nobody", "x"), limits(bucket.Limit{Unlimited: true}))
		if r := mustCheck(t, s.Limiter, batch(t, free))[0]; !r.Allowed || r.DeniedUnmatched() {
			t.Errorf("%s: %+v", c.policy, r)
		}
		if got, want := s.Stats().Unmatched, map[string]uint64{"shop": c.counted, UnknownDomains: 1}; !maps.Equal(got, want) {
			t.Errorf("%s: counts %v, want %v", c.policy, got, want)
		}
		if shop, _, _ := strings.Cut(log.String(), "level=WARN msg=\"no rule matches a check; sluice rules explain says why\" domain=other"); shop != c.line {
			t.Errorf("%s: logged %q, want %q", c.policy, shop, c.line)
		}
	}
}

// TestUnmatchedFailsAtomicBatch: a check that is denied without a rule charges nothing of the others, and a read denies none.
func TestUnmatchedFailsAtomicBatch(t *testing.T) {
	s := newScript(t, testRules)
	s.SetRules(unmatchedRules(t, "deny"))
	s.play(`
		whole: user=x | nobody=x | free=x => denied_by_others 3/3 | unmatched denied_never | unmatched denied_by_others
		whole: user=x | nobody=x read | free=x => allowed 2/3 | unmatched denied_never | unmatched allowed
	`)
}

// TestUnmatchedOfAnOverloadedNode: an overloaded node denies the same checks.
func TestUnmatchedOfAnOverloadedNode(t *testing.T) {
	s := newService(t, newNode(t))
	s.SetRules(unmatchedRules(t, "deny"))
	b := batch(t, entry("nobody", "x"), entry("free", "x"))
	b.Busy, b.OneRequest = true, true
	if rs := mustCheck(t, s, b); rs[0].Allowed || !rs[0].DeniedUnmatched() || !rs[1].Allowed {
		t.Errorf("%+v", rs)
	}
}

// TestUnmatchedLines: a kind of descriptor is logged once a minute, whatever its values, and unknown domains are one kind.
func TestUnmatchedLines(t *testing.T) {
	var log bytes.Buffer
	now := time.Duration(0)
	s := newService(t, newNode(t), func(c *Config) { c.Log, c.Clock = logTo(&log), func() time.Duration { return now } })
	lines := func(asks ...ask) int {
		log.Reset()
		for _, a := range asks {
			mustCheck(t, s, batch(t, a))
			now += time.Second // so that equal hashes hide nothing
		}
		return strings.Count(log.String(), "\n")
	}
	if n := lines(entry("nobody", "a"), entry("nobody", "b"), entry("level", "a"), entry("nobody", "c")); n != 2 {
		t.Errorf("%d lines about two kinds:\n%s", n, log.String())
	}
	if n := lines(all(domain("x"), entry("a", "b")), all(domain("y"), entry("c", "d"))); n != 1 {
		t.Errorf("%d lines about unknown domains:\n%s", n, log.String())
	}
	now += unmatchedEvery
	if n := lines(entry("nobody", "a"), entry("nobody", "b")); n != 1 {
		t.Errorf("%d lines a minute later:\n%s", n, log.String())
	}
	long := all(domain("z"), entry("k", "v"))
	for range 60 {
		long = all(long, entry(strings.Repeat("k", 1000), "v"))
	}
	now += unmatchedEvery
	if lines(long); log.Len() > 2000 {
		t.Errorf("a line has %d bytes", log.Len())
	}
	b := batch(t, entry("nobody", "a"))
	if n := testing.AllocsPerRun(100, func() { s.unmatchedLog.log(now, "shop", &b.Checks[0], rules.UnmatchedWarn) }); n != 0 {
		t.Errorf("%v allocations between lines", n)
	}
}
