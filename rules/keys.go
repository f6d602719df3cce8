package rules

import (
	"slices"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-project/sluice/internal/yamldoc"
)

// knows reports whether the grammar has f in the mapping. What it does not have
// is a fault, unless envoyproxy/ratelimit loads and ignores it: then a warning.
func (p *parser) knows(f yamldoc.Field, path, mapping string) bool {
	if slices.Contains(grammar[mapping], f.Name) {
		return true
	}
	where := belongs(f.Name)
	foreign := slices.Contains(foreigners, mapping)
	switch {
	case where == "":
		hint := ""
		if k := resembling(mapping, f.Name); k != "" {
			hint = "; did you mean " + k + "?"
		}
		p.FaultAt(f.Line, path, "unknown key %s%s", yamldoc.Quote(f.Name), hint)
	case foreign || !slices.Contains(envoyKeys, f.Name):
		p.FaultAt(f.Line, path, "the key %s belongs in %s, not here", f.Name, where)
	default:
		p.warn(f.Line, path, "the key %s has no effect here; it belongs in %s", f.Name, where)
		p.onlyKnown(f.Value, path, 0)
	}
	return false
}

// onlyKnown refuses unknown keys below a value that is otherwise ignored, as
// envoyproxy/ratelimit does.
func (p *parser) onlyKnown(n *yaml.Node, path string, depth int) {
	if depth > MaxDepth {
		p.Fault(n, path, "is nested deeper than %d levels", MaxDepth)
		return
	}
	switch n.Kind {
	case yaml.MappingNode:
		for _, f := range p.Fields(n, path) {
			if belongs(f.Name) == "" {
				p.FaultAt(f.Line, path, "unknown key %s", yamldoc.Quote(f.Name))
			}
			p.onlyKnown(f.Value, path, depth+1)
		}
	case yaml.SequenceNode:
		for _, item := range p.Items(n, path) {
			if item.Kind != yaml.MappingNode {
				p.Fault(item, path, "the list holds something other than a mapping")
				continue
			}
			p.onlyKnown(item, path, depth+1)
		}
	}
}
