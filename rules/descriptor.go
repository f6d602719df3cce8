package rules

import (
	"maps"
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/internal/yamldoc"
	"go.yaml.in/yaml/v3"
)

// branch is where in the tree descriptors are read to.
type branch struct {
	path   string
	to     *node
	levels []level
}

// descriptor is one item of descriptors while it is read.
type descriptor struct {
	node   *yaml.Node
	path   string
	level  level
	rule   *Rule
	fields map[string]yamldoc.Field
	limits []limit
	// estimate is that of reservation.
	estimate yamldoc.Field
	// errors is how many there were before the descriptor.
	errors int
}

func (p *parser) readDescriptors(list *yaml.Node, b branch) {
	if len(b.levels) == MaxDepth {
		p.Errorf(list, "", "descriptors are nested deeper than the %d levels allowed", MaxDepth)
		return
	}
	// In envoyproxy/ratelimit key a with value b and key a_b are one name.
	names := make(map[string]*node)
	for e, n := range b.to.exact {
		names[e.Key+"_"+e.Value] = n
	}
	maps.Copy(names, b.to.byKey)
	path := yamldoc.Join(b.path, "descriptors")
	for i, item := range p.Items(list, path) {
		p.readDescriptor(item, indexed(path, i), b, names)
	}
}

func (p *parser) readDescriptor(item *yaml.Node, path string, b branch, names map[string]*node) {
	if item.Kind != yaml.MappingNode {
		p.Errorf(item, path, "every item of descriptors must be a mapping with a key")
		return
	}
	d := &descriptor{node: item, path: path, errors: p.Count()}
	d.fields = p.read(item, path, inDescriptor, keys{"key": p.text(&d.level.entry.Key), "value": p.text(&d.level.entry.Value)})
	p.checkEntryKey(d, b)
	p.warnOfLiteral(d.fields["value"], d.level.entry.Key, d.level.entry.Value)
	to := p.place(d, b, names)

	d.rule = &Rule{Domain: p.domain.name, Path: d.path, Name: d.path, File: p.file, Line: item.Line}
	p.readLevel(d)
	levels := append(slices.Clip(b.levels), d.level)
	to.rule = p.readRule(d, levels)
	below := branch{path: d.path, to: to, levels: levels}
	if f, ok := d.fields["descriptors"]; ok {
		p.readDescriptors(f.Value, below)
	}
	if f, ok := d.fields["otherwise"]; ok {
		p.readOtherwise(f, below)
	}
}

// readRule reads the limits of d and what it says about them. It returns nil if d has no limits.
func (p *parser) readRule(d *descriptor, levels []level) *Rule {
	p.readLimits(d)
	p.readOptions(d)
	if len(d.limits) == 0 {
		return nil
	}
	d.rule.levels = levels
	p.finish(d)
	p.checkReservation(d)
	p.set.rules = append(p.set.rules, d.rule)
	return d.rule
}

// readOtherwise reads the rule of the descriptors that reach b and match no rule there.
func (p *parser) readOtherwise(f yamldoc.Field, b branch) {
	path := yamldoc.Join(b.path, "otherwise")
	d := &descriptor{node: f.Value, path: path, errors: p.Count()}
	d.rule = &Rule{Domain: p.domain.name, Path: path, Name: path, File: p.file, Line: f.Line, Otherwise: true}
	d.fields = p.read(f.Value, path, inOtherwise, nil)
	if other := b.to.otherwise; other != nil {
		p.ErrorfAt(f.Line, path, "the level has one already, at %s:%d", other.File, other.Line)
	}
	b.to.otherwise = p.readRule(d, b.levels)
	if len(d.limits) == 0 && p.Count() == d.errors {
		p.ErrorfAt(f.Line, path+".limits", "is missing: give limits to descriptors that match nothing else")
	}
}

// checkEntryKey checks the key, and names the descriptor and its fields by key and value from here on.
func (p *parser) checkEntryKey(d *descriptor, b branch) {
	entry := d.level.entry
	if entry.Key == "" {
		p.Errorf(d.node, d.path+".key", "a descriptor must have a key, which may not be empty")
		return
	}
	d.path = b.path + "/" + written(Entry{shorten(entry.Key), shorten(entry.Value)})
	for name, f := range d.fields {
		f.Path = d.path + "." + name
		d.fields[name] = f
	}
	key := d.fields["key"]
	p.tooLong(key, entry.Key)
	if strings.Contains(entry.Key, "*") {
		p.warn(key.Line, key.Path, "* is a wildcard in value only; in key it stands for itself")
	}
}

