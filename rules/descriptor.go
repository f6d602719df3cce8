package rules

import (
	"slices"
	"strings"

	"github.com/sluice-project/sluice/internal/yamldoc"
	"go.yaml.in/yaml/v3"
)

// branch is where in the tree descriptors are read to.
type branch struct {
	domain, path string
	to           *node
	levels       []level
}

// descriptor is one item of descriptors while it is read.
type descriptor struct {
	node   *yaml.Node
	path   string
	entry  Entry
	level  level
	rule   *Rule
	fields map[string]yamldoc.Field
	limits []limit
	// faults is how many there were before the descriptor.
	faults int
}

func (p *parser) readDescriptors(list *yaml.Node, b branch) {
	if len(b.levels) == MaxDepth {
		p.Fault(list, "", "descriptors are nested deeper than the %d levels allowed", MaxDepth)
		return
	}
	// In envoyproxy/ratelimit key a with value b and key a_b are one name.
	names := make(map[string]*node)
	for e, n := range b.to.exact {
		names[e.Key+"_"+e.Value] = n
	}
	for k, n := range b.to.byKey {
		names[k] = n
	}
	path := yamldoc.Join(b.path, "descriptors")
	for i, item := range p.Items(list, path) {
		p.readDescriptor(item, indexed(path, i), b, names)
	}
}

func (p *parser) readDescriptor(item *yaml.Node, path string, b branch, names map[string]*node) {
	d := &descriptor{node: item, path: path, fields: make(map[string]yamldoc.Field), faults: p.Count()}
	if item.Kind != yaml.MappingNode {
		p.Fault(item, d.path, "every item of descriptors must be a mapping with a key")
		return
	}
	for _, f := range p.fields(item, d.path, inDescriptor) {
		if !yamldoc.IsNull(f.Value) {
			d.fields[f.Name] = f
		}
	}
	p.readEntry(d, b)
	to := p.place(d, b, names)

	d.rule = &Rule{Domain: b.domain, Path: d.path, Name: d.path, File: p.file, Line: item.Line}
	p.readLevel(d, b.domain)
	levels := append(slices.Clip(b.levels), d.level)
	p.readLimits(d)
	p.readOptions(d)
	if len(d.limits) > 0 {
		d.rule.levels = levels
		p.finish(d)
		to.rule = d.rule
		p.set.rules = append(p.set.rules, d.rule)
	}
	if f, ok := d.fields["descriptors"]; ok {
		p.readDescriptors(f.Value, branch{domain: b.domain, path: d.path, to: to, levels: levels})
	}
}

// readEntry reads key and value, and names the descriptor by them from here on.
func (p *parser) readEntry(d *descriptor, b branch) {
	if f, ok := d.fields["key"]; ok {
		d.entry.Key, _ = p.String(f.Value, d.path+".key")
	}
	if f, ok := d.fields["value"]; ok {
		d.entry.Value, _ = p.String(f.Value, d.path+".value")
	}
	if d.entry.Key == "" {
		p.Fault(d.node, d.path+".key", "a descriptor must have a key, which may not be empty")
		return
	}
	d.path = b.path + "/" + shorten(d.entry.Key)
	if d.entry.Value != "" {
		d.path += "=" + shorten(d.entry.Value)
	}
	p.tooLong(d.fields["key"].Line, d.path+".key", d.entry.Key)
	if strings.Contains(d.entry.Key, "*") {
		p.warn(d.fields["key"].Line, d.path+".key", "* is a wildcard in value only; in key it stands for itself")
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
	to := &node{entry: d.entry, file: p.file, line: d.node.Line}
	if d.entry.Key == "" {
		return to // already a fault
	}
	name := d.entry.Key
	if d.entry.Value != "" {
		name += "_" + d.entry.Value
	}
	if other := names[name]; other != nil {
		if other.entry == d.entry {
			p.Fault(d.node, d.path, "the same key and value are already at %s:%d", other.file, other.line)
		} else {
			p.Fault(d.node, d.path, "cannot be told from %s=%s at %s:%d where keys and values are joined by _; rename one",
				shorten(other.entry.Key), shorten(other.entry.Value), other.file, other.line)
		}
		return to
	}
	names[name] = to
	b.to.add(to)
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

// readLevel reads what a descriptor says about its own entry, also for the
// rules below it.
func (p *parser) readLevel(d *descriptor, domain string) {
	d.level.entry = d.entry
	d.level.valueToMetric = p.flag(d, "value_to_metric")
	d.level.shared = p.flag(d, "share_threshold")
	pattern := strings.Contains(d.entry.Value, "*")
	if d.level.shared && !pattern {
		p.FaultAt(d.fields["share_threshold"].Line, d.path+".share_threshold", "needs a * in value: it gives all values of a pattern one counter")
	}
	p.readRedact(d, domain)
	f, ok := d.fields["ip_prefix"]
	if !ok {
		return
	}
	path := d.path + ".ip_prefix"
	switch {
	case d.entry.Value != "" && !pattern:
		p.FaultAt(f.Line, path, "needs a descriptor that many values match, not value %s", shorten(d.entry.Value))
	case d.level.shared:
		p.FaultAt(f.Line, path, "excludes share_threshold, which gives all values one counter already")
	}
	d.level.prefix = &IPPrefix{V4: 32, V6: 128}
	for _, f := range p.fields(f.Value, path, inIPPrefix) {
		switch f.Name {
		case "v4":
			if bits, ok := p.Int(f.Value, path+".v4", 1, 32); ok {
				d.level.prefix.V4 = int(bits)
			}
		case "v6":
			if bits, ok := p.Int(f.Value, path+".v6", 1, 128); ok {
				d.level.prefix.V6 = int(bits)
			}
		}
	}
}

// AppendMetric appends the name that descriptor is counted under in metrics: the
// rule's path, in which levels with value_to_metric, and all of them under detailed_metric,
// show the value that came, as show appends it; nil is AppendValue. A pattern that shares one counter always shows as
// the pattern. Names are for people; they are not keys.
func (r *Rule) AppendMetric(dst []byte, descriptor []Entry, show func(dst []byte, i int, e Entry) []byte) []byte {
	dst = append(dst, r.Domain...)
	for i := range r.levels {
		l := &r.levels[i]
		dst = append(append(dst, '/'), l.entry.Key...)
		came := i < len(descriptor) && !l.shared && (r.DetailedMetric || l.valueToMetric)
		switch {
		case !came && l.entry.Value != "":
			dst = append(append(dst, '='), l.entry.Value...)
		case !came || descriptor[i].Value == "":
		case show == nil:
			dst = r.AppendValue(append(dst, '='), i, descriptor[i].Value)
		default:
			dst = show(append(dst, '='), i, descriptor[i])
		}
	}
	return dst
}

// PerValueMetric reports whether AppendMetric depends on the descriptor, so that
// one rule has as many names as values come.
func (r *Rule) PerValueMetric() bool {
	for i := range r.levels {
		l := &r.levels[i]
		anyValue := l.entry.Value == "" || strings.Contains(l.entry.Value, "*")
		if anyValue && !l.shared && (r.DetailedMetric || l.valueToMetric) {
			return true
		}
	}
	return false
}
