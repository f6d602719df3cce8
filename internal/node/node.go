// Package node is one process of the cluster: it reads files, opens ports, connects the APIs, the limiter, the cluster node and
// gossip, starts and stops them in order, and maps their plain counters to Prometheus. The daemon, `sluice demo` and
// tests run nodes by Open and Run.
//
// It decides no limits, and knows flags only by name. Run owns all goroutines and waits for them.
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

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/cluster"
	"github.com/sluicecluster/sluice/cluster/gossip"
	"github.com/sluicecluster/sluice/internal/inflow"
	"github.com/sluicecluster/sluice/internal/message"
	"github.com/sluicecluster/sluice/internal/regions"
	"github.com/sluicecluster/sluice/internal/rulefiles"
	"github.com/sluicecluster/sluice/internal/shed"
	"github.com/sluicecluster/sluice/limiter"
	"github.com/sluicecluster/sluice/ring"
	"github.com/sluicecluster/sluice/rules"
	"github.com/sluicecluster/sluice/transport/access"
	"github.com/sluicecluster/sluice/transport/grpcapi"
	"github.com/sluicecluster/sluice/transport/gubernator"
	"github.com/sluicecluster/sluice/transport/peer"
	"github.com/sluicecluster/sluice/transport/watch"
	"google.golang.org/grpc"
)

// Node is one member of the cluster with all its parts. Make it with Open; Run starts, serves and stops it.
type Node struct {
	config Config
	gc     *gcTuner // nil in a process of several nodes
	log    *slog.Logger
	boot   string

	listen      ports
	rules       *rulefiles.Watcher // nil without --rules
	table       *bucket.Table
	caps        caps
	gossip      *gossip.Gossip
	peers       *peer.Pool
	regions     *regions.Links // nil without --regions
	regionList  atomic.Pointer[regions.List]
	globals     atomic.Pointer[regions.Rules]
	cluster     *cluster.Node
	service     *limiter.Limiter
	guard       *access.Guard
	queries     *peerQueries
	gate        *shed.Gate
	messages    *inflow.Memory                   // of all APIs
	schedLoad   func() (l shed.Load, ran uint64) // see schedMetrics.next
	clock       func() int64                     // of the cluster node
	hub         *watch.Hub
	snapshotter *snapshotter // nil without --data-dir
	secrets     []secretFiles
	secretKeys  atomic.Pointer[derivedKeys] // of the cluster's secrets
	counters    []byte                      // the secret of counter keys, the same for the life of the process
	tls         identities
	spans       *spans // nil if no traces are sent

	peerServer *peer.Server
	grpcAPI    *grpcapi.Server
	grpcServer *grpc.Server
	httpServer *http.Server
	metrics    *http.Server // of --metrics-addr
	operators  operatorsServer

	gubernatorAPI *gubernator.API

	began           time.Time
	joined, leaving atomic.Bool
	lostAddress     atomic.Bool              // see errLostAddress
	voters          int                      // of the set that the node began with
	notReady        atomic.Pointer[[]string] // why the node has not joined yet
	mayFound        atomic.Bool              // join targets and members had time to answer
	draining        atomic.Bool              // the counters are handed over, and no new calls are accepted
	ended           chan struct{}            // closed when the cluster node's goroutine has ended
	leaveCtx        context.Context          // ends when leaving no longer waits for other nodes
	cancelLeave     context.CancelFunc
}

// Open reads the rules and the secret, opens the ports and connects the parts. When it returns, gossip runs; everything else
// starts in Run. ctx bounds opening.
func Open(ctx context.Context, c Config, log *slog.Logger) (n *Node, err error) {
	var gc *gcTuner
	if c.OwnProcess {
		gc = newGCTuner(&c)
	}
	// It may read a large snapshot. Later watchRuntime tunes.
	gc.during(func() { n, err = open(ctx, c, gc, log) })
	return n, err
}

