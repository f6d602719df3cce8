package local

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/sluicecluster/sluice/client/limit"
	_ "github.com/sluicecluster/sluice/test/seeded"
)

// sets are the limits of a scenario: of four rules, and three that come with checks. They stay as they are: a table may drop a free
// counter, and what that remembers of former limits, in one of the two limiters and not in the other.
type sets [7][]limit.Limit

var genScenario = rapid.Custom(func(t *rapid.T) scenario {
	var all sets
	for i := range all {
		all[i] = rapid.SliceOfN(genLimit, 1, 3).Draw(t, "limits")
	}
	switch own := all[len(all)-1]; rapid.IntRange(0, 6).Draw(t, "odd limit") {
	case 4:
		own[0].Count = -1
	case 5:
		own[0] = limit.Limit{Unlimited: true}
	case 6:
		own[0] = limit.Limit{Algorithm: limit.SlidingLog, Count: 1, Period: time.Second, LogEntries: 5000}
	}
	return scenario{
		rules:        genRules(t, &all),
		knownDomains: rapid.Bool().Draw(t, "known domains only"),
		start:        time.Duration(rapid.Int64Range(0, 864e11).Draw(t, "start")),
		steps:        rapid.SliceOfN(genStep(&all), 15, 40).Draw(t, "steps"),
	}
})

func genStep(all *sets) *rapid.Generator[step] {
	return rapid.Custom(func(t *rapid.T) (s step) {
		if rapid.IntRange(0, 2).Draw(t, "later") == 2 {
			s.sleep = time.Duration(rapid.SampledFrom([]int64{1, 1e6, 3e8, 1e9, 1e9 + 1, 7e9, 59e9, 6e10, 36e11, 864e11}).Draw(t, "sleep"))
		}
		if rapid.IntRange(0, 9).Draw(t, "reload") == 9 {
			s.rules = genRules(t, all)
		}
		s.atomic = rapid.IntRange(0, 2).Draw(t, "atomic") == 2
		s.checks = rapid.SliceOfN(genCheck(all, s.atomic), 1, 4).Draw(t, "checks")
		if c := &s.checks[0]; len(s.checks) == 1 && (c.Verb == limit.VerbCharge || c.Verb == limit.VerbRefund) {
			c.IdempotencyKey = rapid.SampledFrom([]string{"", "a", "b"}).Draw(t, "idempotency key")
		}
		return s
	})
}

// genRules draws the rule file of the domain shop, with the limits of all.
func genRules(t *rapid.T, all *sets) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: shop\nunmatched: %s\ndescriptors:\n", rapid.SampledFrom([]string{"allow", "warn", "deny"}).Draw(t, "unmatched"))
	for i, head := range []string{
		"  - key: user\n",
		"  - key: path\n    value: /a/*\n    share_threshold: true\n",
		"  - key: ip\n    ip_prefix: {v4: 24}\n    redact: true\n",
		"  - key: free\n    descriptors:\n      - key: user\n",
	} {
		b.WriteString(head)
		genRule(t, &b, strings.Repeat(" ", 4+4*(i/3)), all[i])
	}
	b.WriteString("  - key: open\n    limits: [{unlimited: true}]\n")
	return b.String()
}

// genRule draws the options of a rule.
func genRule(t *rapid.T, b *strings.Builder, indent string, limits []limit.Limit) {
	line := func(format string, args ...any) { fmt.Fprintf(b, indent+format+"\n", args...) }
	if rapid.Bool().Draw(t, "name") {
		line("name: rule-%d", b.Len())
	}
	if rapid.IntRange(0, 3).Draw(t, "shadow") == 3 {
		line("shadow_mode: true")
	}
	if rapid.IntRange(0, 2).Draw(t, "response") == 2 {
		line("response: {status: 503, body: later, headers: {X-Why: many}}")
	}
	line("limits:")
	for _, l := range limits {
		line("  - {%s}", yamlOf(l))
	}
}

// yamlOf returns the limit as rule files spell it.
func yamlOf(l limit.Limit) string {
	parts := []string{fmt.Sprintf("count: %d", l.Count)}
	field := func(name string, value any, is bool) {
		if is {
			parts = append(parts, fmt.Sprintf("%s: %v", name, value))
		}
	}
	calendar := l.Align == limit.AlignCalendar
	field("algorithm", l.Algorithm, l.Algorithm != 0)
	field("refill", l.Refill, l.Refill != 0)
	field("align", l.Align, l.Align != 0)
	field("period", l.Period, !calendar)
	field("period", l.Unit, calendar)
	field("timezone", l.TimeZone, calendar)
	field("burst", l.Burst, l.Burst > 0)
	field("weight", l.Weight, l.Weight > 0)
	field("soft", fmt.Sprintf("%d%%", l.SoftPercent), l.SoftPercent > 0)
	field("min_interval", l.MinInterval, l.MinInterval > 0)
	field("block_for", l.BlockFor, l.BlockFor > 0)
	field("count_denied", true, l.CountDenied)
	field("sub_windows", l.SubWindows, l.SubWindows > 0)
	field("log_entries", l.LogEntries, l.LogEntries > 0)
	return strings.Join(parts, ", ")
}

