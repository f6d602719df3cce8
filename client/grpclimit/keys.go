package grpclimit

import (
	"context"
	"net/netip"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/sluicecluster/sluice/client/internal/key"
	"github.com/sluicecluster/sluice/client/limit"
	"github.com/sluicecluster/sluice/internal/leaf/descvalue"
)

// Key makes entries of a descriptor from a call. ok is false if the call lacks the value, for example a user: then the
// descriptor is not checked. The Limiter shortens values above 1 KiB or not UTF-8. The entries are not changed afterwards, so a
// Key may share them.
type Key func(c Call) (entries []limit.Entry, ok bool)

// As returns k with another name for its only entry: IP().As("remote_address").
func (k Key) As(name string) Key { return key.As(k, name) }

// Join joins keys to one descriptor, for example the method and the user. It applies only if all of them do.
func Join(keys ...Key) Key { return key.Join(keys) }

// First is the first of keys that applies: First(User(f), IP()) counts calls by user, and calls without one by address, so
// that leaving out the user does not bypass the limit.
func First(keys ...Key) Key { return key.First(keys) }

// Value is the constant entry (name, value).
func Value(name, value string) Key { return key.Value[Call](name, value) }

// From is the entry (name, result of f); it does not apply if the result is empty.
func From(name string, f func(c Call) string) Key { return key.From(name, f) }

// Method is the entry "method" with the full name of the call.
func Method() Key { return From("method", func(c Call) string { return c.Method }) }

// User is the entry "user" with the result of f, mostly from the call's context.
func User(f func(ctx context.Context) string) Key {
	return From("user", func(c Call) string { return f(c.Context) })
}

// Metadata is the entry (name, the last value of field in the metadata): of the incoming call on servers, of the outgoing
// one on clients. It does not apply without a value.
func Metadata(name, field string) Key {
	return From(name, func(c Call) string { return value(c, field) })
}

// APIKey is the entry "api_key" with a hash of the last value of field in the metadata, so that the secret is not sent:
// the first 128 bits of SHA-256 in hexadecimal.
func APIKey(field string) Key {
	return From("api_key", func(c Call) string {
		if v := value(c, field); v != "" {
			return descvalue.Hash(v)
		}
		return ""
	})
}

func value(c Call, field string) string {
	if values := callMetadata(c).Get(field); len(values) > 0 {
		return values[len(values)-1]
	}
	return ""
}

func callMetadata(c Call) metadata.MD {
	of := metadata.FromIncomingContext
	if c.Outgoing {
		of = metadata.FromOutgoingContext
	}
	md, _ := of(c.Context)
	return md
}

// IP is the entry "ip" with the address of the client. It is the connection's, unless that is one of the trusted
// proxies: then the metadata x-forwarded-for is read from its end, and the first address that is not a trusted proxy
// is the client's. IPv6 addresses count as the first of their /64. It does not apply to clients' calls, nor without an IP
// address.
func IP(trusted ...netip.Prefix) Key {
	return From("ip", func(c Call) string {
		p, ok := peer.FromContext(c.Context)
		if !ok || p.Addr == nil || c.Outgoing {
			return ""
		}
		return key.Client(p.Addr.String(), callMetadata(c).Get("x-forwarded-for"), trusted)
	})
}
