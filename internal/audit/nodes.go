package audit

import (
	"math/rand/v2"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	sluicev1 "github.com/sluice-project/sluice/proto/sluice/v1"
)

// shun is for how long a caller prefers other nodes to one that has failed it.
const shun = time.Second

// nodes are one caller's connections, one to each node. Not safe for concurrent use.
type nodes struct {
	targets func() []string
	options []grpc.DialOption
	rng     *rand.Rand
	list    map[string]*node
	// asked are all that were ever connected to.
	asked map[string]bool
	// tried are the nodes that the present checks have been sent to in this round.
	tried []string
}

type node struct {
	conn   *grpc.ClientConn
	client sluicev1.SluiceServiceClient
	// shunned until then (Unix ns).
	until int64
}

// dialOptions are those of every connection: calls fail at once when a node is
// away, and are repeated by nobody but the caller; a node that comes back is found soon.
func dialOptions(more []grpc.DialOption) []grpc.DialOption {
	return append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(),
		grpc.WithStatsHandler(watcher{}),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: 500 * time.Millisecond},
			MinConnectTimeout: time.Second,
		}),
	}, more...)
}

// pick returns the address of a node that has not been tried in this round, at
// random, shunned ones last; "" when all have been.
func (n *nodes) pick(now int64) string {
	targets := n.targets()
	n.prune(targets)
	well, shunned := 0, 0
	choice, last := "", ""
	for _, addr := range targets {
		if slices.Contains(n.tried, addr) {
			continue
		}
		// Each of those seen so far is kept with the same probability.
		if known := n.list[addr]; known != nil && now < known.until {
			if shunned++; n.rng.IntN(shunned) == 0 {
				last = addr
			}
			continue
		}
		if well++; n.rng.IntN(well) == 0 {
			choice = addr
		}
	}
	if choice == "" {
		choice = last
	}
	if choice != "" {
		n.tried = append(n.tried, choice)
	}
	return choice
}

// again begins another round.
func (n *nodes) again() { n.tried = n.tried[:0] }

// at returns the node, connected to when it is first called.
func (n *nodes) at(addr string) (*node, error) {
	if known := n.list[addr]; known != nil {
		return known, nil
	}
	conn, err := grpc.NewClient(addr, n.options...)
	if err != nil {
		return nil, err
	}
	fresh := &node{conn: conn, client: sluicev1.NewSluiceServiceClient(conn)}
	if n.list == nil {
		n.list, n.asked = make(map[string]*node), make(map[string]bool)
	}
	n.list[addr], n.asked[addr] = fresh, true
	return fresh, nil
}

// prune closes connections to nodes that are no targets any more. A caller makes one
// call at a time, so none is under way.
func (n *nodes) prune(targets []string) {
	if len(n.list) <= len(targets) {
		return
	}
	for addr, known := range n.list {
		if !slices.Contains(targets, addr) {
			known.conn.Close()
			delete(n.list, addr)
		}
	}
}

func (n *nodes) close() {
	n.prune(nil)
}
