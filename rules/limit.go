package rules

import (
	"math"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/yamldoc"
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

// readLimitKey reads one key of a limit. Zero is refused where it would mean the
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
