package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
)

// shun is how long a caller prefers other nodes after a failure of one.
const shun = time.Second

// nodes are one caller's connections, one to each node. Not safe for concurrent use.
type nodes struct {
	targets func() []string
	options []grpc.DialOption
	rng     *rand.Rand
	list    map[string]*node
	asked   map[string]bool // all that were ever connected to
	tried   []string        // the nodes that the current checks were sent to in this round
}

type node struct {
	conn   *grpc.ClientConn
	client sluicev1.RateLimitServiceClient
	until  int64 // the end of its shunning, in Unix ns
}

// dialOptions are those of every connection: calls fail at once when a node is unreachable, gRPC retries none, and a node
// that returns is found soon.
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

// pick returns the address of a random node that was not tried in this round, shunned ones last; "" when all were.
func (n *nodes) pick(now int64) string {
	targets := n.targets()
	n.prune(targets)
	var seen [2]int // well and shunned nodes
	var choices [2]string
	for _, addr := range targets {
		if slices.Contains(n.tried, addr) {
			continue
		}
		kind := 0
		if known := n.list[addr]; known != nil && now < known.until {
			kind = 1
		}
		// Each node of a kind is chosen with the same probability.
		if seen[kind]++; n.rng.IntN(seen[kind]) == 0 {
			choices[kind] = addr
		}
	}
	choice := cmp.Or(choices[:]...)
	if choice != "" {
		n.tried = append(n.tried, choice)
	}
	return choice
}

// newRound begins another round.
func (n *nodes) newRound() { n.tried = n.tried[:0] }

// at returns the node at addr, with a new connection for a new address.
func (n *nodes) at(addr string) (*node, error) {
	if known := n.list[addr]; known != nil {
		return known, nil
	}
	conn, err := grpc.NewClient(addr, n.options...)
	if err != nil {
		return nil, err
	}
	fresh := &node{conn: conn, client: sluicev1.NewRateLimitServiceClient(conn)}
	if n.list == nil {
		n.list, n.asked = make(map[string]*node), make(map[string]bool)
	}
	n.list[addr], n.asked[addr] = fresh, true
	return fresh, nil
}

// prune closes connections to nodes that are no targets any more. It is called between calls.
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

func (n *nodes) close() { n.prune(nil) }

// Discovery keeps the list of the serving members, as one of them sees the cluster. It must be created with Discover and
// closed with Close.
type Discovery struct {
	targets atomic.Pointer[[]string]
	wake    chan struct{}
	stop    context.CancelFunc
	running sync.WaitGroup

	// Of the goroutine only.
	first   []string // as given
	options []grpc.DialOption
	// source is the node that answered last, asked first.
	source string
}

const (
	refreshEvery   = time.Second
	refreshAtMost  = 100 * time.Millisecond // between refreshes when nodes fail
	refreshTimeout = time.Second            // for one node
)

// Discover reads the members from the first of addrs that responds, and again every second and whenever a node fails,
// from another node if necessary. The error wraps ErrNoNode when none of addrs responds within the time.
func Discover(ctx context.Context, addrs []string, within time.Duration, options ...grpc.DialOption) (*Discovery, error) {
	if len(addrs) == 0 {
		return nil, errors.New("discover: there is no address to ask")
	}
	d := &Discovery{
		wake: make(chan struct{}, 1), first: slices.Clone(addrs), options: dialOptions(options), source: addrs[0],
	}
	limited, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	var cause error
	for {
		err := d.refresh(limited)
		if err == nil {
			break
		}
		if cause == nil || !over(limited) {
			cause = err
		}
		if !pause.For(limited, refreshAtMost) {
			return nil, fmt.Errorf("%w: %w", ErrNoNode, cause)
		}
	}
	running, stop := context.WithCancel(context.WithoutCancel(ctx))
	d.stop = stop
	d.running.Go(func() { d.loop(running) })
	return d, nil
}

// over reports whether the time of ctx is over: an attempt that it cut off has no cause of its own. The timer of ctx may be late.
func over(ctx context.Context) bool {
	deadline, limited := ctx.Deadline()
	return ctx.Err() != nil || limited && !time.Now().Before(deadline)
}

// Targets returns the gRPC addresses of the serving members.
func (d *Discovery) Targets() []string { return *d.targets.Load() }

// Failed asks for a refresh.
func (d *Discovery) Failed(string) {
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// Close ends the refreshing.
func (d *Discovery) Close() {
	d.stop()
	d.running.Wait()
}

func (d *Discovery) loop(ctx context.Context) {
	tick := time.NewTicker(refreshEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		case <-d.wake:
		}
		// Without a response the list stays.
		d.refresh(ctx)
		if !pause.For(ctx, refreshAtMost) {
			return
		}
	}
}

// refresh asks the node that responded last, then the known members, then the given addresses.
func (d *Discovery) refresh(ctx context.Context) error {
	known := []string{d.source}
	if t := d.targets.Load(); t != nil {
		known = append(known, *t...)
	}
	known = append(known, d.first...)
	var errs []error
	for i, addr := range known {
		if slices.Contains(known[:i], addr) {
			continue
		}
		serving, err := d.ask(ctx, addr)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", addr, err))
			continue
		}
		d.source = addr
		d.targets.Store(&serving)
		return nil
	}
	return errors.Join(errs...)
}

// ask returns the serving members, as addr sees them, over a connection of its own: it is called about once a second.
func (d *Discovery) ask(ctx context.Context, addr string) ([]string, error) {
	conn, err := grpc.NewClient(addr, d.options...)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	response, err := sluicev1.NewRateLimitServiceClient(conn).Nodes(ctx, &sluicev1.NodesRequest{})
	if err != nil {
		return nil, err
	}
	var serving []string
	for _, n := range response.Nodes {
		serving = append(serving, n.GrpcAddress)
	}
	if len(serving) == 0 {
		return nil, errors.New("none of the nodes that it knows serves")
	}
	return serving, nil
}
