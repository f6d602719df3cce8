package node

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/sluice-project/sluice/internal/listen"
)

// ports are the TCP listeners except gossip's. admin is nil without an admin port.
type ports struct{ grpc, http, peer, admin net.Listener }

func openPorts(c *Config, log *slog.Logger) (l ports, err error) {
	if wanted, limit := c.Bounds.MaxConnections, maxDescriptors(); c.Bounds.fitDescriptors(limit) {
		log.Warn("few file descriptors: --max-connections is lowered, so that some are left for other nodes; raise the limit (ulimit -n, LimitNOFILE)",
			"descriptors", limit, "max_connections", c.Bounds.MaxConnections, "instead_of", wanted)
	}
	for _, one := range []struct {
		flag     string
		addr     string
		listener *net.Listener
		own      bool
	}{
		{"grpc-port", c.listenAddr(c.GRPCPort), &l.grpc, false}, {"http-port", c.listenAddr(c.HTTPPort), &l.http, false},
		{"peer-port", c.listenAddr(c.PeerPort), &l.peer, true}, {"admin-addr", c.Admin.Addr, &l.admin, true},
	} {
		if one.addr == "" {
			continue
		}
		bounded, err := c.Bounds.listenWithin(one.addr, one.own)
		if err != nil {
			l.close()
			if errors.Is(err, syscall.EADDRINUSE) {
				err = fmt.Errorf("%w; stop what uses it, another sluice perhaps, or choose another port", err)
			}
			return ports{}, fmt.Errorf("--%s: %w", one.flag, err)
		}
		*one.listener = bounded
	}
	return l, nil
}

func (l ports) close() {
	for _, one := range []net.Listener{l.grpc, l.http, l.peer, l.admin} {
		if one != nil {
			one.Close() // a server may have closed it already
		}
	}
}

func serveHTTP(s *http.Server, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// silence is the longest time until the first byte of a connection.
const silence = 5 * time.Second

// fitDescriptors lowers the bounds of connections so that clients leave some of the file descriptors that the process may open (0:
// unknown) to other nodes, gossip and files. It reports whether it did.
func (b *Bounds) fitDescriptors(descriptors uint64) bool {
	if descriptors == 0 || descriptors > math.MaxInt {
		return false
	}
	own := min(max(int(descriptors)/4, 96), 2048)
	clients := max(16, (int(descriptors)-own)/2) // of the gRPC and of the HTTP port
	if clients >= b.MaxConnections {
		return false
	}
	b.MaxConnections, b.maxOwn = clients, own/3
	return true
}

// listenWithin opens a port within the bounds, of clients or of the cluster and its operators (own).
func (b *Bounds) listenWithin(addr string, own bool) (*listen.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	total := b.MaxConnections
	if own && b.maxOwn > 0 {
		total = b.maxOwn
	}
	return listen.New(l, listen.Bounds{Total: total, PerAddress: b.MaxPerAddress, Silence: silence})
}

// portStats are the counts of the listener of one port.
type portStats struct {
	port string
	listen.Stats
}

// portLabels are the values of the label port.
var portLabels = []string{"grpc", "http", "peer", "admin"}

func (l ports) stats() (all []portStats) {
	for i, one := range []net.Listener{l.grpc, l.http, l.peer, l.admin} {
		if bounded, ok := one.(*listen.Listener); ok {
			all = append(all, portStats{portLabels[i], bounded.Stats()})
		}
	}
	return all
}
