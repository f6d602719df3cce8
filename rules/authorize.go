package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluicecluster/sluice/internal/yamldoc"
	"go.yaml.in/yaml/v3"
)

// Authorize says what the forward auth API checks of a request in one domain. It is immutable.
type Authorize struct {
	// File and Line locate it.
	File string
	Line int
	// Trusted are the networks of the proxies whose headers are trusted; if empty, no header is.
	Trusted []netip.Prefix
	Client  ClientAddress
	// Original names the headers in which a proxy sends the original request.
	Original Original
	// DeniedStatus is the status of denials, 400 to 599; 0 leaves it to the rule.
	DeniedStatus int
	// AllOrNothing: the descriptors of a request are an atomic batch.
	AllOrNothing bool
	// Descriptors are checked for each request. Each has at least one entry.
	Descriptors [][]AuthorizeEntry
}

// ClientAddress says where the client's address is and how many bits of it count.
type ClientAddress struct {
	// Header has the addresses that the request passed through, the nearest one last.
	Header string
	IPPrefix
}

// Original names headers, each for one part of a request.
type Original struct{ Method, URI, Host string }

// Source says where the value of an AuthorizeEntry comes from.
type Source uint8

const (
	// FromFile is the value that the file gives.
	FromFile Source = iota
	// FromClientAddress is the client's network, spelled as its first address.
	FromClientAddress
	// FromHeader is a header of the request.
	FromHeader
	// FromMethod is the request's method.
	FromMethod
	// FromHost is the host that the request names: in lower case, without a port.
	FromHost
	// FromPath is the request's path, decoded and without detours or a query.
	FromPath
)

func (s Source) String() string { return nameOf(sources, s) }

// AuthorizeEntry makes one entry of a descriptor.
type AuthorizeEntry struct {
	Key  string
	From Source
	// Name is the header of FromHeader, in the case that the file has.
	Name string
	// Value is that of FromFile. Otherwise it is the default if the source is empty or no pattern matches it; without a
	// default the descriptor is left out.
	Value    string
	patterns []pattern
}

// pattern is a text in which * stands for any characters.
type pattern struct {
	text string
	wild *wildcard // nil without a *
}

// Of returns the value of the entry for the text of its source: the first pattern that matches, or the text itself if the
// entry has no patterns. It is "" if the descriptor is to be left out. Of does not allocate.
func (e *AuthorizeEntry) Of(source string) string {
	switch {
	case source == "":
		return e.Value
	case len(e.patterns) == 0:
		return source
	}
	for i := range e.patterns {
		if p := &e.patterns[i]; p.text == source || p.wild != nil && p.wild.matches(source) {
			return p.text
		}
	}
	return e.Value
}

