package rules

import "strings"

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
