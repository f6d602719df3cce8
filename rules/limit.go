package rules

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/yamldoc"
	"go.yaml.in/yaml/v3"
)

// limit is one limit while it is read.
type limit struct {
	bucket.Limit
	node *yaml.Node
	path string
	name string
	// fields are the keys that were given.
	fields map[string]yamldoc.Field
	unit   *unit
}

func (l *limit) has(key string) bool { _, ok := l.fields[key]; return ok }

// readLimits reads rate_limit and limits into d.limits.
func (p *parser) readLimits(d *descriptor) {
	name, named := d.fields["name"]
	own := ""
	if named {
		p.text(&own)(name)
		p.tooLong(name, own)
	}
	if f, ok := d.fields["rate_limit"]; ok {
		l := p.readLimit(f, inRateLimit)
		d.limits = append(d.limits, l)
		if r, ok := l.fields["replaces"]; ok {
			d.rule.Replaces = p.readReplaces(r, own, l.name)
		}
		if l.name != "" {
			d.rule.Name = l.name
		}
	}
	if f, ok := d.fields["limits"]; ok {
		for _, item := range p.items(f, math.MaxInt, "", "name at least one limit or leave the key out") {
			d.limits = append(d.limits, p.readLimit(item, inLimits))
		}
		if len(d.limits) == 1 && d.limits[0].name != "" {
			d.rule.Name = d.limits[0].name
		}
	}
	d.rule.Name = cmp.Or(own, d.rule.Name)
	if named && len(d.limits) == 0 {
		p.warn(name.Line, name.Path, "has no effect without limits beside it")
	}
}

func (p *parser) readReplaces(list yamldoc.Field, self ...string) []string {
	var out []string
	for _, item := range p.items(list, math.MaxInt, "", "") {
		name := ""
		p.read(item.Value, item.Path, inReplaces, keys{"name": p.text(&name)})
		switch {
		case name == "":
			p.reject(item, "must name a rule")
		case slices.Contains(self, name):
			p.reject(item, "a rule cannot replace itself")
		default:
			out = append(out, name)
		}
	}
	return out
}

// short returns the limit at, 5/1m or 1000/day, as the mapping that it stands for, nil after an error.
func (p *parser) short(at yamldoc.Field) *yaml.Node {
	count, period, ok := strings.Cut(at.Value.Value, "/")
	if !ok {
		p.reject(at, "must be a mapping, or a count and a period such as 5/1m or 1000/day, not %s", yamldoc.Quote(at.Value.Value))
		return nil
	}
	mapping := &yaml.Node{Kind: yaml.MappingNode, Line: at.Line}
	for _, text := range []string{"count", count, "period", period} {
		mapping.Content = append(mapping.Content, &yaml.Node{Kind: yaml.ScalarNode, Value: strings.TrimSpace(text), Line: at.Line})
	}
	return mapping
}

// readLimit reads one limit. Zero is rejected where it would mean the default, so that a file never says one thing and
// gets another.
func (p *parser) readLimit(at yamldoc.Field, mapping string) limit {
	l := limit{node: at.Value, path: at.Path}
	if yamldoc.IsNull(at.Value) {
		p.Errorf(at.Value, at.Path, "must be a mapping with a limit")
		return l
	}
	if mapping == inLimits && at.Value.Kind == yaml.ScalarNode {
		if at.Value = p.short(at); at.Value == nil {
			return l
		}
		l.node = at.Value
	}
	const most = math.MaxInt64
	l.fields = p.read(at.Value, at.Path, mapping, keys{
		"algorithm":         enum(p, &l.Algorithm, algorithms),
		"requests_per_unit": number(p, &l.Count, 0, math.MaxUint32),
		"count":             number(p, &l.Count, 0, most),
		"period":            func(f yamldoc.Field) { p.readPeriod(&l, f) },
		"min_interval":      p.duration(&l.MinInterval, 1),
		"block_for":         p.duration(&l.BlockFor, 1),
		"unit":              func(f yamldoc.Field) { l.unit = p.readUnit(f) },
		"burst":             number(p, &l.Burst, 1, most),
		"weight":            number(p, &l.Cost, 1, most),
		"refill":            enum(p, &l.Refill, refills),
		"align":             enum(p, &l.Align, aligns),
		"timezone":          p.text(&l.Zone),
		"soft":              percent(p, &l.Soft, 1000),
		"count_denied":      p.boolean(&l.CountDenied),
		"sub_windows":       number(p, &l.SubWindows, 2, 3600),
		"log_entries":       number(p, &l.LogEntries, 1, 65536),
		"unlimited":         p.boolean(&l.Unlimited),
		"name":              p.text(&l.name),
	})
	if at.Value.Kind != yaml.MappingNode {
		return l
	}
	p.tooLong(l.fields["name"], l.name)
	if l.fields["unit"].Value != nil && l.fields["unit"].Value.Value == "" {
		delete(l.fields, "unit")
	}
	if l.Unlimited {
		p.checkUnlimited(&l)
		return l
	}
	p.checkCount(&l)
	p.checkTime(&l)
	p.checkLog(&l)
	if l.Algorithm == 0 {
		l.Algorithm = bucket.FixedWindow
	}
	return l
}

