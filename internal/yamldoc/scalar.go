package yamldoc

import (
	"math"
	"strings"

	"go.yaml.in/yaml/v3"
)

// String reads a scalar as its own text, so that 0x10 and yes stay as written. Numbers with a fraction or beyond 64 bits
// must be quoted, because YAML readers disagree on them (1.10 and 1.1). ok is false after an error and for null.
func (r *Reader) String(n *yaml.Node, path string) (s string, ok bool) {
	if IsNull(n) {
		return "", false
	}
	if n.Kind != yaml.ScalarNode {
		r.Errorf(n, path, "must be a string, not %s", kindOf(n))
		return "", false
	}
	switch n.ShortTag() {
	case "!!str", "!!bool", "!!timestamp", "!!merge":
		return n.Value, true
	case "!!int":
		var i int64
		if n.Decode(&i) == nil {
			return n.Value, true
		}
	}
	r.Errorf(n, path, "%s is not read as a string; put it in quotes", show(n))
	return "", false
}

// Bool reads true or false; yes, no, on and off too, as YAML 1.1 has them.
func (r *Reader) Bool(n *yaml.Node, path string) (v, ok bool) {
	if IsNull(n) {
		return false, false
	}
	if n.Kind == yaml.ScalarNode && n.Style&(yaml.SingleQuotedStyle|yaml.DoubleQuotedStyle) == 0 {
		switch strings.ToLower(n.Value) {
		case "true", "yes", "on", "y":
			return true, true
		case "false", "no", "off", "n":
			return false, true
		}
	}
	r.Errorf(n, path, "must be true or false, not %s", kindOf(n))
	return false, false
}

// Int reads a whole number from lowest to highest.
func (r *Reader) Int(n *yaml.Node, path string, lowest, highest int64) (v int64, ok bool) {
	if IsNull(n) {
		return 0, false
	}
	if n.Kind != yaml.ScalarNode || n.ShortTag() != "!!int" {
		r.Errorf(n, path, "must be a whole number, not %s", kindOf(n))
		return 0, false
	}
	if err := n.Decode(&v); err != nil || v < lowest || v > highest {
		r.Errorf(n, path, "must be from %d to %d, not %s", lowest, highest, n.Value)
		return 0, false
	}
	return v, true
}

// Enum reads one of the names in values.
func Enum[T any](r *Reader, n *yaml.Node, path string, values []Named[T]) (v T, ok bool) {
	s, ok := r.String(n, path)
	if !ok {
		return v, false
	}
	names := make([]string, len(values))
	for i, e := range values {
		if e.Name == s {
			return e.Value, true
		}
		names[i] = e.Name
	}
	r.Errorf(n, path, "must be one of %s, not %s%s", strings.Join(names, ", "), Quote(s), Suggest(s, names))
	return v, false
}

// Named is a value and its name in documents.
type Named[T any] struct {
	Name  string
	Value T
}

// maxFreeDepth bounds the nesting of free-form values.
const maxFreeDepth = 32

// Map reads a mapping of any content: strings, booleans, numbers (float64),
// nil, []any and map[string]any, as in JSON. It is nil after an error.
func (r *Reader) Map(n *yaml.Node, path string) map[string]any { return r.freeMap(n, path, 0) }

func (r *Reader) freeMap(n *yaml.Node, path string, depth int) map[string]any {
	fields := r.Fields(n, path)
	if fields == nil {
		return nil
	}
	out := make(map[string]any, len(fields))
	for _, f := range fields {
		out[f.Name] = r.free(f.Value, f.Path, depth+1)
	}
	return out
}

func (r *Reader) free(n *yaml.Node, path string, depth int) any {
	if depth > maxFreeDepth {
		r.Errorf(n, path, "is nested deeper than %d levels", maxFreeDepth)
		return nil
	}
	switch n.Kind {
	case yaml.MappingNode:
		return r.freeMap(n, path, depth)
	case yaml.SequenceNode:
		items := r.Items(n, path)
		out := make([]any, len(items))
		for i, item := range items {
			out[i] = r.free(item, path, depth+1)
		}
		return out
	}
	switch n.ShortTag() {
	case "!!null":
		return nil
	case "!!bool":
		v, _ := r.Bool(n, path)
		return v
	case "!!int", "!!float":
		var v float64
		if err := n.Decode(&v); err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			r.Errorf(n, path, "%s is not a number that can be kept; put it in quotes", show(n))
		}
		return v
	}
	return n.Value
}
