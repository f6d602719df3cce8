package access

import (
	"crypto/x509"
	"sync"
	"sync/atomic"
)

// maxCertificates bounds the certificates whose caller a Policy remembers.
const maxCertificates = 4096

// Policy is what a callers file says. It is safe for concurrent use, and does not change.
type Policy struct {
	tokens map[Digest]*Caller
	names  map[certName]*Caller
	// anonymous is everybody without credentials; nil if these have no grant.
	anonymous *Caller
	callers   int
	maxKeys   map[string]int64

	// known remembers whose a certificate is, so that its names are put together once for a connection.
	known struct {
		callers sync.Map // *x509.Certificate to *Caller
		size    atomic.Int64
	}
	quick quick
}

// certKind is a part of a certificate that names somebody.
type certKind uint8

const (
	certURI certKind = iota
	certDNS
	certCN
)

var certKinds = [...]string{certURI: "uri", certDNS: "dns", certCN: "cn"}

// certName is a name and the part of a certificate that it stands in: a common name is no DNS name.
type certName struct {
	kind certKind
	name string
}

// Callers returns how many the file names.
func (p *Policy) Callers() int { return p.callers }

// MaxKeys returns the bounds of callers' counters by Caller.Account.
func (p *Policy) MaxKeys() map[string]int64 { return p.maxKeys }

// Token returns the caller whose token has this digest, nil if there is none.
func (p *Policy) Token(d Digest) *Caller { return p.tokens[d] }

// Anonymous returns what those without credentials are, nil if they may do nothing.
func (p *Policy) Anonymous() *Caller { return p.anonymous }

// Certificate returns the caller whom a verified certificate names, nil if it names none: by a URI, else by a DNS
// name, else by its common name; of several, by the first that the file has.
func (p *Policy) Certificate(c *x509.Certificate) *Caller {
	if len(p.names) == 0 {
		return nil
	}
	if caller, ok := p.known.callers.Load(c); ok {
		return caller.(*Caller)
	}
	caller := p.named(c)
	if p.known.size.Add(1) > maxCertificates {
		p.known.callers.Clear()
		p.known.size.Store(1)
	}
	p.known.callers.Store(c, caller)
	return caller
}

func (p *Policy) named(c *x509.Certificate) *Caller {
	for _, u := range c.URIs {
		if caller := p.names[certName{certURI, u.String()}]; caller != nil {
			return caller
		}
	}
	for _, name := range c.DNSNames {
		if caller := p.names[certName{certDNS, name}]; caller != nil {
			return caller
		}
	}
	return p.names[certName{certCN, c.Subject.CommonName}]
}
