package rules

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/sluicecluster/sluice/internal/yamldoc"
	"go.yaml.in/yaml/v3"
)

const (
	// MaxFileBytes is the largest rule file that Parse reads, 1 MiB.
	MaxFileBytes = yamldoc.MaxBytes
	// MaxDepth is how deep descriptors may be nested.
	MaxDepth = 64
	// MaxEntryBytes is the longest domain or key that a check can carry. Values may be longer.
	MaxEntryBytes = 1024
	// MaxMaxKeys is the largest max_keys: more counters than any node holds.
	MaxMaxKeys = 1_000_000_000_000
)

// File is one rule file, read by the caller.
type File struct {
	// Name is used in errors only.
	Name string
	Data []byte
	// Outside is where a link leads that leaves the directory of the rules, else "". Errors quote
	// nothing of such a file: a writer of rules must not learn what the process may read.
	Outside string
}

// Invalid is the error of a file that is Outside, in place of all that is wrong with it.
func (f File) Invalid() *Error {
	return &Error{File: f.Name, Reason: "the link leads out of the directory, to " + f.Outside +
		", which is invalid; its text is not quoted here: to see the errors, check that file"}
}

// Options change how files are read.
type Options struct {
	// MergeDomains lets several files describe one domain.
	MergeDomains bool
	// Regions reports whether there is a region of that name. Nil: the process has no list of regions.
	Regions func(name string) bool
}

// Parse reads rule files, each one YAML document for one domain. The error joins
// one *Error (file, line, reason) per error in them; Errors splits it again.
func Parse(files []File, o Options) (*Set, error) {
	s := &Set{domains: make(map[string]*domain)}
	var errs []error
	var elastic []elasticRef
	for _, f := range files {
		if err := manifest(f); err != nil && f.Outside == "" {
			errs = append(errs, err)
			continue
		}
		root, r := yamldoc.Open(f.Data)
		p := &parser{Reader: r, set: s, file: f.Name, merge: o.MergeDomains, regions: o.Regions}
		if root != nil {
			p.readFile(root)
		}
		elastic = append(elastic, p.elastic...)
		for _, fault := range r.Errors() {
			if f.Outside != "" {
				errs = append(errs, f.Invalid())
				break
			}
			errs = append(errs, &Error{File: f.Name, Line: fault.Line, Path: fault.Path, Reason: fault.Reason})
		}
	}
	errs = append(errs, s.joinPools(elastic)...)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	s.warnOfUnmatched()
	s.warnOfHidden()
	s.boundWarnings()
	s.slots = slices.ContainsFunc(s.rules, func(r *Rule) bool { return r.Limits != nil && r.Limits.Slots() })
	return s, nil
}

// parser reads one file into set.
type parser struct {
	*yamldoc.Reader
	set   *Set
	file  string
	merge bool
	// regions is as in Options.
	regions func(string) bool
	// domain is what the file describes: a domain of set, or an unused one if its name is invalid.
	domain  *domain
	elastic []elasticRef
}

func (p *parser) warn(line int, path, text string, args ...any) {
	p.set.warnings = append(p.set.warnings, Warning{File: p.file, Line: line, Path: path, Text: fmt.Sprintf(text, args...)})
}

// reject reports that f is invalid.
func (p *parser) reject(f yamldoc.Field, reason string, args ...any) {
	p.ErrorfAt(f.Line, f.Path, reason, args...)
}

func (p *parser) readFile(root *yaml.Node) {
	at := yamldoc.Field{Path: "domain"}
	name := ""
	version := int64(1)
	given := p.read(root, "", inFile, keys{"version": number(p, &version, 0, math.MaxInt64), "domain": func(f yamldoc.Field) {
		at = f
		p.text(&name)(f)
	}})
	if version != 1 {
		p.reject(given["version"], "must be 1, the only version of the format that this sluice reads, not %d", version)
	}
	if root.Kind != yaml.MappingNode && !yamldoc.IsNull(root) {
		return // rejected above
	}
	p.tooLong(at, name)
	p.domain = &domain{name: name, root: node{file: p.file, line: at.Line}, private: make(map[string]bool), pools: make(map[string]*Pool)}
	switch known := p.set.domains[name]; {
	case name == "":
		// The rest of the file is checked all the same.
		p.ErrorfAt(max(at.Line, root.Line), "domain", "a rule file must name its domain, which may not be empty")
	case known == nil:
		p.set.domains[name] = p.domain
	case p.merge:
		p.domain = known
	default:
		p.reject(at, "domain %s is already described in %s:%d; put both in one file, or allow domains to be merged (--merge-domains)",
			yamldoc.Quote(name), known.root.file, known.root.line)
	}
	top := branch{path: name, to: &p.domain.root}
	if f, ok := given["descriptors"]; ok {
		p.readDescriptors(f.Value, top)
	}
	if f, ok := given["otherwise"]; ok {
		p.readOtherwise(f, top)
	}
	if f, ok := given["unmatched"]; ok {
		p.once(f, p.domain.unmatched != 0)
		enum(p, &p.domain.unmatched, unmatcheds)(f)
	}
	if f, ok := given["authorize"]; ok {
		p.readAuthorize(f)
	}
	if f, ok := given["pools"]; ok {
		p.readPools(f)
	}
	if f, ok := given["max_keys"]; ok {
		p.once(f, p.domain.maxKeys > 0)
		number(p, &p.domain.maxKeys, 1, MaxMaxKeys)(f)
	}
}

