// Package node is one process of the cluster: it reads files, opens ports, joins the APIs, the limiter, the cluster node and
// gossip, starts and stops them in order, and maps their plain counters to Prometheus. The daemon, `sluice demo` and
// tests run nodes by Open and Run.
//
// It decides nothing about a limit, and knows no flags but by name. Run owns all goroutines and waits for them.
package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster"
	"github.com/sluice-project/sluice/cluster/gossip"
	"github.com/sluice-project/sluice/internal/message"
	"github.com/sluice-project/sluice/internal/rulefiles"
	"github.com/sluice-project/sluice/internal/shed"
	"github.com/sluice-project/sluice/limiter"
	"github.com/sluice-project/sluice/ring"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport/access"
	"github.com/sluice-project/sluice/transport/grpcapi"
	"github.com/sluice-project/sluice/transport/gubernator"
	"github.com/sluice-project/sluice/transport/peer"
	"github.com/sluice-project/sluice/transport/watch"
	"google.golang.org/grpc"
)

// Node is one member of the cluster with its parts joined. Make it with Open; Run starts, serves and stops it.
type Node struct {
	config Config
	gc     *gcTuner // nil where it is not this node's to tune, as in a process of several
	log    *slog.Logger
	boot   string

	listen    ports
	rules     *rulefiles.Watcher // nil without --rules
	table     *bucket.Table
	caps      caps
	gossip    *gossip.Gossip
	peers     *peer.Pool
	cluster   *cluster.Node
	service   *limiter.Limiter
	guard     *access.Guard
	inquiries *inquiries
	gate      *shed.Gate
	waits     func() (l shed.Load, ran uint64) // what watchRuntime tells gate, as waits.next does
	clock     func() int64                     // of the cluster node
	hub       *watch.Hub
	keeper    *keeper // nil without --data-dir
	secrets   []secretFiles
	inForce   atomic.Pointer[derived] // of the cluster's secrets
	counters  []byte                  // the secret of counter keys, the same for the life of the process
	tls       identities
	spans     *spans // nil if no traces are sent

	peerServer *peer.Server
	grpcAPI    *grpcapi.Server
	grpcServer *grpc.Server
	httpServer *http.Server
	operators  operatorsEnd
	// The APIs beside sluice's own.
	gubernatorAPI *gubernator.API

	joined, leaving atomic.Bool
	// lostAddress: others do not reach this node where it says, see errLostAddress.
	lostAddress atomic.Bool
	// hasSet: the node began with a voter set. waitsFor is what it waits for while it joins.
	hasSet   bool
	waitsFor atomic.Pointer[[]string]
	// mayFound: join targets and members had time to be heard of.
	mayFound atomic.Bool
	// draining: the counters are handed over, and no more calls are to be taken.
	draining atomic.Bool
	// ended is closed when the cluster node's goroutine has ended.
	ended chan struct{}
	// hurry is closed when leaving shall no longer wait for other nodes.
	hurry chan struct{}
}

// Open reads the rules and the secret, opens the ports and joins the parts.
// When it returns, gossip runs; everything else starts in Run. ctx bounds opening.
func Open(ctx context.Context, c Config, log *slog.Logger) (n *Node, err error) {
	var gc *gcTuner
	if c.OwnProcess {
		c.limitMemory()
		gc = newGCTuner()
	}
	// It may read a large snapshot. Once the node runs, it looks itself.
	gc.during(func() { n, err = open(ctx, c, gc, log) })
	return n, err
}

func open(ctx context.Context, c Config, gc *gcTuner, log *slog.Logger) (_ *Node, err error) {
	n := &Node{config: c, gc: gc, log: log, boot: newBoot(), ended: make(chan struct{}), hurry: make(chan struct{})}
	defer func() {
		if err != nil {
			n.closeParts()
		}
	}()
	for _, read := range []func() error{n.openSecrets, n.openRules, n.openCallers, n.openIdentities} {
		if err := read(); err != nil {
			return nil, err
		}
	}
	keys, err := n.openKeyring()
	if err != nil {
		return nil, err
	}
	if asked, limit := c.Bounds.MaxConnections, maxDescriptors(); c.Bounds.fit(limit) {
		log.Warn("few file descriptors: the bound of connections is lowered, so that some are left for other nodes; raise the limit (ulimit -n, LimitNOFILE)",
			"descriptors", limit, "max_connections", c.Bounds.MaxConnections, "instead_of", asked)
	}
	if n.listen, err = openPorts(&c); err != nil {
		return nil, err
	}
	if err := n.openOperators(); err != nil {
		return nil, err
	}
	if n.spans, err = openTracing(ctx, &c, log); err != nil {
		return nil, err
	}
	if err := n.openCluster(ctx, keys); err != nil {
		return nil, err
	}
	if err := n.openLimiter(); err != nil {
		return nil, err
	}
	if err := n.openAPIs(); err != nil {
		return nil, err
	}
	return n, nil
}

// newBoot names this run of the process.
func newBoot() string { return gossip.NewBoot(time.Now(), rand.Uint32()) } // #nosec G404 -- a name, no secret

func (n *Node) openRules() (err error) {
	if n.config.Rules == "" {
		n.log.Warn("no --rules: only checks that bring their own limits are limited")
		return nil
	}
	config := rulefiles.Config{Rules: rules.Options{MergeDomains: n.config.MergeDomains}}
	if n.rules, err = rulefiles.Open(n.config.Rules, config, n.log); err != nil {
		return fmt.Errorf("--rules: %w", err)
	}
	return nil
}

