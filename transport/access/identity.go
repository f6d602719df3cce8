package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"slices"
	"strings"

	"github.com/sluice-project/sluice/internal/inflow"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// TokenHeader is where a proxy that asks about its clients' requests puts its token, as it is: what it passes on
// as Authorization are its clients' credentials, for others.
const TokenHeader = "Sluice-Token"

// Identity is what a caller has shown of itself, before it is known what that is worth. The zero value has shown
// nothing.
type Identity struct {
	shown  shown
	digest Digest
	// certificate is verified.
	certificate *x509.Certificate
	// addr or remote is where the call came from, for logs.
	addr   net.Addr
	remote string
}

// shown says whether there is a token. One that is there goes before a certificate, whatever it is worth: a wrong
// one is never passed over.
type shown uint8

const (
	noToken shown = iota
	malformedToken
	aToken
)

// Has reports whether id has shown the token of digest.
func (id *Identity) Has(digest Digest) bool { return id.shown == aToken && id.digest == digest }

// take reads the values of the header Authorization.
func (id *Identity) take(authorization []string) {
	if len(authorization) == 0 {
		return
	}
	id.shown = malformedToken
	if d, ok := bearer(authorization); ok {
		id.shown, id.digest = aToken, d
	}
}

// OfContext returns the identity of a gRPC call.
func OfContext(ctx context.Context) Identity {
	return ofContext(ctx, metadata.ValueFromIncomingContext(ctx, "authorization"))
}

func ofContext(ctx context.Context, authorization []string) (id Identity) {
	id.take(authorization)
	p, ok := peer.FromContext(ctx)
	if !ok {
		return id
	}
	id.addr = p.Addr
	if info, ok := inflow.AuthInfo(p.AuthInfo).(credentials.TLSInfo); ok {
		id.certificate = verified(&info.State)
	}
	return id
}

// OfRequest returns the identity of an HTTP request.
func OfRequest(r *http.Request) Identity {
	id := Identity{remote: r.RemoteAddr}
	id.take(r.Header.Values("Authorization"))
	if r.TLS != nil {
		id.certificate = verified(r.TLS)
	}
	return id
}

// OfProxied returns the identity of a proxy that asks about the request r of its client.
func OfProxied(r *http.Request) Identity {
	id := Identity{remote: r.RemoteAddr}
	if values := r.Header.Values(TokenHeader); len(values) > 0 {
		id.shown = malformedToken
		if d, ok := DigestOf(values[0]); ok && len(values) == 1 {
			id.shown, id.digest = aToken, d
		}
	}
	if r.TLS != nil {
		id.certificate = verified(r.TLS)
	}
	return id
}

// verified returns the client's certificate if a CA has signed it.
func verified(s *tls.ConnectionState) *x509.Certificate {
	if len(s.VerifiedChains) == 0 || len(s.VerifiedChains[0]) == 0 {
		return nil
	}
	return s.VerifiedChains[0][0]
}

// Caller is somebody whom the file names, or, without a name, everybody else. It is immutable.
type Caller struct {
	// Name is for logs and messages.
	Name string
	// MaxKeys is how many counters that the caller makes a node holds at once; 0 is no bound.
	MaxKeys int64
	exact   map[string]verbs
	// prefixes are sorted by their text. They and exact have the verbs of all that cover them.
	prefixes []prefix
}

// prefix is what domains may begin with.
type prefix struct {
	text  string
	verbs verbs
	// outer is the place of the longest other prefix that text begins with; -1 if there is none.
	outer int
}

// grant is one of the file's: the verbs in domains that are called, or begin with, a text.
type grant struct {
	domain string
	prefix bool
	verbs  verbs
}

// newCaller returns the caller with these grants.
func newCaller(name string, grants []grant) *Caller {
	c := &Caller{Name: name, exact: make(map[string]verbs)}
	begins := make(map[string]verbs)
	for _, g := range grants {
		if g.prefix {
			begins[g.domain] |= g.verbs
		} else {
			c.exact[g.domain] |= g.verbs
		}
	}
	for text, v := range begins {
		c.prefixes = append(c.prefixes, prefix{text: text, verbs: v})
	}
	slices.SortFunc(c.prefixes, func(a, b prefix) int { return strings.Compare(a.text, b.text) })
	for i := range c.prefixes {
		p := &c.prefixes[i]
		if p.outer = c.longest(i-1, p.text); p.outer >= 0 {
			p.verbs |= c.prefixes[p.outer].verbs
		}
	}
	for domain, v := range c.exact {
		c.exact[domain] = v | c.byPrefix(domain)
	}
	return c
}

// longest returns the place of the longest prefix that s begins with, -1 for none. i is the place of the last one that is
// not above s. All that lie between the one looked for and s begin with it, so it is i or one that i is within.
func (c *Caller) longest(i int, s string) int {
	for i >= 0 && !strings.HasPrefix(s, c.prefixes[i].text) {
		i = c.prefixes[i].outer
	}
	return i
}

func (c *Caller) byPrefix(domain string) verbs {
	low, high := 0, len(c.prefixes)
	for low < high {
		if mid := (low + high) / 2; c.prefixes[mid].text <= domain {
			low = mid + 1
		} else {
			high = mid
		}
	}
	if i := c.longest(low-1, domain); i >= 0 {
		return c.prefixes[i].verbs
	}
	return 0
}

// Account is what the caller's counters are accounted to where they have a bound; else "", for their domains.
func (c *Caller) Account() string {
	if c.MaxKeys == 0 {
		return ""
	}
	return "(caller) " + c.Name
}

// May reports whether the caller has verb in domain. The domain "" stands for all: it takes a grant of the
// domain *.
func (c *Caller) May(verb Verb, domain string) bool {
	if v, ok := c.exact[domain]; ok {
		return v.has(verb)
	}
	return c.byPrefix(domain).has(verb)
}

type operatorKey struct{}

// AsOperator returns ctx for a call that came in where operators alone can: over the operators' socket, or with the
// operators' token. Without a policy such calls alone may do what Operate guards. With one they may do everything, unless
// they show credentials, which go first.
func AsOperator(ctx context.Context) context.Context {
	return context.WithValue(ctx, operatorKey{}, true)
}

// IsOperator reports whether ctx is of AsOperator.
func IsOperator(ctx context.Context) bool {
	is, _ := ctx.Value(operatorKey{}).(bool)
	return is
}
