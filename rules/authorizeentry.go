package rules

import (
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-project/sluice/internal/yamldoc"
)

func (p *parser) readAuthorized(a *Authorize, f yamldoc.Field, path string) {
	items := p.Items(f.Value, path)
	switch n := len(items); {
	case n == 0 && f.Value.Kind == yaml.SequenceNode:
		p.FaultAt(f.Line, path, "is empty; name at least one descriptor to check")
	case n > maxAuthorized:
		p.FaultAt(f.Line, path, "has %d descriptors; at most %d are allowed", n, maxAuthorized)
		return
	}
	for i, item := range items {
		at := indexed(path, i)
		entries := p.Items(item, at)
		switch n := len(entries); {
		case n == 0 && (item.Kind == yaml.SequenceNode || yamldoc.IsNull(item)):
			p.Fault(item, at, "has no entries; a descriptor is a list of them")
		case n > MaxDepth:
			p.Fault(item, at, "has %d entries; no rule lies deeper than %d", n, MaxDepth)
			continue
		}
		var descriptor []AuthorizeEntry
		for j, entry := range entries {
			descriptor = append(descriptor, p.readAuthorizeEntry(entry, indexed(at, j)))
		}
		a.Descriptors = append(a.Descriptors, descriptor)
	}
}

func (p *parser) readAuthorizeEntry(n *yaml.Node, path string) (e AuthorizeEntry) {
	if n.Kind != yaml.MappingNode {
		p.Fault(n, path, "every entry of a descriptor must be a mapping with a key")
		return e
	}
	given := make(map[string]yamldoc.Field)
	for _, f := range p.fields(n, path, inEntry) {
		at := path + "." + f.Name
		if yamldoc.IsNull(f.Value) {
			continue
		}
		given[f.Name] = f
		switch f.Name {
		case "key":
			e.Key, _ = p.String(f.Value, at)
			p.boundText(f, at, e.Key)
		case "from":
			e.From, _ = yamldoc.Enum(p.Reader, f.Value, at, sources[1:])
		case "name":
			p.readHeaderName(&e.Name, f, at)
		case "value", "default":
			e.Value, _ = p.String(f.Value, at)
			p.boundText(f, at, e.Value)
			if e.Value == "" {
				p.FaultAt(f.Line, at, "is empty; leave the key out to leave the descriptor out")
			}
		case "patterns":
			e.patterns = p.readPatterns(f, at)
		}
	}
	if e.Key == "" {
		p.Fault(n, path+".key", "an entry must have a key, which may not be empty")
	}
	p.checkEntry(n, path, &e, given)
	return e
}

// checkEntry holds the keys of an entry against each other.
func (p *parser) checkEntry(n *yaml.Node, path string, e *AuthorizeEntry, given map[string]yamldoc.Field) {
	from, sourced := given["from"]
	value, fixed := given["value"]
	name, named := given["name"]
	switch {
	case sourced && fixed:
		p.FaultAt(value.Line, path+".value", "excludes from; what stands in where the source has nothing is default")
	case !sourced && !fixed:
		p.Fault(n, path, "must say where its value comes from, with from, or have a value")
	case fixed:
		for _, other := range []string{"name", "patterns", "default"} {
			if f, ok := given[other]; ok {
				p.FaultAt(f.Line, path+"."+other, "has no effect beside value")
			}
		}
		return
	}
	switch {
	case e.From == FromHeader && !named:
		p.FaultAt(from.Line, path+".name", "is missing: name the header")
	case e.From != FromHeader && named:
		p.FaultAt(name.Line, path+".name", "is for from: header only")
	case e.From == FromHeader && strings.EqualFold(e.Name, "X-Forwarded-For"):
		p.FaultAt(name.Line, path+".name", "clients can put anything into X-Forwarded-For; use from: client_address")
	}
	if e.From == FromClientAddress {
		for _, other := range []string{"patterns", "default"} {
			if f, ok := given[other]; ok {
				p.FaultAt(f.Line, path+"."+other, "has no effect with from: client_address; every client has an address")
			}
		}
	}
}

// boundText rejects a text that no check could carry.
func (p *parser) boundText(f yamldoc.Field, path, text string) {
	if len(text) > MaxEntryBytes {
		p.FaultAt(f.Line, path, "has %d bytes, and a check cannot carry more than %d", len(text), MaxEntryBytes)
	}
}

func (p *parser) readPatterns(f yamldoc.Field, path string) (patterns []pattern) {
	items := p.Items(f.Value, path)
	switch n := len(items); {
	case n == 0 && f.Value.Kind == yaml.SequenceNode:
		p.FaultAt(f.Line, path, "is empty; leave the key out to take every value as it is")
	case n > maxPatterns:
		p.FaultAt(f.Line, path, "has %d patterns; at most %d are allowed", n, maxPatterns)
		return nil
	}
	for i, item := range items {
		at := indexed(path, i)
		text, ok := p.String(item, at)
		if ok && text == "" {
			p.Fault(item, at, "is empty")
		}
		p.boundText(yamldoc.Field{Line: item.Line}, at, text)
		one := pattern{text: text}
		if strings.Contains(text, "*") {
			w := newWildcard(text, nil)
			one.wild = &w
		}
		patterns = append(patterns, one)
	}
	return patterns
}