// once rejects a key of the top level that another file of the domain has too.
func (p *parser) once(f yamldoc.Field, given bool) {
	if given {
		p.reject(f, "another file has it for domain %s already; leave one out", yamldoc.Quote(p.domain.name))
	}
}

// fields returns the fields of a mapping that the grammar has there and reports the others.
func (p *parser) fields(n *yaml.Node, path, mapping string) []yamldoc.Field {
	fields := p.Fields(n, path)
	known := fields[:0]
	for _, f := range fields {
		if p.knows(f, path, mapping) {
			known = append(known, f)
		}
	}
	return known
}

// keys has the functions that read the keys of a mapping.
type keys map[string]func(yamldoc.Field)

// read calls the function of each key of the mapping n, in the file's order, and returns the keys that have a value.
func (p *parser) read(n *yaml.Node, path, mapping string, readers keys) map[string]yamldoc.Field {
	given := make(map[string]yamldoc.Field)
	for _, f := range p.fields(n, path, mapping) {
		if read := readers[f.Name]; read != nil {
			read(f)
		}
		if !yamldoc.IsNull(f.Value) {
			given[f.Name] = f
		}
	}
	return given
}

// items returns the elements of a list with their paths. It rejects more than most elements, each called what, and an
// empty list if advice says what to write instead.
func (p *parser) items(list yamldoc.Field, most int, what, advice string) []yamldoc.Field {
	var out []yamldoc.Field
	for i, item := range p.Items(list.Value, list.Path) {
		out = append(out, yamldoc.Field{Path: indexed(list.Path, i), Line: item.Line, Value: item})
	}
	switch n := len(out); {
	case n == 0 && advice != "" && list.Value.Kind == yaml.SequenceNode:
		p.reject(list, "is empty; %s", advice)
	case n > most:
		p.reject(list, "has %d %s; at most %d are allowed", n, what, most)
		return nil
	}
	return out
}

// indexed appends a list index to a path.
func indexed(path string, i int) string { return fmt.Sprintf("%s[%d]", path, i) }

func (p *parser) text(to *string) func(yamldoc.Field) {
	return func(f yamldoc.Field) { *to, _ = p.String(f.Value, f.Path) }
}

// boolean leaves the default alone where the key has no value.
func (p *parser) boolean(to *bool) func(yamldoc.Field) {
	return func(f yamldoc.Field) {
		if v, ok := p.Bool(f.Value, f.Path); ok {
			*to = v
		}
	}
}

// number leaves the default alone where the key has no value.
func number[T ~int | ~int32 | ~int64](p *parser, to *T, lowest, highest int64) func(yamldoc.Field) {
	return func(f yamldoc.Field) {
		if v, ok := p.Int(f.Value, f.Path, lowest, highest); ok {
			*to = T(v)
		}
	}
}

func enum[T any](p *parser, to *T, values []yamldoc.Named[T]) func(yamldoc.Field) {
	return func(f yamldoc.Field) { *to, _ = yamldoc.Enum(p.Reader, f.Value, f.Path, values) }
}

func (p *parser) duration(to *time.Duration, least time.Duration) func(yamldoc.Field) {
	return func(f yamldoc.Field) {
		s, ok := p.String(f.Value, f.Path)
		if !ok {
			return
		}
		d, err := ParseDuration(s)
		switch *to = d; {
		case err != nil:
			p.Errorf(f.Value, f.Path, "%s", err)
		case d < least:
			p.Errorf(f.Value, f.Path, "must be at least %s, not %s", least, s)
		}
	}
}

// tooLong warns of a text that no check can carry.
func (p *parser) tooLong(f yamldoc.Field, text string) {
	if len(text) > MaxEntryBytes {
		p.warn(f.Line, f.Path, "has %d bytes, and a check cannot carry more than %d: nothing will match it", len(text), MaxEntryBytes)
	}
}
