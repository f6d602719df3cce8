package grpclimit

import (
	"context"
	"net/netip"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/sluice-project/sluice/client"
	"github.com/sluice-project/sluice/client/internal/key"
	"github.com/sluice-project/sluice/internal/leaf/descvalue"
)

// Key makes entries of a descriptor from a call; method is its full name, such as "/pkg.Service/Method". ok is false if the
// call lacks the value: then the descriptor is not checked. The client shortens values above 1 KiB or not UTF-8.
type Key func(ctx context.Context, method string) (entries []client.Entry, ok bool)

// As returns k with another name for its only entry: Peer().As("remote_address").
func (k Key) As(name string) Key {
	return func(ctx context.Context, method string) ([]client.Entry, bool) {
		entries, ok := k(ctx, method)
		if !ok || len(entries) == 0 {
			return nil, false
		}
		return []client.Entry{{Key: name, Value: entries[0].Value}}, true
	}
}

// Keys joins keys to one descriptor. It applies only if all of them do.
func Keys(keys ...Key) Key {
	return func(ctx context.Context, method string) ([]client.Entry, bool) {
		var all []client.Entry
		for _, k := range keys {
			entries, ok := k(ctx, method)
			if !ok {
				return nil, false
			}
			all = append(all, entries...)
		}
		return all, true
	}
}

// First is the first of keys that applies, for example a user, else the peer.
func First(keys ...Key) Key {
	return func(ctx context.Context, method string) ([]client.Entry, bool) {
		for _, k := range keys {
			if entries, ok := k(ctx, method); ok {
				return entries, true
			}
		}
		return nil, false
	}
}

// From is the entry (name, result of f); it does not apply if the result is empty.
func From(name string, f func(ctx context.Context, method string) string) Key {
	return func(ctx context.Context, method string) ([]client.Entry, bool) {
		v := f(ctx, method)
		return []client.Entry{{Key: name, Value: v}}, v != ""
	}
}

// Value is the constant entry (name, value).
func Value(name, value string) Key {
	return From(name, func(context.Context, string) string { return value })
}

// Method is the entry "method" with the full name of the call.
func Method() Key {
	return From("method", func(_ context.Context, method string) string { return method })
}

// User is the entry "user" with the result of f, mostly from the call's context.
func User(f func(ctx context.Context) string) Key {
	return From("user", func(ctx context.Context, _ string) string { return f(ctx) })
}

// Metadata is the entry (name, the last value of field in the metadata): of the incoming call on servers, of the outgoing
// one on clients. It does not apply without a value.
func Metadata(name, field string) Key {
	return From(name, func(ctx context.Context, _ string) string { return value(ctx, field) })
}

// APIKey is the entry "api_key" with a hash of the last value of field in the metadata, so that the secret is not sent:
// the first 128 bits of SHA-256 in hexadecimal.
func APIKey(field string) Key {
	return From("api_key", func(ctx context.Context, _ string) string {
		if v := value(ctx, field); v != "" {
			return descvalue.Hash(v)
		}
		return ""
	})
}

func value(ctx context.Context, field string) string {
	if values := callMetadata(ctx).Get(field); len(values) > 0 {
		return values[len(values)-1]
	}
	return ""
}

// outgoing marks the context of a client's call. When a server makes it, the context has the metadata and the peer of
// both calls.
type outgoing struct{}

func isOutgoing(ctx context.Context) bool { return ctx.Value(outgoing{}) != nil }

func callMetadata(ctx context.Context) metadata.MD {
	if isOutgoing(ctx) {
		md, _ := metadata.FromOutgoingContext(ctx)
		return md
	}
	md, _ := metadata.FromIncomingContext(ctx)
	return md
}

// Peer is the entry "ip" with the address of the client. It is the connection's, unless that is one of the trusted
// proxies: then the metadata x-forwarded-for is read from its end, and the first address that is not a trusted proxy
// is the client's. IPv6 addresses count as the first of their /64. It does not apply to clients' calls, nor without an IP
// address.
func Peer(trusted ...netip.Prefix) Key {
	return From("ip", func(ctx context.Context, _ string) string {
		p, ok := peer.FromContext(ctx)
		if !ok || p.Addr == nil || isOutgoing(ctx) {
			return ""
		}
		a, ok := key.Parse(p.Addr.String())
		if !ok {
			return ""
		}
		return key.Network(key.Origin(a, callMetadata(ctx).Get("x-forwarded-for"), trusted))
	})
}
