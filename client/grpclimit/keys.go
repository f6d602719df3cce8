package grpclimit

import (
	"context"
	"net/netip"

	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/sluice-project/sluice/client"
)

// Key makes entries of a descriptor from a call; method is its full name, such as "/pkg.Service/Method". ok is
// false where the call has nothing to make them of: then the descriptor is not asked.
type Key func(ctx context.Context, method string) (entries []client.Entry, ok bool)

// Keys joins keys to one descriptor, which is asked only where all of them apply.
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

// From is the entry (key, what f returns); it does not apply where that is empty.
func From(key string, f func(ctx context.Context, method string) string) Key {
	return func(ctx context.Context, method string) ([]client.Entry, bool) {
		v := f(ctx, method)
		return []client.Entry{{Key: key, Value: v}}, v != ""
	}
}

// Value is the entry (key, value), whatever the call.
func Value(key, value string) Key {
	return From(key, func(context.Context, string) string { return value })
}

// Method is the entry "method" with the full name of the call.
func Method() Key {
	return From("method", func(_ context.Context, method string) string { return method })
}

// Metadata is the entry (key, the last value of name in the metadata): of the incoming call on servers, of the outgoing
// one on clients. It does not apply where there is none.
func Metadata(key, name string) Key {
	return From(key, func(ctx context.Context, _ string) string {
		md, ok := metadata.FromIncomingContext(ctx)
		if !ok {
			md, _ = metadata.FromOutgoingContext(ctx)
		}
		if values := md.Get(name); len(values) > 0 {
			return values[len(values)-1]
		}
		return ""
	})
}

// Peer is the entry "ip" with the address of the caller's connection; IPv6 addresses count as their /64. It
// does not apply to clients' calls, nor where the connection has no IP address.
func Peer() Key {
	return From("ip", func(ctx context.Context, _ string) string {
		p, ok := peer.FromContext(ctx)
		if !ok || p.Addr == nil {
			return ""
		}
		at, err := netip.ParseAddrPort(p.Addr.String())
		if err != nil {
			return ""
		}
		a := at.Addr().Unmap().WithZone("")
		if a.Is6() {
			prefix, _ := a.Prefix(64) // fails for no IPv6 address
			return prefix.String()
		}
		return a.String()
	})
}