var genLimit = rapid.Custom(func(t *rapid.T) limit.Limit {
	l := limit.Limit{
		Algorithm: rapid.SampledFrom([]limit.Algorithm{0, 1, 2, 3, 3, 4, 5, 6, 7}).Draw(t, "algorithm"),
		Count:     rapid.SampledFrom([]int64{3, 1, 2, 3, 4, 5, 8, 8, 20, 0}).Draw(t, "count"),
		Period:    rapid.SampledFrom([]time.Duration{time.Second, 10 * time.Second, time.Minute, time.Hour}).Draw(t, "period"),
	}
	some := func(name string) bool { return rapid.IntRange(0, 3).Draw(t, name) == 3 }
	switch l.Algorithm {
	case limit.TokenBucket, limit.LeakyBucket, limit.LeakyQueue:
		if some("burst") && l.Count > 0 {
			l.Burst = rapid.Int64Range(1, 12).Draw(t, "units")
		}
		if l.Algorithm == limit.TokenBucket && some("steps") {
			l.Refill = limit.RefillInterval
		}
	case limit.SlidingWindow:
		l.SubWindows = rapid.SampledFrom([]int32{0, 2, 10}).Draw(t, "sub-windows")
	case limit.SlidingLog:
		l.LogEntries = rapid.SampledFrom([]int32{0, 4}).Draw(t, "log")
	case 0, limit.FixedWindow:
		if some("calendar") {
			l.Align, l.Unit, l.TimeZone, l.Period = limit.AlignCalendar, limit.Unit(rapid.IntRange(1, int(limit.UnitYear)).Draw(t, "unit")), "Europe/Berlin", 0
		} else if some("first hit") {
			l.Align = limit.AlignFirstHit
		}
	}
	if some("weight") {
		l.Weight = rapid.Int64Range(1, 3).Draw(t, "units of one")
	}
	if rapid.Bool().Draw(t, "soft") {
		l.SoftPercent = rapid.SampledFrom([]int32{100, 10}).Draw(t, "percent")
	}
	switch rapid.IntRange(0, 7).Draw(t, "gap") {
	case 6:
		l.MinInterval = 2 * time.Second
	case 7:
		l.BlockFor = 30 * time.Second
	}
	l.CountDenied = some("count denied")
	return l
})

// genCheck draws a check, for a batch if atomic.
func genCheck(all *sets, atomic bool) *rapid.Generator[limit.Check] {
	verbs := []limit.Verb{limit.VerbCheck, limit.VerbCheck, limit.VerbCheck, limit.VerbRead, limit.VerbCharge, limit.VerbRefund, limit.VerbReset}
	if atomic {
		verbs = verbs[:4]
	}
	user := rapid.SampledFrom([]string{"ann", "bob"})
	return rapid.Custom(func(t *rapid.T) limit.Check {
		c := limit.Check{
			Domain: rapid.SampledFrom(append(slices.Repeat([]string{"shop"}, 11), "other")).Draw(t, "domain"),
			Verb:   rapid.SampledFrom(verbs).Draw(t, "verb"),
			Amount: rapid.SampledFrom([]int64{1, 1, 1, 1, 1, 1, 2, 3, 0, 30}).Draw(t, "amount"),
		}
		switch rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, 1, 2, 2, 3, 3, 4, 5, 6, 6}).Draw(t, "descriptor") {
		case 0:
			c.Descriptor = []limit.Entry{{Key: "user", Value: user.Draw(t, "user")}}
		case 1:
			c.Descriptor = []limit.Entry{{Key: "path", Value: rapid.SampledFrom([]string{"/a/1", "/a/2", "/b"}).Draw(t, "path")}}
		case 2:
			c.Descriptor = []limit.Entry{{Key: "ip", Value: rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.9", "none", strings.Repeat("x", 2000)}).Draw(t, "ip")}}
		case 3:
			c.Descriptor = []limit.Entry{{Key: "free", Value: "yes"}, {Key: "user", Value: user.Draw(t, "user")}}
		case 4:
			c.Descriptor = []limit.Entry{{Key: "open", Value: "yes"}}
		case 5:
			c.Descriptor = []limit.Entry{{Key: "nothing", Value: "of it"}}
		case 6:
			set := rapid.IntRange(4, len(all)-1).Draw(t, "own limits")
			c.Descriptor, c.Limits = []limit.Entry{{Key: "user", Value: fmt.Sprint(set)}}, all[set]
		}
		return c
	})
}
