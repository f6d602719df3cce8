package rules

import (
	"fmt"
	"net/netip"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sluice-project/sluice/internal/yamldoc"
)

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
