package access

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/sluice-project/sluice/internal/inflow"
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

// verified returns the client's certificate if a CA vouches for it.
func verified(s *tls.ConnectionState) *x509.Certificate {
	if len(s.VerifiedChains) == 0 || len(s.VerifiedChains[0]) == 0 {
		return nil
	}
	return s.VerifiedChains[0][0]
}
