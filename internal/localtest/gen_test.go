package localtest

import (
	"fmt"
	"strings"
	"time"

	"pgregory.net/rapid"

	"github.com/sluice-project/sluice/client/limit"
)

// gap is what all limits of a scenario have. After a change of limits, a counter of former limits with a min_interval or a
// block_for knows when the key was last used, and no counter, which a table may have instead of a free one, does not.
type gap int

const (
	noGap gap = iota
	minInterval
	blockFor
	gaps
)

var genScenario = rapid.Custom(func(t *rapid.T) scenario {
	g := gap(rapid.IntRange(0, int(gaps)-1).Draw(t, "gap"))
	return scenario{
		rules:        genRules(t, g),
		knownDomains: rapid.Bool().Draw(t, "known domains only"),
		start:        time.Duration(rapid.Int64Range(0, 864e11).Draw(t, "start")),
		steps:        rapid.SliceOfN(genStep(g), 15, 40).Draw(t, "steps"),
	}
})

func genStep(g gap) *rapid.Generator[step] {
	return rapid.Custom(func(t *rapid.T) (s step) {
		if rapid.IntRange(0, 2).Draw(t, "later") == 2 {
			s.sleep = time.Duration(rapid.SampledFrom([]int64{1, 1e6, 3e8, 1e9, 1e9 + 1, 7e9, 59e9, 6e10, 36e11, 864e11}).Draw(t, "sleep"))
		}
		if rapid.IntRange(0, 9).Draw(t, "reload") == 9 {
			s.rules = genRules(t, g)
		}
		s.atomic = rapid.IntRange(0, 2).Draw(t, "atomic") == 2
		s.checks = rapid.SliceOfN(genCheck(s.atomic, g), 1, 4).Draw(t, "checks")
		return s
	})
}

// genRules draws the rule file of the domain shop.
func genRules(t *rapid.T, g gap) string {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: shop\nunmatched: %s\n", rapid.SampledFrom([]string{"allow", "warn", "deny"}).Draw(t, "unmatched"))
	fmt.Fprintf(&b, "pools:\n  spare:\n    limit: {count: %d, period: 1m}\n    reserves: {high: 0, low: 50%%}\n", rapid.IntRange(4, 20).Draw(t, "pool"))
	if rapid.Bool().Draw(t, "load") {
		b.WriteString("    load: {shrink_to: 10%, unreported: 40%}\n")
	}
	b.WriteString("descriptors:\n")
	for _, key := range []string{"user", "path", "ip"} {
		fmt.Fprintf(&b, "  - key: %s\n", key)
		switch key {
		case "path":
			b.WriteString("    value: /a/*\n    share_threshold: true\n")
		case "ip":
			b.WriteString("    ip_prefix: {v4: 24}\n    redact: true\n")
		}
		genRule(t, &b, "    ", g)
	}
	b.WriteString("  - key: tier\n    value: free\n    descriptors:\n      - key: user\n")
	genRule(t, &b, "        ", g)
	b.WriteString("  - key: open\n    limits: [{unlimited: true}]\n")
	return b.String()
}

// genRule draws the limits and the options of one descriptor.
func genRule(t *rapid.T, b *strings.Builder, indent string, g gap) {
	line := func(format string, args ...any) { fmt.Fprintf(b, indent+format+"\n", args...) }
	if rapid.Bool().Draw(t, "name") {
		line("name: rule-%d", b.Len())
	}
	if rapid.IntRange(0, 3).Draw(t, "shadow") == 3 {
		line("shadow_mode: true")
	}
	elastic := g == noGap && rapid.Bool().Draw(t, "elastic")
	if elastic {
		line("elastic: {pool: spare, priority: %s}", rapid.SampledFrom([]string{"high", "low"}).Draw(t, "priority"))
	}
	if rapid.IntRange(0, 2).Draw(t, "response") == 2 {
		line("response: {status: 503, body: later, headers: {X-Why: many}}")
	}
	line("limits:")
	for range rapid.IntRange(1, 3).Draw(t, "limits") {
		l := genLimit(g).Draw(t, "limit")
		if elastic { // which excludes them
			l.CountDenied = false
			if l.Algorithm == limit.LeakyQueue {
				l.Algorithm = limit.LeakyBucket
			}
		}
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

func genLimit(g gap) *rapid.Generator[limit.Limit] {
	return rapid.Custom(func(t *rapid.T) limit.Limit {
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
		switch g {
		case minInterval:
			l.MinInterval = 2 * time.Second
		case blockFor:
			l.BlockFor = 30 * time.Second
		}
		l.CountDenied = some("count denied")
		return l
	})
}

// genCheck draws a check, for a batch if atomic.
func genCheck(atomic bool, g gap) *rapid.Generator[limit.Check] {
	verbs := []limit.Verb{limit.VerbCheck, limit.VerbCheck, limit.VerbCheck, limit.VerbRead, limit.VerbCharge, limit.VerbRefund, limit.VerbReset}
	if atomic {
		verbs = verbs[:4]
	}
	names := []string{"ann", "bob"}
	return rapid.Custom(func(t *rapid.T) limit.Check {
		c := limit.Check{
			Domain: rapid.SampledFrom([]string{"shop", "shop", "shop", "shop", "shop", "shop", "shop", "shop", "shop", "shop", "shop", "other"}).Draw(t, "domain"),
			Verb:   rapid.SampledFrom(verbs).Draw(t, "verb"),
			Amount: rapid.SampledFrom([]int64{1, 1, 1, 1, 1, 1, 2, 3, 0, 30}).Draw(t, "amount"),
		}
		switch rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 3, 3, 4, 4, 5, 5, 6, 7, 8, 8}).Draw(t, "descriptor") {
		case 0:
			c.Descriptor = []limit.Entry{{Key: "user", Value: rapid.SampledFrom(names).Draw(t, "user")}}
		case 3:
			c.Descriptor = []limit.Entry{{Key: "path", Value: rapid.SampledFrom([]string{"/a/1", "/a/2", "/b"}).Draw(t, "path")}}
		case 4:
			c.Descriptor = []limit.Entry{{Key: "ip", Value: rapid.SampledFrom([]string{"10.0.0.1", "10.0.0.9", "none", strings.Repeat("x", 2000)}).Draw(t, "ip")}}
		case 5:
			c.Descriptor = []limit.Entry{{Key: "tier", Value: "free"}, {Key: "user", Value: rapid.SampledFrom(names).Draw(t, "user")}}
		case 6:
			c.Descriptor = []limit.Entry{{Key: "open", Value: "yes"}}
		case 7:
			c.Descriptor = []limit.Entry{{Key: "nothing", Value: "of it"}}
		case 8:
			c.Descriptor = []limit.Entry{{Key: "user", Value: "ann"}}
			c.Limits = rapid.SliceOfN(genLimit(g), 1, 3).Draw(t, "limits")
			switch rapid.IntRange(0, 9).Draw(t, "odd limit") {
			case 0:
				c.Limits[0].Count = -1
			case 1:
				c.Limits[0] = limit.Limit{Unlimited: true}
			case 2:
				c.Limits[0] = limit.Limit{Algorithm: limit.SlidingLog, Count: 1, Period: time.Second, LogEntries: 5000}
			}
		}
		return c
	})
}
