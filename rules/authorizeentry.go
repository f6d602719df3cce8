package rules

import (
	"math"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluicecluster/sluice/internal/yamldoc"
)

func (p *parser) readAuthorized(a *Authorize, list yamldoc.Field) {
	for _, item := range p.items(list, maxAuthorized, "descriptors", "name at least one descriptor to check") {
		before := p.Count()
		entries := p.items(item, math.MaxInt, "", "")
		switch n := len(entries); {
		case n == 0 && p.Count() == before:
			p.reject(item, "has no entries; a descriptor is a list of them")
		case n > MaxDepth:
			p.reject(item, "has %d entries; no rule lies deeper than %d", n, MaxDepth)
			continue
		}
		var descriptor []AuthorizeEntry
		for _, entry := range entries {
			descriptor = append(descriptor, p.readAuthorizeEntry(entry))
		}
		a.Descriptors = append(a.Descriptors, descriptor)
	}
}

func (p *parser) readAuthorizeEntry(at yamldoc.Field) (e AuthorizeEntry) {
	if at.Value.Kind != yaml.MappingNode {
		p.reject(at, "every entry of a descriptor must be a mapping with a key")
		return e
	}
	value := func(f yamldoc.Field) {
		p.text(&e.Value)(f)
		p.boundText(f, e.Value)
		if e.Value == "" && !yamldoc.IsNull(f.Value) {
			p.reject(f, "is empty; leave the key out to leave the descriptor out")
		}
	}
	given := p.read(at.Value, at.Path, inEntry, keys{
		"key":      p.text(&e.Key),
		"from":     enum(p, &e.From, sources[1:]),
		"name":     p.headerName(&e.Name),
		"value":    value,
		"default":  value,
		"patterns": func(f yamldoc.Field) { e.patterns = p.readPatterns(f) },
	})
	p.boundText(given["key"], e.Key)
	if e.Key == "" {
		p.ErrorfAt(at.Line, at.Path+".key", "an entry must have a key, which may not be empty")
	}
	p.checkEntry(at, &e, given)
	return e
}

// checkEntry checks which keys of an entry go together.
func (p *parser) checkEntry(at yamldoc.Field, e *AuthorizeEntry, given map[string]yamldoc.Field) {
	reject := func(reason string, names ...string) {
		for _, name := range names {
			if f, ok := given[name]; ok {
				p.reject(f, "%s", reason)
			}
		}
	}
	from, sourced := given["from"]
	_, fixed := given["value"]
	_, named := given["name"]
	switch {
	case sourced && fixed:
		reject("excludes from; default is the value where the source has none", "value")
	case !sourced && !fixed:
		p.reject(at, "must say where its value comes from, with from, or have a value")
	case fixed:
		reject("has no effect beside value", "name", "patterns", "default")
		return
	}
	switch {
	case e.From == FromHeader && !named:
		p.ErrorfAt(from.Line, at.Path+".name", "is missing: name the header")
	case e.From != FromHeader:
		reject("is for from: header only", "name")
	case strings.EqualFold(e.Name, "X-Forwarded-For"):
		reject("clients can put anything into X-Forwarded-For; use from: client_address", "name")
	}
	if e.From == FromClientAddress {
		reject("has no effect with from: client_address; every client has an address", "patterns", "default")
	}
}

// boundText rejects a text that no check can carry.
func (p *parser) boundText(f yamldoc.Field, text string) {
	if len(text) > MaxEntryBytes {
		p.reject(f, "has %d bytes, and a check cannot carry more than %d", len(text), MaxEntryBytes)
	}
}

func (p *parser) readPatterns(list yamldoc.Field) (patterns []pattern) {
	for _, item := range p.items(list, maxPatterns, "patterns", "leave the key out to take every value as it is") {
		text, ok := p.String(item.Value, item.Path)
		if ok && text == "" {
			p.reject(item, "is empty")
		}
		p.boundText(item, text)
		p.warnOfLiteral(item, "", text)
		one := pattern{text: text}
		if strings.Contains(text, "*") {
			w := newWildcard(text, nil)
			one.wild = &w
		}
		patterns = append(patterns, one)
	}
	return patterns
}
