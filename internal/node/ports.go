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

	"github.com/sluicecluster/sluice/internal/listen"
)

// ports are the TCP listeners except gossip's. admin and metrics are nil without such a port.
type ports struct{ grpc, http, peer, admin, metrics net.Listener }

func openPorts(c *Config, log *slog.Logger) (l ports, err error) {
	if wanted, limit := c.Bounds.MaxConnections, maxDescriptors(); c.Bounds.fitDescriptors(limit) {
		log.Warn("few file descriptors: --max-connections is lowered, so that some are left for other nodes; raise the limit (ulimit -n, LimitNOFILE)",
			"descriptors", limit, "max_connections", c.Bounds.MaxConnections, "instead_of", wanted)
	}
	for _, one := range []struct {
		flag     string
		addr     string
		listener *net.Listener
		part     int // of Bounds.maxOwn; 0 for ports of clients
	}{
		{"grpc-port", c.listenAddr(c.GRPCPort), &l.grpc, 0}, {"http-port", c.listenAddr(c.HTTPPort), &l.http, 0},
		{"peer-port", c.listenAddr(c.PeerPort), &l.peer, 1}, {"admin-addr", c.Admin.Addr, &l.admin, 1},
		{"metrics-addr", c.MetricsAddr, &l.metrics, 4},
	} {
		if one.addr == "" {
			continue
		}
		bounded, err := c.Bounds.listenWithin(one.addr, one.part)
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
	for _, one := range []net.Listener{l.grpc, l.http, l.peer, l.admin, l.metrics} {
		if one != nil {
			one.Close() // a server may have closed it already
		}
	}
}

func serveHTTP(s *http.Server, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
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

// listenWithin opens a port within the bounds: of clients, or with that part of the connections of the cluster and its operators.
func (b *Bounds) listenWithin(addr string, part int) (*listen.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	total := b.MaxConnections
	if part > 0 && b.maxOwn > 0 {
		total = b.maxOwn / part
	}
	return listen.New(l, listen.Bounds{Total: total, PerAddress: b.MaxPerAddress, Silence: silence})
}

// portStats are the counts of the listener of one port.
type portStats struct {
	port string
	listen.Stats
}

// portLabels are the values of the label port.
var portLabels = []string{"grpc", "http", "peer", "admin", "metrics"}

func (l ports) stats() (all []portStats) {
	for i, one := range []net.Listener{l.grpc, l.http, l.peer, l.admin, l.metrics} {
		if bounded, ok := one.(*listen.Listener); ok {
			all = append(all, portStats{portLabels[i], bounded.Stats()})
		}
	}
	return all
}
