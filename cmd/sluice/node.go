package main

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

	"google.golang.org/grpc"

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
)

// node is one member of the cluster with its parts joined. Make it with
// openNode; run starts, serves and stops it.
type node struct {
	settings settings
	log      *slog.Logger
	boot     string

	listen    listeners
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
	grpcDoor   *grpcapi.Server
	grpcServer *grpc.Server
	httpServer *http.Server
	operators  operatorsEnd
	// The doors beside sluice's own.
	gubernatorDoor *gubernator.Door

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

// openNode reads the rules and the secret, opens the ports and joins the parts.
// When it returns, gossip runs; everything else starts in run. ctx bounds opening.
func openNode(ctx context.Context, s settings, log *slog.Logger) (_ *node, err error) {
	n := &node{settings: s, log: log, boot: newBoot(), ended: make(chan struct{}), hurry: make(chan struct{})}
	defer func() {
		if err != nil {
			n.closeParts()
		}
	}()
	if err := n.openSecrets(); err != nil {
		return nil, err
	}
	if err := n.openRules(); err != nil {
		return nil, err
	}
	if err := n.openCallers(); err != nil {
		return nil, err
	}
	if err := n.openIdentities(); err != nil {
		return nil, err
	}
	keys, err := n.openKeyring()
	if err != nil {
		return nil, err
	}
	if asked, limit := s.bounds.maxConnections, maxDescriptors(); s.bounds.fit(limit) {
		log.Warn("few file descriptors: the bound of connections is lowered, so that some are left for other nodes; raise the limit (ulimit -n, LimitNOFILE)",
			"descriptors", limit, "max_connections", s.bounds.maxConnections, "instead_of", asked)
	}
	if n.listen, err = openListeners(s); err != nil {
		return nil, err
	}
	if err := n.openOperators(); err != nil {
		return nil, err
	}
	if n.spans, err = openTracing(ctx, s.trace, s.name, log); err != nil {
		return nil, err
	}
	if err := n.openCluster(ctx, keys); err != nil {
		return nil, err
	}
	if err := n.openDoors(); err != nil {
		return nil, err
	}
	return n, nil
}

// newBoot names this run of the process.
func newBoot() string { return gossip.NewBoot(time.Now(), rand.Uint32()) } // #nosec G404 -- a name, no secret

func (n *node) openRules() (err error) {
	if n.settings.rules == "" {
		n.log.Warn("no --rules: only checks that bring their own limits are limited")
		return nil
	}
	config := rulefiles.Config{Rules: rules.Options{MergeDomains: n.settings.mergeDomains}}
	if n.rules, err = rulefiles.Open(n.settings.rules, config, n.log); err != nil {
		return fmt.Errorf("--rules: %w", err)
	}
	return nil
}

// openCluster makes the table, the way to the peers and the node that decides,
// and starts gossip.
func (n *node) openCluster(ctx context.Context, keys gossip.Keyring) (err error) {
	fingerprint, err := limiter.Fingerprint(n.counters)
	if err != nil {
		return err
	}
	maxBytes, err := n.settings.counterBytes()
	if err != nil {
		return err
	}
	n.table, err = bucket.NewTable(bucket.Config{
		Shards: ring.DefaultPartitions, MaxEntries: n.settings.counterEntries(maxBytes), MaxBytes: maxBytes,
		WhenFull: whenFull[n.settings.whenFull],
	})
	if err != nil {
		return err
	}
	n.capAccounts(nil, nil)
	var recorded *cluster.Recorded
	var store func(message.Record) error
	if n.settings.dataDir != "" {
		if n.keeper, recorded, err = openKeeper(n.settings, n.boot, [16]byte(fingerprint), n.table, n.log); err != nil {
			return fmt.Errorf("--data-dir: %w", err)
		}
		store = n.keeper.putVoters
		n.hasSet = !recorded.Record.Set.Zero()
	}
	peerConfig := peer.Config{
		Name: n.settings.name, Boot: n.boot, Placement: ring.Placement, ProofKeys: n.proofKeys, CountersTag: fingerprint,
		Credentials: n.peerCreds(), Log: n.log,
		Tracer: n.spans.trace(), MaxLimits: n.settings.part(32<<10, 16_384),
	}
	if n.tls.peers != nil {
		peerConfig.CheckName = n.checkPeerName
	}
	if n.peers, err = peer.Open(peerConfig); err != nil {
		return err
	}
	n.cluster, err = cluster.New(cluster.Config{
		Name: n.settings.name, Boot: n.boot, Peers: n.peers, CheckTimeout: n.settings.checkTimeout, Right: n.settings.right,
		ForgetAfter: n.settings.forgetAfter, LastAnswers: n.settings.part(4<<10, 1<<16), MaxClockSkew: n.settings.maxClockSkew, Replicas: n.settings.replicas, LostHold: n.settings.lostStateHold, Recorded: recorded, Store: store, Expect: n.settings.expect(), Tracer: n.spans.trace(), Log: n.log.With("node", n.settings.name),
	}, n.table)
	if err != nil {
		return err
	}
	if n.keeper != nil {
		n.keeper.node = n.cluster
	}
	peerConfig.Mailbox = mailbox{n}
	if n.peerServer, err = peer.NewServer(peerConfig, n.cluster); err != nil {
		return err
	}
	n.gossip, err = gossip.Open(ctx, gossip.Config{
		Name: n.settings.name, Boot: n.boot,
		Bind: n.settings.listenAddr(n.settings.gossipPort), Advertise: n.settings.advertise,
		Peer: n.advertised(n.listen.peer), GRPC: n.advertised(n.listen.grpc), HTTP: n.advertised(n.listen.http),
		Join: n.settings.joinTargets(), Keyring: keys, Placement: ring.Placement,
		Version: versionString(), Zone: n.settings.zone, Timing: gossip.Timing{JoinTimeout: n.settings.joinTimeout, RejoinInterval: n.settings.rejoin}, Logger: n.log,
	})
	if errors.Is(err, gossip.ErrListen) {
		return fmt.Errorf("--gossip-port: %w", err)
	}
	return err
}

// advertised is where others reach l: --advertise if there is one. Gossip fills in
// its own address where that leaves the host open.
func (n *node) advertised(l net.Listener) string {
	addr := l.Addr().(*net.TCPAddr)
	if n.settings.advertise != "" {
		return net.JoinHostPort(n.settings.advertise, strconv.Itoa(addr.Port))
	}
	return addr.String()
}

// ready says whether clients are to be sent here. Other nodes' troubles never
// count: if they did, one dead peer would take all out of service.
func (n *node) ready() (ok bool, reasons []string) {
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
func (n *node) reasons() []string {
	_, reasons := n.ready()
	return reasons
}

func (n *node) rulesError() error {
	if n.rules == nil {
		return nil
	}
	return n.rules.Status().LastError
}

// rulesSkipped are the files beside the rules that are not read.
func (n *node) rulesSkipped() (list []string) {
	if n.rules == nil {
		return nil
	}
	for _, s := range n.rules.Status().Skipped {
		list = append(list, s.String())
	}
	return list
}
