package rules

import "strings"

// AppendMetric appends the name that descriptor is counted under in metrics: the
// rule's path, in which levels with value_to_metric, and all of them under detailed_metric,
// show the value that came. A pattern that shares one counter always shows as
// the pattern. Names are for people; they are not keys.
func (r *Rule) AppendMetric(dst []byte, descriptor []Entry) []byte {
	dst = append(dst, r.Domain...)
	for i := range r.levels {
		l := &r.levels[i]
		value := l.entry.Value
		if i < len(descriptor) && !l.shared && (r.DetailedMetric || l.valueToMetric) {
			value = descriptor[i].Value
		}
		dst = append(append(dst, '/'), l.entry.Key...)
		if value != "" {
			dst = append(append(dst, '='), value...)
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
