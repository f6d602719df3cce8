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

// connect makes connections that are made when they are first used.
func connect(c Config) (*connections, error) {
	all := &connections{}
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
	for _, addr := range c.Addrs {
		var list []*grpc.ClientConn
		for range max(1, c.Connections) {
			conn, err := grpc.NewClient(addr, options...)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("addr: %s: %w", addr, err), all.Close())
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