// Trusts reports whether addr is a trusted proxy's address. An IPv4 address mapped into IPv6 is that IPv4 address, and
// the zone of an IPv6 address does not count.
func (a *Authorize) Trusts(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(a.Trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Authorize returns what the forward auth API checks in a domain, nil if it checks nothing.
func (s *Set) Authorize(domain string) *Authorize {
	if d := s.domains[domain]; d != nil {
		return d.authorize
	}
	return nil
}

// Bounds of authorize, which is evaluated for every request.
const (
	maxTrusted    = 256
	maxAuthorized = 32 // descriptors
	maxPatterns   = 256
)

// readAuthorize reads the key authorize.
func (p *parser) readAuthorize(key yamldoc.Field) {
	a := &Authorize{
		File: p.file, Line: key.Line,
		Client:       ClientAddress{Header: "X-Forwarded-For", IPPrefix: IPPrefix{V4: 32, V6: 64}},
		Original:     Original{Method: "X-Forwarded-Method", URI: "X-Forwarded-Uri", Host: "X-Forwarded-Host"},
		AllOrNothing: true,
	}
	original := keys{
		"method": p.headerName(&a.Original.Method), "uri": p.headerName(&a.Original.URI), "host": p.headerName(&a.Original.Host),
	}
	given := p.read(key.Value, "authorize", inAuthorize, keys{
		"trusted_proxies": func(f yamldoc.Field) { p.readTrusted(a, f) },
		"client_address":  func(f yamldoc.Field) { p.readClientAddress(a, f) },
		"original":        func(f yamldoc.Field) { p.read(f.Value, f.Path, inOriginal, original) },
		"denied_status":   number(p, &a.DeniedStatus, 400, 599),
		"all_or_nothing":  p.boolean(&a.AllOrNothing),
		"descriptors":     func(f yamldoc.Field) { p.readAuthorized(a, f) },
	})
	if key.Value.Kind != yaml.MappingNode {
		return // rejected above
	}
	if _, ok := given["descriptors"]; !ok {
		p.ErrorfAt(key.Line, "authorize.descriptors", "is missing: name at least one descriptor to check")
	}
	clients := func(e AuthorizeEntry) bool { return e.From == FromClientAddress }
	if len(a.Trusted) == 0 && slices.ContainsFunc(slices.Concat(a.Descriptors...), clients) {
		p.warn(a.Line, "authorize.trusted_proxies", "without trusted_proxies the client's address is that of the proxy, so all clients are one")
	}
	if other := p.domain.authorize; other != nil {
		p.reject(key, "the domain has one already, at %s:%d", other.File, other.Line)
		return
	}
	p.domain.authorize = a
}

func (p *parser) readTrusted(a *Authorize, list yamldoc.Field) {
	for _, item := range p.items(list, maxTrusted, "networks", "") {
		text, ok := p.String(item.Value, item.Path)
		if !ok {
			continue
		}
		network, err := readNetwork(text)
		if err != nil {
			p.reject(item, "%s", err)
			continue
		}
		if network.Bits() == 0 {
			p.warn(item.Line, item.Path, "every caller is trusted: any client that reaches this node can name any address as its own")
		}
		a.Trusted = append(a.Trusted, network)
	}
}

// readNetwork reads an address or a CIDR prefix. A network of IPv4 addresses mapped into IPv6 is that of the IPv4 addresses.
func readNetwork(text string) (network netip.Prefix, err error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		if addr.Zone() != "" {
			return network, fmt.Errorf("%s has a zone, which addresses of callers are compared without", yamldoc.Quote(text))
		}
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	network, err = netip.ParsePrefix(text)
	if err != nil {
		return network, fmt.Errorf("%s is neither an address nor a network such as 10.0.0.0/8", yamldoc.Quote(text))
	}
	if masked := network.Masked(); masked != network {
		return network, fmt.Errorf("%s has bits beyond its length; did you mean %s?", yamldoc.Quote(text), masked)
	}
	const mapped = 96
	if network.Addr().Is4In6() && network.Bits() >= mapped {
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-mapped)
	}
	return network, nil
}

func (p *parser) readClientAddress(a *Authorize, at yamldoc.Field) {
	given := p.read(at.Value, at.Path, inClientAddress, keys{
		"header": p.headerName(&a.Client.Header), "v4": number(p, &a.Client.V4, 1, 32), "v6": number(p, &a.Client.V6, 1, 128),
	})
	if strings.EqualFold(a.Client.Header, "Forwarded") {
		p.reject(given["header"], "Forwarded is not read; have the proxy send X-Forwarded-For or a header with the address alone")
	}
}

// headerName reads the name of a header of requests.
func (p *parser) headerName(to *string) func(yamldoc.Field) {
	return func(f yamldoc.Field) {
		name, ok := p.String(f.Value, f.Path)
		switch {
		case !ok:
		case !isToken(name):
			p.reject(f, "%s is not the name of an HTTP header", yamldoc.Quote(name))
		case strings.EqualFold(name, "Host"):
			p.reject(f, "Host is not read as a header; an entry takes it with from: host")
		default:
			*to = name
		}
	}
}

// warnOfUnmatched warns of descriptors that no rule of their domain can match, so that no limit applies to them. All
// files must have been read.
func (s *Set) warnOfUnmatched() {
	for _, name := range s.Domains() {
		d := s.domains[name]
		if d.authorize == nil {
			continue
		}
		for i, entries := range d.authorize.Descriptors {
			if !d.root.leads(entries) {
				s.warnings = append(s.warnings, Warning{File: d.authorize.File, Line: d.authorize.Line, Path: indexed("authorize.descriptors", i),
					Text: "no rule of the domain has these keys, so nothing limits what is checked here"})
			}
		}
	}
}

// leads reports whether a descriptor with the keys of d can match a rule. It ignores values.
func (n *node) leads(d []AuthorizeEntry) bool {
	if len(d) == 0 || n.otherwise != nil {
		return n.rule != nil || n.otherwise != nil
	}
	if to := n.byKey[d[0].Key]; to != nil && to.leads(d[1:]) {
		return true
	}
	for e, to := range n.exact {
		if e.Key == d[0].Key && to.leads(d[1:]) {
			return true
		}
	}
	return false
}
