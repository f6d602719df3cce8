package rules

import (
	"net/netip"
	"slices"
)

// Authorize says what the forward auth door checks of a request in one domain. It is
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

// Authorize returns what the forward auth door checks in a domain, nil if it answers none there.
func (s *Set) Authorize(domain string) *Authorize { return s.authorize[domain] }