func open(ctx context.Context, c Config, gc *gcTuner, log *slog.Logger) (*Node, error) {
	n := &Node{config: c, gc: gc, log: log, boot: newBoot(), began: time.Now(), ended: make(chan struct{})}
	n.leaveCtx, n.cancelLeave = context.WithCancel(context.Background())
	for _, text := range c.insecurities() {
		log.Error("this node runs without a protection", "missing", text) // errors are in every log, whatever --log-level says
	}
	var keys gossip.Keyring
	for _, step := range []func() error{
		n.openSecrets, n.openRules, n.openCallers, n.openIdentities,
		func() (err error) { keys, err = n.openKeyring(); return err },
		func() (err error) { n.listen, err = openPorts(&c, log); return err },
		n.openOperators,
		func() (err error) { n.spans, err = openTracing(ctx, &c, log); return err },
		func() error { return n.openCluster(ctx, keys) },
		n.openLimiter, n.openAPIs,
	} {
		if err := step(); err != nil {
			n.closeParts()
			return nil, err
		}
	}
	return n, nil
}

// newBoot names this run of the process.
func newBoot() string { return gossip.NewBoot(time.Now(), rand.Uint32()) } // #nosec G404 -- a name, no secret

func (n *Node) openRules() (err error) {
	if n.config.hasRegions() {
		list, err := n.config.regions()
		if err != nil {
			return fmt.Errorf("regions: %w", err)
		}
		n.regionList.Store(list)
	}
	if n.config.Rules == "" {
		n.log.Warn("no --rules: only checks that bring their own limits are limited")
		return nil
	}
	config := rulefiles.Config{Rules: rules.Options{MergeDomains: n.config.MergeDomains}}
	if n.regionList.Load() != nil {
		config.Rules.Regions = func(name string) bool { return n.regionList.Load().Has(name) }
	}
	if n.rules, err = rulefiles.Open(n.config.Rules, config, n.log); err != nil {
		return fmt.Errorf("--rules: %w", err)
	}
	return nil
}

// openCluster makes the table, the connections to peers and the cluster node, and starts gossip.
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
		Shards: ring.DefaultPartitions, MaxEntries: n.config.counterEntries(maxBytes), MaxBytes: maxBytes, WhenFull: whenFull[n.config.WhenFull],
	})
	if err != nil {
		return err
	}
	if n.gc != nil {
		n.gc.table.Store(n.table)
	}
	n.capAccounts(nil, nil)
	var recorded *cluster.Recorded
	var store func(message.Record) error
	if n.config.DataDir != "" {
		if n.snapshotter, recorded, err = openSnapshotter(n.config, n.boot, [16]byte(fingerprint), n.table, n.log); err != nil {
			return fmt.Errorf("--data-dir: %w", err)
		}
		dir := n.snapshotter.dir
		store = func(r message.Record) error { return dir.PutVoters(n.config.Name, [16]byte(fingerprint), r) }
		n.voters = len(recorded.Record.Set.Members)
	}
	peerConfig := peer.Config{
		Name: n.config.Name, Boot: n.boot, Placement: ring.Placement, ProofKeys: n.proofKeys, CountersTag: fingerprint,
		Region: n.config.Region, HasRegion: func(name string) bool { return n.regions != nil && n.regions.Has(name) },
		Credentials: n.peerCreds(), Log: n.log, Tracer: n.spans.trace(), MaxLimits: n.config.part(32<<10, 16_384),
	}
	if n.tls.peers != nil {
		peerConfig.CheckName = n.checkPeerName
	}
	if n.peers, err = peer.Open(peerConfig); err != nil {
		return err
	}
	if err := n.openRegions(); err != nil {
		return err
	}
	config := cluster.Config{
		Name: n.config.Name, Boot: n.boot, Peers: n.peers, CheckTimeout: n.config.CheckTimeout, QuorumTimeout: n.config.QuorumTimeout,
		Clock:       n.config.Clock,
		ForgetAfter: n.config.ForgetAfter, LastAnswers: n.config.part(4<<10, 1<<16), MaxClockSkew: n.config.MaxClockSkew,
		Replicas: n.config.Replicas, LostHold: n.config.LostStateHold, Recorded: recorded, Store: store, Expect: n.config.expect(),
		Tracer: n.spans.trace(), Log: n.log.With("node", n.config.Name),
	}
	if n.regions != nil {
		config.Regions = n.regions
	}
	n.cluster, err = cluster.New(config, n.table)
	if err != nil {
		return err
	}
	if n.snapshotter != nil {
		n.snapshotter.node = n.cluster
	}
	peerConfig.ControlQueue, peerConfig.Answer = controlQueue{n}, n.answerRequest
	if n.peerServer, err = peer.NewServer(peerConfig, n.cluster); err != nil {
		return err
	}
	n.gossip, err = gossip.Open(ctx, gossip.Config{
		Name: n.config.Name, Boot: n.boot, Bind: n.config.listenAddr(n.config.GossipPort), Advertise: n.config.Advertise,
		Peer: n.advertised(n.listen.peer), GRPC: n.advertised(n.listen.grpc), HTTP: n.advertised(n.listen.http),
		Join: n.config.joinTargets(), Keyring: keys, Placement: ring.Placement,
		Version: n.config.Version, Zone: n.config.Zone, Region: n.config.Region, JoinTimeout: n.config.JoinTimeout, RejoinInterval: n.config.Rejoin, Logger: n.log,
	})
	if errors.Is(err, gossip.ErrListen) {
		return fmt.Errorf("--gossip-port: %w", err)
	}
	return err
}

