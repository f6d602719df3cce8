package rules

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/yamldoc"
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

// has reports whether any of the keys was given.
func (l *limit) has(keys ...string) bool {
	return slices.ContainsFunc(keys, func(k string) bool { _, ok := l.fields[k]; return ok })
}

// readLimits reads rate_limit and limits into d.limits.
func (p *parser) readLimits(d *descriptor) {
	if f, ok := d.fields["rate_limit"]; ok {
		path := d.path + ".rate_limit"
		l := p.readLimit(f.Value, path, inRateLimit)
		d.limits = append(d.limits, l)
		if r, ok := l.fields["replaces"]; ok {
			d.rule.Replaces = p.readReplaces(r.Value, path+".replaces", l.name)
		}
		if l.name != "" {
			d.rule.Name = l.name
		}
	}
	f, ok := d.fields["limits"]
	if !ok {
		return
	}
	items := p.Items(f.Value, d.path+".limits")
	if len(items) == 0 && f.Value.Kind == yaml.SequenceNode {
		p.FaultAt(f.Line, d.path+".limits", "is empty; name at least one limit or leave the key out")
	}
	for i, item := range items {
		d.limits = append(d.limits, p.readLimit(item, indexed(d.path+".limits", i), inLimits))
	}
	if len(items) == 1 && len(d.limits) == 1 && d.limits[0].name != "" {
		d.rule.Name = d.limits[0].name
	}
}

func (p *parser) readReplaces(n *yaml.Node, path, self string) []string {
	var out []string
	for i, item := range p.Items(n, path) {
		at := indexed(path, i)
		var name string
		for _, f := range p.fields(item, at, inReplaces) {
			name, _ = p.String(f.Value, at+".name")
		}
		switch name {
		case "":
			p.Fault(item, at, "must name a rule")
		case self:
			p.Fault(item, at, "a rule cannot replace itself")
		default:
			out = append(out, name)
		}
	}
	return out
}

func (p *parser) readLimit(n *yaml.Node, path, mapping string) limit {
	l := limit{node: n, path: path, fields: make(map[string]yamldoc.Field)}
	if yamldoc.IsNull(n) {
		p.Fault(n, path, "must be a mapping with a limit")
		return l
	}
	fields := p.fields(n, path, mapping)
	if n.Kind != yaml.MappingNode {
		return l
	}
	for _, f := range fields {
		if !yamldoc.IsNull(f.Value) {
			l.fields[f.Name] = f
			p.readLimitKey(&l, f, path+"."+f.Name)
		}
	}
	if l.Unlimited {
		p.checkUnlimited(&l)
		return l
	}
	p.checkCount(&l)
	p.checkTime(&l)
	if l.Algorithm == 0 {
		l.Algorithm = bucket.FixedWindow
	}
	return l
}

// readLimitKey reads one key of a limit. Zero is rejected where it would mean the
// default, so that a file never says one thing and gets another.
func (p *parser) readLimitKey(l *limit, f yamldoc.Field, path string) {
	const most = math.MaxInt64
	switch f.Name {
	case "algorithm":
		l.Algorithm, _ = yamldoc.Enum(p.Reader, f.Value, path, algorithms)
	case "requests_per_unit":
		l.Count, _ = p.Int(f.Value, path, 0, math.MaxUint32)
	case "count":
		l.Count, _ = p.Int(f.Value, path, 0, most)
	case "period":
		l.Period = p.duration(f.Value, path, time.Microsecond)
	case "min_interval":
		l.MinInterval = p.duration(f.Value, path, 1)
	case "unit":
		p.readUnit(l, f, path)
	case "burst":
		l.Burst, _ = p.Int(f.Value, path, 1, most)
	case "cost":
		l.Cost, _ = p.Int(f.Value, path, 1, most)
	case "refill":
		l.Refill, _ = yamldoc.Enum(p.Reader, f.Value, path, refills)
	case "align":
		l.Align, _ = yamldoc.Enum(p.Reader, f.Value, path, aligns)
	case "timezone":
		l.Zone, _ = p.String(f.Value, path)
	case "soft":
		l.Soft = p.int32(f.Value, path, 0, 1000)
	case "count_denied":
		l.CountDenied, _ = p.Bool(f.Value, path)
	case "sub_windows":
		l.SubWindows = p.int32(f.Value, path, 2, 3600)
	case "log_entries":
		l.LogEntries = p.int32(f.Value, path, 1, 65536)
	case "unlimited":
		l.Unlimited, _ = p.Bool(f.Value, path)
	case "name":
		l.name, _ = p.String(f.Value, path)
		p.tooLong(f.Line, path, l.name)
	}
}

func (p *parser) int32(n *yaml.Node, path string, lowest, highest int64) int32 {
	v, _ := p.Int(n, path, lowest, highest)
	return int32(v)
}

func (p *parser) duration(n *yaml.Node, path string, least time.Duration) time.Duration {
	s, ok := p.String(n, path)
	if !ok {
		return 0
	}
	d, err := ParseDuration(s)
	switch {
	case err != nil:
		p.Fault(n, path, "%s", err)
	case d < least:
		p.Fault(n, path, "must be at least %s, not %s", least, s)
	}
	return d
}

// readUnit finds the unit in any case, as envoyproxy/ratelimit does.
func (p *parser) readUnit(l *limit, f yamldoc.Field, path string) {
	s, ok := p.String(f.Value, path)
	if !ok || s == "" {
		delete(l.fields, f.Name)
		return
	}
	names := make([]string, len(units))
	for i := range units {
		if strings.EqualFold(units[i].name, s) {
			l.unit = &units[i]
			return
		}
		names[i] = units[i].name
	}
	p.Fault(f.Value, path, "must be one of %s, not %s", strings.Join(names, ", "), yamldoc.Quote(s))
}