// openCluster makes the table, the way to the peers and the node that decides,
// and starts gossip.
func (n *Node) openCluster(ctx context.Context, keys gossip.Keyring) (err error) {
	fingerprint, err := limiter.Fingerprint(n.counters)
	if err != nil {
		return err
	}
	maxBytes, err := n.config.counterBytes()
	if err != nil {
		return err
	}
	n.table, err = bucket.NewTable(bucket.Config{
		Shards: ring.DefaultPartitions, MaxEntries: n.config.counterEntries(maxBytes), MaxBytes: maxBytes,
		WhenFull: whenFull[n.config.WhenFull],
	})
	if err != nil {
		return err
	}
	n.capAccounts(nil, nil)
	var recorded *cluster.Recorded
	var store func(message.Record) error
	if n.config.DataDir != "" {
		if n.keeper, recorded, err = openKeeper(n.config, n.boot, [16]byte(fingerprint), n.table, n.log); err != nil {
			return fmt.Errorf("--data-dir: %w", err)
		}
		store = n.keeper.putVoters
		n.hasSet = !recorded.Record.Set.Zero()
	}
	peerConfig := peer.Config{
		Name: n.config.Name, Boot: n.boot, Placement: ring.Placement, ProofKeys: n.proofKeys, CountersTag: fingerprint,
		Credentials: n.peerCreds(), Log: n.log,
		Tracer: n.spans.trace(), MaxLimits: n.config.part(32<<10, 16_384),
	}
	if n.tls.peers != nil {
		peerConfig.CheckName = n.checkPeerName
	}
	if n.peers, err = peer.Open(peerConfig); err != nil {
		return err
	}
	n.cluster, err = cluster.New(cluster.Config{
		Name: n.config.Name, Boot: n.boot, Peers: n.peers, CheckTimeout: n.config.CheckTimeout, Right: n.config.Right,
		ForgetAfter: n.config.ForgetAfter, LastAnswers: n.config.part(4<<10, 1<<16), MaxClockSkew: n.config.MaxClockSkew, Replicas: n.config.Replicas, LostHold: n.config.LostStateHold, Recorded: recorded, Store: store, Expect: n.config.expect(), Tracer: n.spans.trace(), Log: n.log.With("node", n.config.Name),
	}, n.table)
	if err != nil {
		return err
	}
	if n.keeper != nil {
		n.keeper.node = n.cluster
	}
	peerConfig.ControlQueue, peerConfig.Answer = controlQueue{n}, n.answerQuestion
	if n.peerServer, err = peer.NewServer(peerConfig, n.cluster); err != nil {
		return err
	}
	n.gossip, err = gossip.Open(ctx, gossip.Config{
		Name: n.config.Name, Boot: n.boot,
		Bind: n.config.listenAddr(n.config.GossipPort), Advertise: n.config.Advertise,
		Peer: n.advertised(n.listen.peer), GRPC: n.advertised(n.listen.grpc), HTTP: n.advertised(n.listen.http),
		Join: n.config.joinTargets(), Keyring: keys, Placement: ring.Placement,
		Version: n.config.Version, Zone: n.config.Zone, JoinTimeout: n.config.JoinTimeout, RejoinInterval: n.config.Rejoin, Logger: n.log,
	})
	if errors.Is(err, gossip.ErrListen) {
		return fmt.Errorf("--gossip-port: %w", err)
	}
	return err
}

// advertised is where others reach l: --advertise if there is one. Gossip fills in
// its own address where that leaves the host open.
func (n *Node) advertised(l net.Listener) string {
	addr := l.Addr().(*net.TCPAddr)
	if n.config.Advertise != "" {
		return net.JoinHostPort(n.config.Advertise, strconv.Itoa(addr.Port))
	}
	return addr.String()
}

// Addrs are where a node's ports listen. Admin is nil without an admin port.
type Addrs struct {
	GRPC, HTTP, Peer, Admin net.Addr
	Gossip                  string
}

// Addrs returns where the ports listen, by number where one was picked.
func (n *Node) Addrs() Addrs {
	a := Addrs{GRPC: n.listen.grpc.Addr(), HTTP: n.listen.http.Addr(), Peer: n.listen.peer.Addr(), Gossip: n.gossip.Addr()}
	if n.listen.admin != nil {
		a.Admin = n.listen.admin.Addr()
	}
	return a
}

// Stats returns what the node's APIs have counted.
func (n *Node) Stats() limiter.Stats { return n.service.Stats() }

// Hurry makes Run stop without waiting for other nodes any longer. It is called once at most.
func (n *Node) Hurry() { close(n.hurry) }

// Ready says whether clients are to be sent here. Other nodes' troubles never
// count: if they did, one dead peer would take all out of service.
func (n *Node) Ready() (ok bool, reasons []string) {
	if !n.joined.Load() {
		reasons = append(reasons, "still joining the cluster")
		if other := n.gossip.WaitsFor(); other != "" {
			reasons = append(reasons, other)
		}
		if waits := n.waitsFor.Load(); waits != nil {
			reasons = append(reasons, *waits...)
		}
	}
	if n.leaving.Load() {
		reasons = append(reasons, "leaving the cluster")
	}
	if n.lostAddress.Load() {
		reasons = append(reasons, errLostAddress.Error())
	}
	return len(reasons) == 0, reasons
}

// reasons says why this node is not ready.
func (n *Node) reasons() []string {
	_, reasons := n.Ready()
	return reasons
}

func (n *Node) rulesError() error {
	if n.rules == nil {
		return nil
	}
	return n.rules.Status().LastError
}

// rulesSkipped are the files beside the rules that are not read.
func (n *Node) rulesSkipped() (list []string) {
	if n.rules == nil {
		return nil
	}
	for _, s := range n.rules.Status().Skipped {
		list = append(list, s.String())
	}
	return list
}
