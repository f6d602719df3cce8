package rules

import (
	"errors"
	"fmt"

	"github.com/sluice-project/sluice/internal/yamldoc"
	"go.yaml.in/yaml/v3"
)

const (
	// MaxFileBytes is the largest rule file that Parse reads, 1 MiB.
	MaxFileBytes = yamldoc.MaxBytes
	// MaxDepth is the deepest that descriptors may be nested.
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
}

// Options change how files are read.
type Options struct {
	// MergeDomains lets several files describe one domain.
	MergeDomains bool
}

// Parse reads rule files, each one YAML document for one domain. The error joins
// one *Error (file, line, reason) per fault; Errors takes it apart.
func Parse(files []File, o Options) (*Set, error) {
	s := &Set{domains: make(map[string]*node), authorize: make(map[string]*Authorize), private: make(map[string]map[string]bool), maxKeys: make(map[string]int64)}
	var errs []error
	for _, f := range files {
		root, r := yamldoc.Open(f.Data)
		p := &parser{Reader: r, set: s, file: f.Name, merge: o.MergeDomains}
		if root != nil {
			p.readFile(root)
		}
		if faults := r.Faults(); len(faults) > 0 {
			errs = append(errs, joinFaults(f.Name, faults))
		}
	}
	errs = append(errs, s.joinPools()...)
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	s.warnOfUnmatched()
	return s, nil
}

// parser reads one file into set.
type parser struct {
	*yamldoc.Reader
	set   *Set
	file  string
	merge bool
}

func (p *parser) warn(line int, path, text string, args ...any) {
	p.set.warnings = append(p.set.warnings, Warning{File: p.file, Line: line, Path: path, Text: fmt.Sprintf(text, args...)})
}

func (p *parser) readFile(root *yaml.Node) {
	var domain, descriptors, authorize, pools, maxKeys yamldoc.Field
	fields := p.fields(root, "", inFile)
	if root.Kind != yaml.MappingNode && !yamldoc.IsNull(root) {
		return // a fault already
	}
	for _, f := range fields {
		switch f.Name {
		case "domain":
			domain = f
		case "descriptors":
			descriptors = f
		case "authorize":
			authorize = f
		case "pools":
			pools = f
		case "max_keys":
			maxKeys = f
		}
	}
	top := &node{file: p.file, line: domain.Line}
	var name string
	if domain.Value != nil {
		name, _ = p.String(domain.Value, "domain")
	}
	p.tooLong(domain.Line, "domain", name)
	switch known := p.set.domains[name]; {
	case name == "":
		// The rest of the file is checked all the same.
		p.FaultAt(max(domain.Line, root.Line), "domain", "a rule file must name its domain, which may not be empty")
	case known == nil:
		p.set.domains[name] = top
	case p.merge:
		top = known
	default:
		p.FaultAt(domain.Line, "domain", "domain %s is already described in %s:%d; put both in one file, or allow domains to be merged",
			yamldoc.Quote(name), known.file, known.line)
	}
	if descriptors.Value != nil {
		p.readDescriptors(descriptors.Value, branch{domain: name, path: name, to: top})
	}
	if authorize.Value != nil {
		p.readAuthorize(authorize, name)
	}
	if pools.Value != nil {
		p.readPools(pools, name)
	}
	if maxKeys.Value != nil {
		p.readMaxKeys(maxKeys, name)
	}
}

// readMaxKeys reads the cap of the domain's counters, which one of its files may have.
func (p *parser) readMaxKeys(f yamldoc.Field, domain string) {
	n, ok := p.Int(f.Value, "max_keys", 1, MaxMaxKeys)
	if !ok {
		return
	}
	if p.set.maxKeys[domain] > 0 {
		p.FaultAt(f.Line, "max_keys", "another file has it for domain %s already; leave one out", yamldoc.Quote(domain))
		return
	}
	p.set.maxKeys[domain] = n
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

// tooLong warns of a text that no check can carry.
func (p *parser) tooLong(line int, path, text string) {
	if len(text) > MaxEntryBytes {
		p.warn(line, path, "has %d bytes, and a check cannot carry more than %d: nothing will match it", len(text), MaxEntryBytes)
	}
}
