package rules

import "strings"

// readRedact reads whether the values of the descriptor's key are private.
func (p *parser) readRedact(d *descriptor, domain string) {
	if !p.flag(d, "redact") {
		return
	}
	f := d.fields["redact"]
	switch pattern := strings.Contains(d.entry.Value, "*"); {
	case d.entry.Value != "" && !pattern:
		p.FaultAt(f.Line, d.path+".redact", "needs a descriptor that many values match: value %s stands in this file for everybody to read", shorten(d.entry.Value))
	case d.level.shared:
		p.FaultAt(f.Line, d.path+".redact", "excludes share_threshold, which shows the pattern and no value")
	}
	keys := p.set.private[domain]
	if keys == nil {
		keys = make(map[string]bool)
		p.set.private[domain] = keys
	}
	keys[d.entry.Key] = true
}

// Redacts reports whether the value of entry i of a descriptor under r, of which the key is key, is private: some
// descriptor of the domain with that key says redact, and what there is to show is not what the rule files
// say themselves, a value or the pattern of a shared counter. r is nil where no rule applies. s may be nil: no rules.
func (s *Set) Redacts(r *Rule, domain string, i int, key string) bool {
	if s == nil || !s.private[domain][key] {
		return false
	}
	if r == nil || i >= len(r.levels) {
		return true
	}
	l := &r.levels[i]
	return !l.shared && (l.entry.Value == "" || strings.Contains(l.entry.Value, "*"))
}
