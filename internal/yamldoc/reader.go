// Package yamldoc reads YAML strictly: every fault has a line, a path and a
// reason, reading goes on after a fault so that all are told at once, and size,
// depth and the expansion of aliases are bounded. It knows nothing of rules. It
// is pure: bytes in, values and faults out, no goroutine.
package yamldoc

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Reader takes values out of one document and collects what is wrong with it.
// A null is read as if it were absent. It is not safe for concurrent use.
type Reader struct {
	faults []Fault
	// dropped were more than MaxFaults; the last of them is at lastLine.
	dropped, lastLine int
	// budget is how many more nodes may be read.
	budget int
}

// Field is one key of a mapping with its value, aliases resolved.
type Field struct {
	Name  string
	Line  int
	Value *yaml.Node
}

// Faults returns what was wrong so far, by line.
func (r *Reader) Faults() []Fault {
	out := slices.Clone(r.faults)
	slices.SortStableFunc(out, func(a, b Fault) int { return a.Line - b.Line })
	if r.dropped > 0 {
		out = append(out, Fault{Line: r.lastLine, Reason: fmt.Sprintf("and %d more faults like these", r.dropped)})
	}
	return out
}

// Count returns how many faults there were so far.
func (r *Reader) Count() int { return len(r.faults) + r.dropped }

// Fault reports that the value n at path is wrong.
func (r *Reader) Fault(n *yaml.Node, path, reason string, args ...any) {
	r.faultAt(n.Line, path, fmt.Sprintf(reason, args...))
}

// FaultAt is Fault for a line.
func (r *Reader) FaultAt(line int, path, reason string, args ...any) {
	r.faultAt(line, path, fmt.Sprintf(reason, args...))
}

func (r *Reader) faultAt(line int, path, reason string) {
	if len(r.faults) >= MaxFaults {
		r.dropped++
		r.lastLine = max(r.lastLine, line)
		return
	}
	r.faults = append(r.faults, Fault{Line: max(line, 1), Path: path, Reason: reason})
}

// visit resolves an alias and counts the node. It reports false when the
// document's aliases expand to too much, after which nothing more is read.
func (r *Reader) visit(n *yaml.Node) (*yaml.Node, bool) {
	if r.budget <= 0 {
		return n, false
	}
	if r.budget--; r.budget == 0 {
		r.Fault(n, "", "the aliases in this file expand to too much; write the values out")
		return n, false
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n, true
}

// IsNull reports whether n stands for no value.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Fields returns the keys of the mapping n in their order. Keys that are not
// strings or come twice are faults; those of a merge key (<<) follow the
// mapping's own, which go before them.
func (r *Reader) Fields(n *yaml.Node, path string) []Field {
	if IsNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.Fault(n, path, "must be a mapping (key: value), not %s", kindOf(n))
		return nil
	}
	seen := make(map[string]int, len(n.Content)/2)
	return r.fields(n, path, seen, nil, 0)
}

// maxMerges bounds a chain of merge keys, which can be a circle.
const maxMerges = 8

func (r *Reader) fields(n *yaml.Node, path string, seen map[string]int, out []Field, merges int) []Field {
	var merged []Field
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, ok := r.visit(n.Content[i])
		if !ok {
			return nil
		}
		value, ok := r.visit(n.Content[i+1])
		if !ok {
			return nil
		}
		switch {
		case key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge":
			merged = append(merged, Field{Line: key.Line, Value: value})
			continue
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
			r.Fault(key, path, "the key %s is not a string", show(key))
			continue
		}
		if line, dup := seen[key.Value]; dup {
			if merges == 0 {
				r.Fault(key, Join(path, key.Value), "the key comes twice; the first is at line %d", line)
			}
			continue
		}
		seen[key.Value] = key.Line
		out = append(out, Field{Name: key.Value, Line: key.Line, Value: value})
	}
	for _, m := range merged {
		out = r.merge(m, path, seen, out, merges+1)
	}
	return out
}

