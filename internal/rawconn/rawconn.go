package rawconn

import (
	"context"
	"net"

	"google.golang.org/grpc/credentials"
)

// Listener gives out connections of this package.
type Listener struct{ net.Listener }

// Accept returns the next one.
func (l Listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return wrap(c), nil
}

// Credentials are c for those who dial, over connections of this package. By then gRPC has been through a proxy if there is one, and has
// set the options of a socket whose type it knows; sockets of other kinds are as ever.
func Credentials(c credentials.TransportCredentials) credentials.TransportCredentials {
	return under{c}
}

type under struct {
	credentials.TransportCredentials
}

func (u under) ClientHandshake(ctx context.Context, authority string, c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	return u.TransportCredentials.ClientHandshake(ctx, authority, wrap(c))
}

func (u under) Clone() credentials.TransportCredentials { return under{u.TransportCredentials.Clone()} }