// advertised returns the address of l for other nodes, with --advertise if that is given. Gossip replaces an unspecified host.
func (n *Node) advertised(l net.Listener) string {
	addr := l.Addr().(*net.TCPAddr)
	if n.config.Advertise != "" {
		return net.JoinHostPort(n.config.Advertise, strconv.Itoa(addr.Port))
	}
	return addr.String()
}

// Addrs are the addresses of a node's ports. Admin and Metrics are nil without such a port.
type Addrs struct {
	GRPC, HTTP, Peer, Admin, Metrics net.Addr
	Gossip                           string
}

// Addrs returns the addresses of the ports.
func (n *Node) Addrs() Addrs {
	a := Addrs{GRPC: n.listen.grpc.Addr(), HTTP: n.listen.http.Addr(), Peer: n.listen.peer.Addr(), Gossip: n.gossip.Addr()}
	if n.listen.admin != nil {
		a.Admin = n.listen.admin.Addr()
	}
	if n.listen.metrics != nil {
		a.Metrics = n.listen.metrics.Addr()
	}
	return a
}

// Stats returns the counts of the node's APIs.
func (n *Node) Stats() limiter.Stats { return n.service.Stats() }

// Hurry makes Run stop without waiting for other nodes any longer.
func (n *Node) Hurry() { n.cancelLeave() }

// Ready reports whether clients may be sent here, and why not. It ignores the state of other nodes: one dead peer would take
// all out of service.
func (n *Node) Ready() (ok bool, reasons []string) {
	if !n.joined.Load() {
		reasons = append(reasons, "still joining the cluster")
		if other := n.gossip.WaitsFor(); other != "" {
			reasons = append(reasons, other)
		}
		if waits := n.notReady.Load(); waits != nil {
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

func (n *Node) rulesError() error {
	if n.rules == nil {
		return nil
	}
	return n.rules.Status().LastError
}

// rulesSkipped returns the files beside the rules that are not read.
func (n *Node) rulesSkipped() (list []string) {
	if n.rules == nil {
		return nil
	}
	for _, s := range n.rules.Status().Skipped {
		list = append(list, s.String())
	}
	return list
}