// merge appends the fields of << with the value m, a mapping or a list of mappings.
func (r *Reader) merge(key Field, path string, seen map[string]int, out []Field, merges int) []Field {
	m := key.Value
	if merges > maxMerges {
		r.FaultAt(key.Line, path, "merge keys (<<) are nested deeper than %d", maxMerges)
		return out
	}
	switch m.Kind {
	case yaml.MappingNode:
		return r.fields(m, path, seen, out, merges)
	case yaml.SequenceNode:
		for _, item := range m.Content {
			item, ok := r.visit(item)
			if !ok {
				return nil
			}
			if item.Kind != yaml.MappingNode {
				r.Fault(item, path, "a merge key (<<) takes mappings, not %s", kindOf(item))
				continue
			}
			out = r.fields(item, path, seen, out, merges)
		}
		return out
	}
	r.FaultAt(key.Line, path, "a merge key (<<) takes a mapping or a list of mappings, not %s", kindOf(m))
	return out
}

// Items returns the elements of the list n, aliases resolved.
func (r *Reader) Items(n *yaml.Node, path string) []*yaml.Node {
	if IsNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		r.Fault(n, path, "must be a list (- …), not %s", kindOf(n))
		return nil
	}
	out := make([]*yaml.Node, 0, len(n.Content))
	for _, item := range n.Content {
		item, ok := r.visit(item)
		if !ok {
			return nil
		}
		out = append(out, item)
	}
	return out
}

// Join appends a field's name to a path.
func Join(path, name string) string {
	if path == "" {
		return name
	}
	return path + "." + name
}

func kindOf(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	}
	switch n.ShortTag() {
	case "!!str":
		return "the string " + show(n)
	case "!!null":
		return "nothing"
	}
	return show(n)
}

// show quotes a scalar for a message, cut to a readable length.
func show(n *yaml.Node) string {
	if n.Kind != yaml.ScalarNode {
		return kindOf(n)
	}
	return Quote(n.Value)
}

// Quote quotes s for a message, cut to a readable length.
func Quote(s string) string {
	const most = 60
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

const (
	// MaxBytes is the largest document that is read.
	MaxBytes = 1 << 20
	// MaxFaults is how many faults are kept for one document; more are counted only.
	MaxFaults = 50
	// maxAliased is how many nodes aliases may add to what the document spells
	// out. Ten lines of aliases of aliases can stand for billions.
	maxAliased = 1 << 17
)

// Fault is one thing that is wrong with a document.
type Fault struct {
	// Line counts from 1.
	Line int
	// Path leads to the value, for people. It may be empty.
	Path   string
	Reason string
}

// Open parses data, which must be one YAML document, and returns its root with
// a Reader for it. The root is nil if data cannot be read at all; the Reader
// then holds the fault.
//
// The YAML parser itself rejects nesting beyond 10,000 and takes time
// proportional to the size of its input, so the size is the only thing that must be
// checked before it runs.
func Open(data []byte) (*yaml.Node, *Reader) {
	r := &Reader{budget: len(data) + maxAliased}
	if len(data) > MaxBytes {
		r.faultAt(1, "", fmt.Sprintf("the file has %d bytes, more than the %d allowed; split it", len(data), MaxBytes))
		return nil, r
	}
	dec := yaml.NewDecoder(bytes.NewReader(data))
	root := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Line: 1}
	for first := true; ; first = false {
		var document yaml.Node
		err := dec.Decode(&document)
		switch {
		case errors.Is(err, io.EOF):
			return root, r
		case err != nil:
			r.syntax(err)
			return nil, r
		case len(document.Content) == 0:
		case first:
			root = document.Content[0]
		case !IsNull(document.Content[0]):
			r.faultAt(document.Content[0].Line, "", "a second YAML document begins here; a file holds one, so put it in a file of its own")
			return nil, r
		}
	}
}

var syntaxLine = regexp.MustCompile(`^line (\d+): `)

// syntax reports an error of the YAML parser, which names a line unless it is the first.
func (r *Reader) syntax(err error) {
	text, line := strings.TrimPrefix(err.Error(), "yaml: "), 1
	if m := syntaxLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		text = text[len(m[0]):]
	}
	if strings.HasPrefix(text, "exceeded max depth") { // valid, but beyond any use
		r.faultAt(line, "", "is nested far deeper than any such file may be: "+text)
		return
	}
	r.faultAt(line, "", "not YAML: "+text)
}
