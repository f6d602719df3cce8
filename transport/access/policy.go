package access

import (
	"crypto/x509"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/yamldoc"
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

// Verb is something that a caller may do in a domain.
type Verb uint8

const (
	// Check spends if the limits admit it, with any cost.
	Check Verb = iota
	// Read looks at counters, keys and what is counted of them, and changes nothing.
	Read
	// Charge spends whatever the limits say, and reports the load of pools.
	Charge
	// Refund gives back.
	Refund
	// Reset forgets counters.
	Reset
	// Admin is about the cluster and not about one domain.
	Admin
	verbCount
)

var verbNames = [verbCount]string{"check", "read", "charge", "refund", "reset", "admin"}

func (v Verb) String() string {
	if v >= verbCount {
		return "unknown"
	}
	return verbNames[v]
}

// VerbOf returns what a check of verb v does. Verbs that there are not are Admin: the limiter rejects them, and before
// that only those who may do everything get there.
func VerbOf(v bucket.Verb) Verb {
	switch v {
	case bucket.Check:
		return Check
	case bucket.Read:
		return Read
	case bucket.Charge:
		return Charge
	case bucket.Refund:
		return Refund
	case bucket.Reset:
		return Reset
	}
	return Admin
}

// verbs is a set of them, a bit for each.
type verbs uint8

func (s verbs) has(v Verb) bool { return s&(1<<v) != 0 }

func (s verbs) String() string {
	var list []string
	for v := range verbCount {
		if s.has(v) {
			list = append(list, v.String())
		}
	}
	return strings.Join(list, ", ")
}

// verbValues are the verbs as the file spells them.
var verbValues = func() (list []yamldoc.Named[Verb]) {
	for v := range verbCount {
		list = append(list, yamldoc.Named[Verb]{Name: v.String(), Value: v})
	}
	return list
}()
