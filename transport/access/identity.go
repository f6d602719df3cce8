package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"
	"slices"
	"sort"
	"strings"

	"github.com/sluicecluster/sluice/internal/inflow"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
)

// TokenHeader is the header for a proxy's token in calls about its clients' requests, without a scheme. Authorization has its
// clients' credentials there.
const TokenHeader = "Sluice-Token"

// Identity has the unverified token and the certificate of a caller. The zero value has none.
type Identity struct {
	shown  shown
	digest Digest
	// certificate is verified.
	certificate *x509.Certificate
	// addr or remote is where the call came from, for logs.
	addr   net.Addr
	remote string
}

// shown says whether there is a token. A token goes before a certificate, even a wrong one.
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
	id := Identity{remote: r.RemoteAddr, certificate: verified(r.TLS)}
	id.take(r.Header.Values("Authorization"))
	return id
}

// ofProxied returns the identity of a proxy in its call r about a request of its client.
func ofProxied(r *http.Request) Identity {
	id := Identity{remote: r.RemoteAddr, certificate: verified(r.TLS)}
	if values := r.Header.Values(TokenHeader); len(values) > 0 {
		id.shown = malformedToken
		if d, ok := DigestOf(values[0]); ok && len(values) == 1 {
			id.shown, id.digest = aToken, d
		}
	}
	return id
}

// verified returns the client's certificate if a CA has signed it; s is nil without TLS.
func verified(s *tls.ConnectionState) *x509.Certificate {
	if s == nil || len(s.VerifiedChains) == 0 || len(s.VerifiedChains[0]) == 0 {
		return nil
	}
	return s.VerifiedChains[0][0]
}

// Caller is one of the ACL, or without a name all other callers. It is immutable.
type Caller struct {
	// Name is for logs and messages.
	Name string
	// MaxKeys bounds the caller's counters on a node; 0 is no bound.
	MaxKeys int64
	exact   map[string]verbs
	// prefixes are sorted by text. Each of them and of exact includes the verbs of all prefixes that cover it.
	prefixes []prefix
}

// prefix has the verbs in domains that begin with text.
type prefix struct {
	text  string
	verbs verbs
	// outer is the place of the longest other prefix that text begins with; -1 if there is none.
	outer int
}

// grant has the verbs in domain, or (prefix) in domains that begin with it.
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

// longest returns the place of the longest prefix that s begins with, -1 for none. i is the place of the last one that is not
// above s. All between the result and s begin with it, so it is i or one that covers i.
func (c *Caller) longest(i int, s string) int {
	for i >= 0 && !strings.HasPrefix(s, c.prefixes[i].text) {
		i = c.prefixes[i].outer
	}
	return i
}

func (c *Caller) byPrefix(domain string) verbs {
	above := sort.Search(len(c.prefixes), func(i int) bool { return c.prefixes[i].text > domain })
	if i := c.longest(above-1, domain); i >= 0 {
		return c.prefixes[i].verbs
	}
	return 0
}

// Account is the account of the caller's counters if it has a bound; else "", for their domains.
func (c *Caller) Account() string {
	if c.MaxKeys == 0 {
		return ""
	}
	return "(caller) " + c.Name
}

// May reports whether the caller has verb in domain. The domain "" is all of them: it takes a grant of the domain *.
func (c *Caller) May(verb Verb, domain string) bool {
	if v, ok := c.exact[domain]; ok {
		return v.has(verb)
	}
	return c.byPrefix(domain).has(verb)
}

type operatorKey struct{}

// AsOperator marks ctx as of a call over the operators' socket, or with the operators' token. Without a policy Operate admits
// such calls alone. With one they may do everything, unless they have credentials, which go first.
func AsOperator(ctx context.Context) context.Context {
	return context.WithValue(ctx, operatorKey{}, true)
}

// IsOperator reports whether ctx is of AsOperator.
func IsOperator(ctx context.Context) bool {
	is, _ := ctx.Value(operatorKey{}).(bool)
	return is
}
