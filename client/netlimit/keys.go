package netlimit

import (
	"net"

	"github.com/sluicecluster/sluice/client/internal/key"
	"github.com/sluicecluster/sluice/client/limit"
)

// Key makes entries of a descriptor from a connection. ok is false if it lacks the value: then the descriptor is not checked.
type Key func(c net.Conn) (entries []limit.Entry, ok bool)

// As returns k with another name for its only entry: IP().As("remote_address").
func (k Key) As(name string) Key { return key.As(k, name) }

// Join joins keys to one descriptor. It applies only if all of them do.
func Join(keys ...Key) Key { return key.Join(keys) }

// First is the first of keys that applies.
func First(keys ...Key) Key { return key.First(keys) }

// Value is the constant entry (name, value).
func Value(name, value string) Key { return key.Value[net.Conn](name, value) }

// From is the entry (name, result of f); it does not apply if the result is empty.
func From(name string, f func(c net.Conn) string) Key { return key.From(name, f) }

// IP is the entry "ip" with the address of the client. IPv6 addresses count as the first of their /64. It does not apply
// without an IP address.
func IP() Key {
	return From("ip", func(c net.Conn) string {
		if addr := c.RemoteAddr(); addr != nil {
			return key.Client(addr.String(), nil, nil)
		}
		return ""
	})
}
