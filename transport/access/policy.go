package access

import (
	"crypto/x509"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/yamldoc"
)

// maxCertificates bounds the certificates whose callers a Policy remembers.
const maxCertificates = 4096

// Policy is an ACL. It is safe for concurrent use, and does not change.
type Policy struct {
	tokens map[Digest]*Caller
	names  map[certName]*Caller
	// anonymous are callers without credentials; nil if these have no grant.
	anonymous *Caller
	callers   int
	maxKeys   map[string]int64

	// known has the callers of certificates, so that their names are matched once for a connection.
	known struct {
		callers sync.Map // *x509.Certificate to *Caller
		size    atomic.Int64
	}
	quick quick
}

// certKind is a part of a certificate with a name.
type certKind uint8

const (
	certURI certKind = iota
	certDNS
	certCN
)

var certKinds = [...]string{certURI: "uri", certDNS: "dns", certCN: "cn"}

// certName is a name and its part of a certificate: a common name is no DNS name.
type certName struct {
	kind certKind
	name string
}

// Callers returns their number.
func (p *Policy) Callers() int { return p.callers }

// MaxKeys returns the bounds of callers' counters by Caller.Account.
func (p *Policy) MaxKeys() map[string]int64 { return p.maxKeys }

// Certificate returns the caller of a verified certificate, or nil: by a URI, else a DNS name, else its common name; of
// several, by the first that the ACL has.
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

// Verb is a permission in a domain.
type Verb uint8

const (
	Check  Verb = iota // spend if the limits admit it
	Read               // see counters, keys and statistics
	Charge             // spend regardless of the limits, and report the load of pools
	Refund             // give back
	Reset              // delete counters
	Admin              // operate the cluster, not one domain
	verbCount
)

var verbNames = [verbCount]string{"check", "read", "charge", "refund", "reset", "admin"}

func (v Verb) String() string {
	if v >= verbCount {
		return "unknown"
	}
	return verbNames[v]
}

var verbOf = [...]Verb{
	bucket.Check: Check, bucket.Read: Read, bucket.Charge: Charge, bucket.Refund: Refund, bucket.Reset: Reset,
}

// VerbOf returns the permission that a check of verb v needs: Admin for unknown verbs, which the limiter rejects.
func VerbOf(v bucket.Verb) Verb {
	if int(v) < len(verbOf) {
		return verbOf[v]
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

// verbValues are the verbs by their names in the file.
var verbValues = func() (list []yamldoc.Named[Verb]) {
	for v := range verbCount {
		list = append(list, yamldoc.Named[Verb]{Name: v.String(), Value: v})
	}
	return list
}()
