// Package yamldoc reads YAML strictly: every error has a line, a path and a reason, reading continues after an error
// so that all are reported at once, and size, depth and the expansion of aliases are bounded. It is pure.
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

const (
	// MaxBytes is the size of the largest document that is read.
	MaxBytes = 1 << 20
	// maxErrors is how many errors are kept for one document; further ones are only counted.
	maxErrors = 50
	// maxAliased is how many nodes aliases may add to those spelled out: ten lines of aliases of aliases can mean billions.
	maxAliased = 1 << 17
	// maxMerges bounds a chain of merge keys, which can be a cycle.
	maxMerges = 8
)

// Error is one error in a document.
type Error struct {
	// Line counts from 1.
	Line int
	// Path leads to the value, for people. It may be empty.
	Path   string
	Reason string
}

// Reader reads the values of one document and collects the errors in it.
// A null is read as if it were absent. It is not safe for concurrent use.
type Reader struct {
	errors []Error
	// dropped counts the errors beyond maxErrors; the last of them is at lastLine.
	dropped, lastLine int
	// budget is how many more nodes may be read.
	budget int
}

// Field is one key of a mapping, or an element of a list, with its path and its value, aliases resolved.
type Field struct {
	Name, Path string
	Line       int
	Value      *yaml.Node
}

// Errors returns the errors so far, by line.
func (r *Reader) Errors() []Error {
	out := slices.Clone(r.errors)
	slices.SortStableFunc(out, func(a, b Error) int { return a.Line - b.Line })
	if r.dropped > 0 {
		out = append(out, Error{Line: r.lastLine, Reason: fmt.Sprintf("and %d more errors like these", r.dropped)})
	}
	return out
}

// Count returns the number of errors so far.
func (r *Reader) Count() int { return len(r.errors) + r.dropped }

// Errorf reports that the value n at path is invalid.
func (r *Reader) Errorf(n *yaml.Node, path, reason string, args ...any) {
	r.ErrorfAt(n.Line, path, reason, args...)
}

// ErrorfAt is Errorf for a line.
func (r *Reader) ErrorfAt(line int, path, reason string, args ...any) {
	if len(r.errors) >= maxErrors {
		r.dropped++
		r.lastLine = max(r.lastLine, line)
		return
	}
	r.errors = append(r.errors, Error{Line: max(line, 1), Path: path, Reason: fmt.Sprintf(reason, args...)})
}

// visit resolves an alias and counts the node. It reports false once the document's aliases expand to too many nodes,
// after which nothing more is read.
func (r *Reader) visit(n *yaml.Node) (*yaml.Node, bool) {
	if r.budget--; r.budget <= 0 {
		if r.budget == 0 {
			r.Errorf(n, "", "the aliases in this file expand to too much; write the values out")
		}
		return n, false
	}
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	return n, true
}

// IsNull reports whether n stands for no value.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Fields returns the keys of the mapping n in their order. Keys that are not strings or come twice are errors; those
// of a merge key (<<) follow the mapping's own, which take precedence.
func (r *Reader) Fields(n *yaml.Node, path string) []Field {
	if IsNull(n) {
		return nil
	}
	if n.Kind != yaml.MappingNode {
		r.Errorf(n, path, "must be a mapping (key: value), not %s", kindOf(n))
		return nil
	}
	return r.fields(n, path, make(map[string]int, len(n.Content)/2), nil, 0)
}

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
		f := Field{Name: key.Value, Path: Join(path, key.Value), Line: key.Line, Value: value}
		line, twice := seen[key.Value]
		switch {
		case key.Kind == yaml.ScalarNode && key.ShortTag() == "!!merge":
			merged = append(merged, f)
		case key.Kind != yaml.ScalarNode || key.ShortTag() != "!!str":
			r.Errorf(key, path, "the key %s is not a string", show(key))
		case !twice:
			seen[f.Name] = f.Line
			out = append(out, f)
		case merges == 0:
			r.Errorf(key, f.Path, "the key comes twice; the first is at line %d", line)
		}
	}
	for _, m := range merged {
		out = r.merge(m, path, seen, out, merges+1)
	}
	return out
}

// merge appends the fields of a merge key, whose value is a mapping or a list of mappings.
func (r *Reader) merge(key Field, path string, seen map[string]int, out []Field, merges int) []Field {
	switch m := key.Value; {
	case merges > maxMerges:
		r.ErrorfAt(key.Line, path, "merge keys (<<) are nested deeper than %d", maxMerges)
	case m.Kind == yaml.MappingNode:
		return r.fields(m, path, seen, out, merges)
	case m.Kind == yaml.SequenceNode:
		for _, item := range r.Items(m, path) {
			if item.Kind != yaml.MappingNode {
				r.Errorf(item, path, "a merge key (<<) takes mappings, not %s", kindOf(item))
				continue
			}
			out = r.fields(item, path, seen, out, merges)
		}
	default:
		r.ErrorfAt(key.Line, path, "a merge key (<<) takes a mapping or a list of mappings, not %s", kindOf(m))
	}
	return out
}

// Items returns the elements of the list n, aliases resolved.
func (r *Reader) Items(n *yaml.Node, path string) []*yaml.Node {
	if IsNull(n) {
		return nil
	}
	if n.Kind != yaml.SequenceNode {
		r.Errorf(n, path, "must be a list (- …), not %s", kindOf(n))
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

// kindOf names n for a message.
func kindOf(n *yaml.Node) string {
	switch {
	case n.Kind == yaml.MappingNode:
		return "a mapping"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	case n.ShortTag() == "!!str":
		return "the string " + Quote(n.Value)
	case IsNull(n):
		return "nothing"
	}
	return Quote(n.Value)
}

// show quotes a scalar for a message, and names any other node.
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

// Open parses data, which must be one YAML document, and returns its root with a Reader for it. The root is nil if data
// cannot be read at all; the Reader then holds the error.
//
// The YAML parser rejects nesting beyond 10,000 and takes time proportional to its input, so only the size must be
// checked before it runs.
func Open(data []byte) (*yaml.Node, *Reader) {
	r := &Reader{budget: len(data) + maxAliased}
	if len(data) > MaxBytes {
		r.ErrorfAt(1, "", "the file has %d bytes, more than the %d allowed; split it", len(data), MaxBytes)
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
			r.Errorf(document.Content[0], "", "a second YAML document begins here; a file holds one, so put it in a file of its own")
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
	why := "not YAML: "
	if strings.HasPrefix(text, "exceeded max depth") { // valid YAML
		why = "is nested far deeper than any such file may be: "
	}
	r.ErrorfAt(line, "", "%s%s", why, text)
}