// shorten keeps paths readable whatever keys and values hold.
func shorten(s string) string {
	const most = 80
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// place puts the descriptor in the tree and returns its node there.
func (p *parser) place(d *descriptor, b branch, names map[string]*node) *node {
	to := &node{entry: d.level.entry, file: p.file, line: d.node.Line}
	if to.entry.Key == "" {
		return to // rejected above
	}
	name := to.entry.Key
	if to.entry.Value != "" {
		name += "_" + to.entry.Value
	}
	other := names[name]
	switch {
	case other == nil:
		names[name] = to
		b.to.add(to)
	case other.entry == to.entry:
		p.Errorf(d.node, d.path, "the same key and value are already at %s:%d", other.file, other.line)
	default:
		p.Errorf(d.node, d.path, "cannot be told from %s=%s at %s:%d where keys and values are joined by _; rename one",
			shorten(other.entry.Key), shorten(other.entry.Value), other.file, other.line)
	}
	return to
}

// add makes child a child.
func (n *node) add(child *node) {
	key := child.entry.Key
	if child.entry.Value == "" {
		if n.byKey == nil {
			n.byKey = make(map[string]*node)
		}
		n.byKey[key] = child
		return
	}
	if n.exact == nil {
		n.exact = make(map[Entry]*node)
	}
	n.exact[child.entry] = child
	if strings.Contains(child.entry.Value, "*") {
		if n.wild == nil {
			n.wild = make(map[string][]wildcard)
		}
		n.wild[key] = append(n.wild[key], newWildcard(child.entry.Value, child))
	}
}

// anyValue reports whether many values match the entry of a rule file: it has none, or a pattern.
func (e Entry) anyValue() bool { return e.Value == "" || strings.Contains(e.Value, "*") }

// readLevel reads what a descriptor says about its own entry, which also holds for the rules below it.
func (p *parser) readLevel(d *descriptor) {
	l, value := &d.level, shorten(d.level.entry.Value)
	l.valueToMetric = p.flag(d, "value_to_metric")
	l.shared = p.flag(d, "share_threshold")
	if l.shared && !strings.Contains(l.entry.Value, "*") {
		p.reject(d.fields["share_threshold"], "needs a * in value: it gives all values of a pattern one counter")
	}
	if p.flag(d, "redact") {
		switch f := d.fields["redact"]; {
		case !l.entry.anyValue():
			p.reject(f, "needs a descriptor that many values match: value %s stands in this file for everybody to read", value)
		case l.shared:
			p.reject(f, "excludes share_threshold, which shows the pattern and no value")
		}
		p.domain.private[l.entry.Key] = true
	}
	if f, ok := d.fields["ip_prefix"]; ok {
		switch {
		case !l.entry.anyValue():
			p.reject(f, "needs a descriptor that many values match, not value %s", value)
		case l.shared:
			p.reject(f, "excludes share_threshold, which gives all values one counter already")
		}
		l.prefix = &IPPrefix{V4: 32, V6: 128}
		p.read(f.Value, f.Path, inIPPrefix, keys{"v4": number(p, &l.prefix.V4, 1, 32), "v6": number(p, &l.prefix.V6, 1, 128)})
	}
}

// AppendMetric appends the name that metrics count the descriptor under: the rule's path, in which levels with
// value_to_metric, and all levels under detailed_metric, show the value of the descriptor as show appends it; a nil show
// is AppendValue. A pattern that shares one counter always shows as the pattern. Names are for people; they are not keys.
func (r *Rule) AppendMetric(dst []byte, descriptor []Entry, show func(dst []byte, i int, e Entry) []byte) []byte {
	dst = append(dst, r.Domain...)
	for i := range r.levels {
		l := &r.levels[i]
		dst = append(append(dst, '/'), l.entry.Key...)
		shown := i < len(descriptor) && !l.shared && (r.DetailedMetric || l.valueToMetric)
		switch {
		case !shown && l.entry.Value != "":
			dst = append(append(dst, '='), l.entry.Value...)
		case !shown || descriptor[i].Value == "":
		case show == nil:
			dst = r.AppendValue(append(dst, '='), i, descriptor[i].Value)
		default:
			dst = show(append(dst, '='), i, descriptor[i])
		}
	}
	if r.Otherwise {
		dst = append(dst, ".otherwise"...)
	}
	return dst
}

// PerValueMetric reports whether AppendMetric depends on the descriptor, so that one rule has a name per distinct value.
func (r *Rule) PerValueMetric() bool {
	for i := range r.levels {
		if l := &r.levels[i]; l.entry.anyValue() && !l.shared && (r.DetailedMetric || l.valueToMetric) {
			return true
		}
	}
	return false
}
