package rawconn

import (
	"context"
	"net"
	"time"
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

// Dialer opens connections of this package.
type Dialer struct {
	// Unacknowledged is how long what was written may stay without the other kernel's acknowledgement until the connection
	// fails (TCP_USER_TIMEOUT), in whole milliseconds. 0 leaves it to the system. Only Linux knows it. gRPC sets it by itself, but only
	// on connections whose type it knows.
	Unacknowledged time.Duration
}

// Dial connects to addr, "host:port", over TCP until ctx ends.
func (d Dialer) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{Control: d.control}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return wrap(c), nil
}