// checkUnlimited rejects keys that would limit an unlimited rule.
func (p *parser) checkUnlimited(l *limit) {
	for _, k := range limitKeys {
		switch k {
		case "unlimited", "name", "requests_per_unit":
			continue
		}
		if f, ok := l.fields[k]; ok {
			p.FaultAt(f.Line, l.path+"."+k, "a rule that is unlimited has no %s", k)
		}
	}
	l.Limit = bucket.Limit{Unlimited: true}
}

// checkCount settles the count.
func (p *parser) checkCount(l *limit) {
	given, also := l.has("count"), l.has("requests_per_unit")
	switch {
	case given && also:
		p.FaultAt(l.fields["count"].Line, l.path+".count", "is the same as requests_per_unit; give one of them")
	case given || also:
	case onlyEnvoy(l.fields):
		// envoyproxy/ratelimit loads this and blocks.
		p.warn(l.node.Line, l.path, "requests_per_unit is missing, which blocks everything; write 0 if that is meant")
	default:
		p.Fault(l.node, l.path+".count", "is missing: say how many are admitted in each period")
	}
}

func onlyEnvoy(fields map[string]yamldoc.Field) bool {
	for k := range fields {
		switch k {
		case "unit", "requests_per_unit", "unlimited", "name", "replaces":
		default:
			return false
		}
	}
	return true
}

// checkTime settles period, unit, alignment and zone.
func (p *parser) checkTime(l *limit) {
	unit, period := l.has("unit"), l.has("period")
	switch {
	case unit && period:
		p.FaultAt(l.fields["period"].Line, l.path+".period", "is given beside unit; give one of them")
		return
	case l.Align == bucket.AlignCalendar && !unit:
		p.FaultAt(l.fields["align"].Line, l.path+".align", "calendar needs unit (minute, hour, day, week, month or year) instead of period")
		return
	case !unit && !period:
		p.Fault(l.node, l.path+".unit", "is missing: give unit (second to year) or period (such as 90s or 7d)")
		return
	}
	if l.unit != nil {
		l.Period = l.unit.period
		if l.Align == bucket.AlignCalendar {
			l.Period, l.Unit = 0, l.unit.calendar
			if l.Unit == 0 {
				p.FaultAt(l.fields["unit"].Line, l.path+".unit", "the calendar has no windows of a second; leave align out")
			}
		}
	}
	if f, ok := l.fields["timezone"]; ok && l.Align != bucket.AlignCalendar {
		p.FaultAt(f.Line, l.path+".timezone", "means something with align: calendar only")
	}
}

// finish makes the rule's limits of those that were read.
func (p *parser) finish(d *descriptor) {
	p.nameLimits(d)
	for i := range d.limits {
		if d.limits[i].Unlimited {
			d.rule.Unlimited = true
			if len(d.limits) > 1 {
				p.Fault(d.limits[i].node, d.limits[i].path, "unlimited stands alone, without other limits beside it")
			}
		}
	}
	if !d.rule.Unlimited && p.Count() == d.faults {
		p.checkConsistency(d)
	}
	if d.rule.Unlimited || p.Count() > d.faults {
		return // its faults are told already
	}
	list := make([]bucket.Limit, len(d.limits))
	for i := range d.limits {
		list[i] = d.limits[i].Limit
	}
	if len(list) > bucket.MaxLimits {
		p.Fault(d.node, d.path+".limits", "has %d limits, more than the %d allowed", len(list), bucket.MaxLimits)
		return
	}
	limits, err := bucket.NewLimitsIn(d.rule.Domain, list...)
	if err != nil {
		p.faultOf(d, err)
		return
	}
	d.rule.Limits = limits
	if _, given := d.fields["replication"]; !given {
		d.rule.Replication = DefaultReplication(limits)
	}
	if _, given := d.fields["on_lost_state"]; !given {
		d.rule.OnLostState = defaultLostState(d.rule)
	}
}

// faultOf reports an error of bucket.NewLimits at the key that it is about.
func (p *parser) faultOf(d *descriptor, err error) {
	fe, ok := err.(*bucket.FieldError)
	if !ok || fe.Index < 0 || fe.Index >= len(d.limits) {
		p.Fault(d.node, d.path, "%s", err)
		return
	}
	l, field := &d.limits[fe.Index], fe.Field
	for _, other := range [][2]string{{"count", "requests_per_unit"}, {"period", "unit"}} {
		if field == other[0] && !l.has(field) && l.has(other[1]) {
			field = other[1]
		}
	}
	line := l.node.Line
	if f, ok := l.fields[field]; ok {
		line = f.Line
	}
	p.FaultAt(line, l.path+"."+field, "%s", fe.Reason)
}

// nameLimits gives every limit of the rule a name of its own.
func (p *parser) nameLimits(d *descriptor) {
	taken := make(map[string]bool, len(d.limits))
	for i := range d.limits {
		l := &d.limits[i]
		if l.name == "" {
			continue
		}
		if taken[l.name] {
			p.FaultAt(l.fields["name"].Line, l.path+".name", "%s already names another limit of this rule", yamldoc.Quote(l.name))
		}
		taken[l.name] = true
	}
	d.rule.limitNames = make([]string, len(d.limits))
	for i := range d.limits {
		name := d.limits[i].name
		if name == "" {
			name = d.rule.Name
			if i > 0 {
				name = fmt.Sprintf("%s#%d", d.rule.Name, i+1)
			}
		}
		d.rule.limitNames[i] = name
	}
}

// indexed appends a list index to a path.
func indexed(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }
