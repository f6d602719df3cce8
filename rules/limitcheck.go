package rules

import (
	"fmt"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/yamldoc"
)

// checkUnlimited refuses keys that would limit an unlimited rule.
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