// readUnit finds the unit in any case, as envoyproxy/ratelimit does. An empty one is as good as none.
func (p *parser) readUnit(f yamldoc.Field) *unit {
	s, ok := p.String(f.Value, f.Path)
	if !ok || s == "" {
		return nil
	}
	if u := unitOf(s); u != nil {
		return u
	}
	var names []string
	for i := range units {
		names = append(names, units[i].name)
	}
	p.Errorf(f.Value, f.Path, "must be one of %s, not %s%s", strings.Join(names, ", "), yamldoc.Quote(s), yamldoc.Suggest(s, names))
	return nil
}

// readPeriod reads a duration, or the name of a unit.
func (p *parser) readPeriod(l *limit, f yamldoc.Field) {
	if l.unit = unitOf(f.Value.Value); l.unit == nil {
		p.duration(&l.Period, time.Microsecond)(f)
	}
}

// unitOf returns the unit of that name, nil if there is none.
func unitOf(name string) *unit {
	for i := range units {
		if strings.EqualFold(units[i].name, name) {
			return &units[i]
		}
	}
	return nil
}

// checkUnlimited rejects keys that would limit an unlimited rule.
func (p *parser) checkUnlimited(l *limit) {
	for _, k := range limitKeys {
		if l.has(k) && k != "unlimited" && k != "name" && k != "requests_per_unit" {
			p.reject(l.fields[k], "a rule that is unlimited has no %s", k)
		}
	}
	l.Limit = bucket.Limit{Unlimited: true}
}

// checkCount checks that the count is given, once.
func (p *parser) checkCount(l *limit) {
	switch given, also := l.has("count"), l.has("requests_per_unit"); {
	case given && also:
		p.reject(l.fields["count"], "is the same as requests_per_unit; give one of them")
	case given || also:
	case onlyEnvoy(l.fields):
		// envoyproxy/ratelimit loads this and blocks.
		p.warn(l.node.Line, l.path, "requests_per_unit is missing, which blocks everything; write 0 if that is meant")
	case l.Algorithm == bucket.Concurrency:
		p.Errorf(l.node, l.path+".count", "is missing: say how many may be in use at a time")
	default:
		p.Errorf(l.node, l.path+".count", "is missing: say how many are admitted in each period")
	}
}

func onlyEnvoy(fields map[string]yamldoc.Field) bool {
	for k := range fields {
		if !slices.Contains(envoyKeys, k) {
			return false
		}
	}
	return true
}

// checkLog warns of a log that is too short for the count.
func (p *parser) checkLog(l *limit) {
	if l.Period <= 0 || l.LogError() == 0 {
		return
	}
	p.warn(l.node.Line, l.path, "count is above log_entries: a check may count %s longer than the period; use sliding_window, or more log_entries",
		l.LogError().Round(time.Microsecond))
}

