package door

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-project/sluice/client"
)

// connections are those of gRPC doors.
type connections struct {
	// byNode has, for each node, as many as Config.Connections.
	byNode [][]*grpc.ClientConn
	taken  atomic.Uint32
}

// credentials are those of a gRPC connection.
func (c *Config) credentials() credentials.TransportCredentials {
	if c.TLS == nil {
		return insecure.NewCredentials()
	}
	return credentials.NewTLS(c.TLS)
}

// url is where a node's HTTP port has a path.
func (c *Config) url(node int, path string) string {
	if c.TLS == nil {
		return "http://" + c.Addrs[node] + path
	}
	return "https://" + c.Addrs[node] + path
}

// Dial returns a connection to addr that is made when it is first used, with the options of every connection and more.
func (c *Config) Dial(addr string, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(c.credentials()),
		grpc.WithInitialWindowSize(1 << 20), grpc.WithInitialConnWindowSize(4 << 20),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16 << 20)),
		// A node that comes back is found soon.
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
	}
	if c.Token != nil {
		options = append(options, grpc.WithPerRPCCredentials(client.TokenCredentials(c.Token, c.TokenInClear)))
	}
	conn, err := grpc.NewClient(addr, append(options, more...)...)
	if err != nil {
		return nil, fmt.Errorf("addr: %s: %w", addr, err)
	}
	return conn, nil
}

// connect returns the connections to all nodes.
func connect(c Config) (*connections, error) {
	all := &connections{}
	for _, addr := range c.Addrs {
		var list []*grpc.ClientConn
		for range max(1, c.Connections) {
			conn, err := c.Dial(addr)
			if err != nil {
				return nil, errors.Join(err, all.Close())
			}
			list = append(list, conn)
		}
		all.byNode = append(all.byNode, list)
	}
	return all, nil
}

// Nodes implements load.Target.
func (c *connections) Nodes() int { return len(c.byNode) }

// Close implements Door.
func (c *connections) Close() error {
	var errs []error
	for _, list := range c.byNode {
		for _, conn := range list {
			errs = append(errs, conn.Close())
		}
	}
	return errors.Join(errs...)
}

// take returns one connection to each node for a new caller, in turns.
func (c *connections) take() []*grpc.ClientConn {
	n := c.taken.Add(1)
	mine := make([]*grpc.ClientConn, len(c.byNode))
	for node, list := range c.byNode {
		mine[node] = list[int(n)%len(list)]
	}
	return mine
}
