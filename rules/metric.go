package rules

import "strings"

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