// checkTime checks burst, period, unit, alignment and zone together, and sets the period.
func (p *parser) checkTime(l *limit) {
	unit, period := l.has("unit"), l.has("period")
	switch f, ok := l.fields["burst"]; {
	case l.Algorithm == bucket.Concurrency:
		for _, key := range []string{"period", "unit"} {
			if f, ok := l.fields[key]; ok {
				p.reject(f, "is not for concurrency, which counts what is in use now; leave it out")
			}
		}
		return
	case unit && period:
		p.reject(l.fields["period"], "is given beside unit; give one of them")
		return
	case l.Align == bucket.AlignCalendar && l.unit == nil && l.Period > 0:
		p.reject(l.fields["align"], "calendar needs a period of minute, hour, day, week, month or year")
		return
	case !unit && !period:
		p.Errorf(l.node, l.path+".period", "is missing: give a time such as 90s, 7d or day")
		return
	case ok && !slices.Contains([]bucket.Algorithm{bucket.TokenBucket, bucket.LeakyBucket, bucket.LeakyQueue}, l.Algorithm):
		p.reject(f, "needs algorithm: token_bucket or leaky_bucket")
	}
	if l.unit != nil {
		l.Period = l.unit.period
		if l.Align == bucket.AlignCalendar {
			l.Period, l.Unit = 0, l.unit.calendar
			if l.Unit == 0 {
				p.reject(cmp.Or(l.fields["unit"], l.fields["period"]), "the calendar has no windows of a second; leave align out")
			}
		}
	}
	if f, ok := l.fields["timezone"]; ok && l.Align != bucket.AlignCalendar {
		p.reject(f, "means something with align: calendar only")
	}
}

// finish makes the rule's limits from those that were read.
func (p *parser) finish(d *descriptor) {
	p.nameLimits(d)
	list := make([]bucket.Limit, len(d.limits))
	for i := range d.limits {
		l := &d.limits[i]
		list[i] = l.Limit
		if l.Unlimited {
			d.rule.Unlimited = true
			if len(d.limits) > 1 {
				p.Errorf(l.node, l.path, "unlimited stands alone, without other limits beside it")
			}
		}
	}
	if !d.rule.Unlimited && p.Count() == d.errors {
		p.checkConsistency(d)
	}
	if d.rule.Unlimited || p.Count() > d.errors {
		return
	}
	if len(list) > bucket.MaxLimits {
		p.Errorf(d.node, d.path+".limits", "has %d limits, more than the %d allowed", len(list), bucket.MaxLimits)
		return
	}
	limits, err := bucket.NewLimitsAt(d.rule.Domain, d.rule.Home, list...)
	if err != nil {
		p.rejectLimits(d, err)
		return
	}
	d.rule.Limits = limits
	p.warnOfForwarding(d)
	if _, given := d.fields["replication"]; !given {
		d.rule.Replication = DefaultReplication(limits)
	}
	if _, given := d.fields["on_lost_state"]; !given {
		d.rule.OnLostState = defaultLostState(d.rule)
	}
}

// rejectLimits reports an error of bucket.NewLimits at the key that it is about.
func (p *parser) rejectLimits(d *descriptor, err error) {
	fe, ok := err.(*bucket.FieldError)
	if !ok || fe.Index < 0 || fe.Index >= len(d.limits) {
		p.Errorf(d.node, d.path, "%s", err)
		return
	}
	l, field := &d.limits[fe.Index], fe.Field
	if other := map[string]string{"count": "requests_per_unit", "period": "unit", "cost": "weight"}[field]; !l.has(field) && l.has(other) {
		field = other
	}
	line := l.node.Line
	if f, ok := l.fields[field]; ok {
		line = f.Line
	}
	p.ErrorfAt(line, l.path+"."+field, "%s", fe.Reason)
}

// nameLimits gives every limit of the rule a name of its own.
func (p *parser) nameLimits(d *descriptor) {
	taken := make(map[string]bool, len(d.limits))
	for i := range d.limits {
		l, name := &d.limits[i], d.rule.Name
		switch {
		case l.name != "":
			if taken[l.name] {
				p.reject(l.fields["name"], "%s already names another limit of this rule", yamldoc.Quote(l.name))
			}
			name = l.name
			taken[name] = true
		case i > 0:
			name = fmt.Sprintf("%s#%d", name, i+1)
		}
		d.rule.limitNames = append(d.rule.limitNames, name)
	}
}
