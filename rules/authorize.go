package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/sluice-project/sluice/internal/yamldoc"
	"go.yaml.in/yaml/v3"
)

// Authorize says what the forward auth API checks of a request in one domain. It is
// immutable.
type Authorize struct {
	// File and Line say where it is written.
	File string
	Line int
	// Trusted are the networks of the proxies whose word about a request is taken. None
	// means nobody's.
	Trusted []netip.Prefix
	// Client says how the client's address is found and counted.
	Client ClientAddress
	// Original names the headers in which a proxy tells what it was asked.
	Original Original
	// DeniedStatus is answered to what is denied, 400 to 599; 0 leaves it to the rule.
	DeniedStatus int
	// AllOrNothing: a request that one of its descriptors denies costs the others nothing.
	AllOrNothing bool
	// Descriptors are what is checked of each request. Each has at least one entry.
	Descriptors [][]AuthorizeEntry
}

// ClientAddress says where the client's address stands and how much of it counts.
type ClientAddress struct {
	// Header has the addresses that a request came through, the nearest one last.
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
	// Value is that of FromFile. Elsewhere it stands in where the source has nothing, or nothing
	// that one of the patterns matches; "" is no stand-in: the descriptor is then left out.
	Value    string
	patterns []pattern
}

// pattern is a text in which * stands for any characters.
type pattern struct {
	text string
	wild *wildcard // nil without a *
}

func (p *pattern) matches(s string) bool {
	if p.wild != nil {
		return p.wild.matches(s)
	}
	return p.text == s
}

// Of returns the value of the entry for what its source has, "" for nothing: the first
// pattern that matches, or where there are none, that itself. It is "" if the descriptor
// is to be left out. Of does not allocate.
func (e *AuthorizeEntry) Of(source string) string {
	if source == "" || len(e.patterns) == 0 {
		if source == "" {
			return e.Value
		}
		return source
	}
	for i := range e.patterns {
		if e.patterns[i].matches(source) {
			return e.patterns[i].text
		}
	}
	return e.Value
}

// Bounded reports whether the values of the entry are those that stand in the file, however long
// what the source has.
func (e *AuthorizeEntry) Bounded() bool { return e.From == FromFile || len(e.patterns) > 0 }

