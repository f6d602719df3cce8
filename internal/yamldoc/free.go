package yamldoc

import (
	"math"

	"go.yaml.in/yaml/v3"
)

// maxFreeDepth bounds the nesting of free-form values.
const maxFreeDepth = 32

// Map reads a mapping of any content: strings, booleans, numbers (float64),
// nil, []any and map[string]any, as JSON has them. It is nil after a fault.
func (r *Reader) Map(n *yaml.Node, path string) map[string]any {
	return r.freeMap(n, path, 0)
}

func (r *Reader) freeMap(n *yaml.Node, path string, depth int) map[string]any {
	fields := r.Fields(n, path)
	if fields == nil {
		return nil
	}
	out := make(map[string]any, len(fields))
	for _, f := range fields {
		out[f.Name] = r.free(f.Value, Join(path, f.Name), depth+1)
	}
	return out
}

func (r *Reader) free(n *yaml.Node, path string, depth int) any {
	if depth > maxFreeDepth {
		r.Fault(n, path, "is nested deeper than %d levels", maxFreeDepth)
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
	return r.freeScalar(n, path)
}

func (r *Reader) freeScalar(n *yaml.Node, path string) any {
	switch n.ShortTag() {
	case "!!null":
		return nil
	case "!!bool":
		v, _ := r.Bool(n, path)
		return v
	case "!!int", "!!float":
		var v float64
		if err := n.Decode(&v); err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
			r.Fault(n, path, "%s is not a number that can be kept; put it in quotes", show(n))
		}
		return v
	}
	return n.Value
}