// Trusts reports whether a is a trusted proxy's address. An IPv4 address mapped into IPv6 is that IPv4
// address, and the zone of an IPv6 address does not count.
func (a *Authorize) Trusts(addr netip.Addr) bool {
	addr = addr.Unmap().WithZone("")
	return slices.ContainsFunc(a.Trusted, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Mask returns the first address of the network that addr is in, which for a whole address is
// addr itself. It is unmapped and has no zone. addr must be valid.
func (p IPPrefix) Mask(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	bits := p.V6
	if addr.Is4() {
		bits = p.V4
	}
	return netip.PrefixFrom(addr, bits).Masked().Addr()
}

// Authorize returns what the forward auth API checks in a domain, nil if it answers none there.
func (s *Set) Authorize(domain string) *Authorize { return s.authorize[domain] }

// Bounds of authorize, which is worked through for every request.
const (
	maxTrusted    = 256
	maxAuthorized = 32 // descriptors
	maxPatterns   = 256
)

// defaultAuthorize is what an authorize says that says nothing.
func defaultAuthorize() *Authorize {
	return &Authorize{
		Client:       ClientAddress{Header: "X-Forwarded-For", IPPrefix: IPPrefix{V4: 32, V6: 64}},
		Original:     Original{Method: "X-Forwarded-Method", URI: "X-Forwarded-Uri", Host: "X-Forwarded-Host"},
		AllOrNothing: true,
	}
}

// readAuthorize reads the key authorize of the file that describes domain.
func (p *parser) readAuthorize(key yamldoc.Field, domain string) {
	if yamldoc.IsNull(key.Value) {
		return
	}
	a := defaultAuthorize()
	a.File, a.Line = p.file, key.Line
	given := false
	fields := p.fields(key.Value, "authorize", inAuthorize)
	if key.Value.Kind != yaml.MappingNode {
		return // a fault already
	}
	for _, f := range fields {
		at := "authorize." + f.Name
		switch f.Name {
		case "trusted_proxies":
			p.readTrusted(a, f, at)
		case "client_address":
			p.readClientAddress(a, f.Value, at)
		case "original":
			p.readOriginal(a, f.Value, at)
		case "denied_status":
			status, _ := p.Int(f.Value, at, 400, 599)
			a.DeniedStatus = int(status)
		case "all_or_nothing":
			if v, ok := p.Bool(f.Value, at); ok {
				a.AllOrNothing = v
			}
		case "descriptors":
			given = !yamldoc.IsNull(f.Value)
			p.readAuthorized(a, f, at)
		}
	}
	if !given {
		p.FaultAt(key.Line, "authorize.descriptors", "is missing: name at least one descriptor to check")
	}
	p.warnOfProxies(a)
	if other := p.set.authorize[domain]; other != nil {
		p.FaultAt(key.Line, "authorize", "the domain has one already, at %s:%d", other.File, other.Line)
		return
	}
	p.set.authorize[domain] = a
}

func (p *parser) readTrusted(a *Authorize, f yamldoc.Field, path string) {
	items := p.Items(f.Value, path)
	if len(items) > maxTrusted {
		p.FaultAt(f.Line, path, "has %d networks; at most %d are allowed", len(items), maxTrusted)
		return
	}
	for i, item := range items {
		at := indexed(path, i)
		text, ok := p.String(item, at)
		if !ok {
			continue
		}
		network, reason := readNetwork(text)
		if reason != "" {
			p.Fault(item, at, "%s", reason)
			continue
		}
		if network.Bits() == 0 {
			p.warn(item.Line, at, "every caller is trusted: whoever reaches this node can name any address as the client's")
		}
		a.Trusted = append(a.Trusted, network)
	}
}

// readNetwork reads an address or a CIDR prefix, and says what is wrong with it, or "". A network of IPv4
// addresses mapped into IPv6 is that of the IPv4 addresses.
func readNetwork(text string) (network netip.Prefix, reason string) {
	if addr, err := netip.ParseAddr(text); err == nil {
		if addr.Zone() != "" {
			return network, fmt.Sprintf("%s has a zone, which addresses of callers are compared without", yamldoc.Quote(text))
		}
		addr = addr.Unmap()
		return netip.PrefixFrom(addr, addr.BitLen()), ""
	}
	network, err := netip.ParsePrefix(text)
	if err != nil {
		return network, fmt.Sprintf("%s is neither an address nor a network such as 10.0.0.0/8", yamldoc.Quote(text))
	}
	if masked := network.Masked(); masked != network {
		return network, fmt.Sprintf("%s has bits beyond its length; did you mean %s?", yamldoc.Quote(text), masked)
	}
	const mapped = 96
	if network.Addr().Is4In6() && network.Bits() >= mapped {
		network = netip.PrefixFrom(network.Addr().Unmap(), network.Bits()-mapped)
	}
	return network, ""
}

func (p *parser) readClientAddress(a *Authorize, n *yaml.Node, path string) {
	for _, f := range p.fields(n, path, inClientAddress) {
		at := path + "." + f.Name
		switch f.Name {
		case "header":
			p.readHeaderName(&a.Client.Header, f, at)
			if strings.EqualFold(a.Client.Header, "Forwarded") {
				p.FaultAt(f.Line, at, "Forwarded is not read; have the proxy send X-Forwarded-For or a header with the address alone")
			}
		case "v4":
			if bits, ok := p.Int(f.Value, at, 1, 32); ok {
				a.Client.V4 = int(bits)
			}
		case "v6":
			if bits, ok := p.Int(f.Value, at, 1, 128); ok {
				a.Client.V6 = int(bits)
			}
		}
	}
}

func (p *parser) readOriginal(a *Authorize, n *yaml.Node, path string) {
	for _, f := range p.fields(n, path, inOriginal) {
		at := path + "." + f.Name
		switch f.Name {
		case "method":
			p.readHeaderName(&a.Original.Method, f, at)
		case "uri":
			p.readHeaderName(&a.Original.URI, f, at)
		case "host":
			p.readHeaderName(&a.Original.Host, f, at)
		}
	}
}

// readHeaderName reads the name of a header of requests into to.
func (p *parser) readHeaderName(to *string, f yamldoc.Field, path string) {
	name, ok := p.String(f.Value, path)
	switch {
	case !ok:
	case !isToken(name):
		p.FaultAt(f.Line, path, "%s is not the name of an HTTP header", yamldoc.Quote(name))
	case strings.EqualFold(name, "Host"):
		p.FaultAt(f.Line, path, "Host is not read as a header; an entry takes it with from: host")
	default:
		*to = name
	}
}

// warnOfProxies warns of what makes all clients one.
func (p *parser) warnOfProxies(a *Authorize) {
	if len(a.Trusted) > 0 {
		return
	}
	for _, d := range a.Descriptors {
		for i := range d {
			if d[i].From == FromClientAddress {
				p.warn(a.Line, "authorize.trusted_proxies", "without trusted_proxies the client's address is that of the proxy that asks, so all clients are one")
				return
			}
		}
	}
}

// warnOfUnmatched warns of descriptors that no rule of their domain is for: nothing would ever
// limit them. It is asked when all files have been read.
func (s *Set) warnOfUnmatched() {
	for _, domain := range s.Domains() {
		a := s.authorize[domain]
		if a == nil {
			continue
		}
		for i, d := range a.Descriptors {
			if !s.domains[domain].leads(d) {
				s.warnings = append(s.warnings, Warning{File: a.File, Line: a.Line, Path: indexed("authorize.descriptors", i),
					Text: "no rule of the domain has these keys, so nothing limits what is checked here"})
			}
		}
	}
}

// leads reports whether a descriptor with the keys of d can come to a rule. What values
// there can be is not looked at.
func (n *node) leads(d []AuthorizeEntry) bool {
	if len(d) == 0 {
		return n.rule != nil
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
