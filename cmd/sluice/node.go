package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/pprof"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/cluster"
	"github.com/sluice-project/sluice/cluster/gossip"
	"github.com/sluice-project/sluice/internal/member"
	"github.com/sluice-project/sluice/internal/rulefiles"
	"github.com/sluice-project/sluice/ring"
	"github.com/sluice-project/sluice/rules"
	"github.com/sluice-project/sluice/transport"
	"github.com/sluice-project/sluice/transport/grpcapi"
	"github.com/sluice-project/sluice/transport/httpapi"
	"github.com/sluice-project/sluice/transport/peer"
)

// node is one member of the cluster with its parts joined. Make it with
// openNode; run starts, serves and stops it.
type node struct {
	settings settings
	log      *slog.Logger
	boot     string

	listen  listeners
	rules   *rulefiles.Watcher // nil without --rules
	table   *bucket.Table
	gossip  *gossip.Gossip
	peers   *peer.Pool
	cluster *cluster.Node
	service *transport.Service

	peerServer *peer.Server
	grpcDoor   *grpcapi.Server
	grpcServer *grpc.Server
	httpServer *http.Server
	profiler   *http.Server

	joined, leaving atomic.Bool
	// swept is closed when the cluster node's goroutine has ended.
	swept chan struct{}
}

// openNode reads the rules and the secret, opens the ports and joins the parts.
// When it returns, gossip runs; everything else starts in run. ctx bounds opening.
func openNode(ctx context.Context, s settings, log *slog.Logger) (_ *node, err error) {
	n := &node{settings: s, log: log, boot: newBoot(), swept: make(chan struct{})}
	defer func() {
		if err != nil {
			n.closeParts()
		}
	}()
	secret, err := n.secret()
	if err != nil {
		return nil, err
	}
	if err := n.openRules(); err != nil {
		return nil, err
	}
	if n.listen, err = openListeners(s); err != nil {
		return nil, err
	}
	if err := n.openCluster(ctx, secret); err != nil {
		return nil, err
	}
	if err := n.openDoors(secret); err != nil {
		return nil, err
	}
	return n, nil
}

// newBoot names this run of the process.
func newBoot() string { return gossip.NewBoot(time.Now(), rand.Uint32()) }

// defaultSecret keys the counters of a cluster that was given no secret.
// Everybody knows it, so it protects nothing.
const defaultSecret = "sluice without a secret: for trying it out, not for others' traffic"

func (n *node) secret() ([]byte, error) {
	if n.settings.secret != nil {
		return n.settings.secret, nil
	}
	if n.settings.secretFile == "" {
		n.log.Warn("no --secret-file: this cluster uses the secret that everybody knows; whoever reaches its ports can join it")
		return []byte(defaultSecret), nil
	}
	return readSecret(n.settings.secretFile)
}

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
func (n *node) openCluster(ctx context.Context, secret []byte) (err error) {
	fingerprint, err := transport.Fingerprint(secret)
	if err != nil {
		return err
	}
	maxBytes, err := parseBytes(n.settings.maxMemory)
	if err != nil {
		return fmt.Errorf("--max-memory: %w", err)
	}
	n.table, err = bucket.NewTable(bucket.Config{
		Shards: ring.DefaultPartitions, MaxEntries: n.settings.maxEntries, MaxBytes: maxBytes,
	})
	if err != nil {
		return err
	}
	peerConfig := peer.Config{
		Name: n.settings.name, Boot: n.boot, Placement: ring.Placement, Secret: fingerprint, Log: n.log,
	}
	if n.peers, err = peer.Open(peerConfig); err != nil {
		return err
	}
	n.cluster, err = cluster.New(cluster.Config{
		Name: n.settings.name, Boot: n.boot, Peers: n.peers, CheckTimeout: n.settings.checkTimeout, Log: n.log,
	}, n.table)
	if err != nil {
		return err
	}
	if n.peerServer, err = peer.NewServer(peerConfig, n.cluster); err != nil {
		return err
	}
	n.gossip, err = gossip.Open(ctx, gossip.Config{
		Name: n.settings.name, Boot: n.boot,
		Bind: n.settings.listenAddr(n.settings.gossipPort), Advertise: n.settings.advertise,
		Peer: n.listen.peer.Addr().String(), GRPC: n.listen.grpc.Addr().String(), HTTP: n.listen.http.Addr().String(),
		Join: n.settings.joinTargets(), SecretFingerprint: [16]byte(fingerprint), Placement: ring.Placement,
		Version: versionString(), Timing: gossip.Timing{JoinTimeout: n.settings.joinTimeout}, Logger: n.log,
	})
	if err != nil {
		return fmt.Errorf("--gossip-port %d: %w", n.settings.gossipPort, err)
	}
	return nil
}

// openDoors makes what answers clients.
func (n *node) openDoors(secret []byte) error {
	hasher, err := transport.NewHasher(secret)
	if err != nil {
		return err
	}
	n.service, err = transport.NewService(transport.Config{
		Decider: n.cluster, Cluster: n.viewAndRing, Hasher: hasher,
		RefuseUnknownDomains: n.settings.unknownDomain == "error",
	})
	if err != nil {
		return err
	}
	if n.rules != nil {
		n.service.SetRules(n.rules.Current())
		n.rules.OnChange(n.service.SetRules)
	}
	if n.grpcDoor, err = grpcapi.New(grpcapi.Config{Limiter: n.service}); err != nil {
		return err
	}
	n.grpcServer = grpc.NewServer(grpcapi.ServerOptions(0)...)
	n.grpcDoor.Register(n.grpcServer)
	handler, err := httpapi.New(httpapi.Config{
		Limiter: n.service, Ready: n.ready, RulesError: n.rulesError, Metrics: n.metricsHandler(),
	})
	if err != nil {
		return err
	}
	n.httpServer = httpapi.NewServer(handler)
	n.profiler = newProfiler()
	n.httpServer.ErrorLog = slog.NewLogLogger(n.log.Handler(), slog.LevelDebug)
	return nil
}

func (n *node) viewAndRing() (*member.View, *ring.Table) {
	view := n.gossip.View()
	return &view, n.cluster.Ring()
}

// ready says whether clients are to be sent here. Other nodes' troubles never
// count: if they did, one dead peer would take all out of service.
func (n *node) ready() (ok bool, reasons []string) {
	if !n.joined.Load() {
		reasons = append(reasons, "still joining the cluster")
	}
	if n.leaving.Load() {
		reasons = append(reasons, "leaving the cluster")
	}
	return len(reasons) == 0, reasons
}

func (n *node) rulesError() error {
	if n.rules == nil {
		return nil
	}
	return n.rules.Status().LastError
}

// run serves until ctx ends or a part fails, then stops in order. It returns nil
// after an ordered stop that ctx asked for.
func (n *node) run(ctx context.Context) error {
	parts := newParts()
	n.startParts(parts)
	n.log.Info("started", "name", n.settings.name, "version", versionString(),
		"grpc", n.listen.grpc.Addr(), "http", n.listen.http.Addr(), "peer", n.listen.peer.Addr(), "gossip", n.gossip.Addr())

	var err error
	select {
	case <-ctx.Done():
	case err = <-parts.failed:
	}
	n.leave()
	parts.stop()
	<-n.swept // charges are given back to peers until then
	n.closeParts()
	parts.wait()
	n.log.Info("stopped", "name", n.settings.name)
	return err
}

func (n *node) startParts(p *parts) {
	p.run("membership", n.followMembership)
	p.run("sweep", func(ctx context.Context) error {
		defer close(n.swept)
		return n.cluster.Run(ctx)
	})
	if n.rules != nil {
		p.run("rules", n.rules.Run)
	}
	p.run("join", n.join)
	p.run("peer port", func(context.Context) error { return n.peerServer.Serve(n.listen.peer) })
	p.run("gRPC port", func(context.Context) error { return n.grpcServer.Serve(n.listen.grpc) })
	p.run("HTTP port", func(context.Context) error { return serveHTTP(n.httpServer, n.listen.http) })
	if n.listen.pprof != nil {
		p.run("profiler", func(context.Context) error { return serveHTTP(n.profiler, n.listen.pprof) })
	}
}

func serveHTTP(s *http.Server, l net.Listener) error {
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// newProfiler serves what net/http/pprof does, on a server of its own.
func newProfiler() *http.Server {
	mux := http.NewServeMux()
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return httpapi.NewServer(mux)
}

// join waits until this node may serve and says so.
func (n *node) join(ctx context.Context) error {
	if err := n.gossip.Ready(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
		return err
	}
	if err := n.gossip.SetState(member.Serving); err != nil {
		return err
	}
	n.routeBy(n.gossip.View())
	n.joined.Store(true)
	n.grpcDoor.SetReady(true)
	n.log.Info("ready", "members", len(n.gossip.View().Members))
	return nil
}

// followMembership gives every new view to the cluster, and fails when gossip
// says that this node must not go on.
func (n *node) followMembership(ctx context.Context) error {
	n.routeBy(n.gossip.View())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.gossip.Done():
			return n.gossip.Err()
		case <-n.gossip.Changes():
			n.routeBy(n.gossip.View())
		}
	}
}

func (n *node) routeBy(view member.View) {
	n.cluster.SetView(view)
}

// leave takes this node out of service in order: no new clients, out of the
// ring while still answering, then the calls under way, then out of gossip.
func (n *node) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), n.settings.shutdownTimeout)
	defer cancel()
	n.leaving.Store(true)
	n.grpcDoor.SetReady(false)
	if err := n.gossip.SetState(member.Leaving); err != nil {
		n.log.Debug("could not announce leaving", "error", err)
	}
	var doors sync.WaitGroup
	doors.Go(func() { n.grpcDoor.Shutdown(ctx, n.grpcServer) })
	doors.Go(func() {
		if err := n.httpServer.Shutdown(ctx); err != nil {
			n.httpServer.Close()
		}
	})
	doors.Wait()
	if err := n.gossip.Leave(ctx); err != nil {
		n.log.Warn("left without telling everybody; the others will notice", "error", err)
	}
}

// closeParts closes what openNode opened, as far as it got.
func (n *node) closeParts() {
	if n.peerServer != nil {
		n.peerServer.Close()
	}
	if n.peers != nil {
		n.peers.Close()
	}
	if n.gossip != nil {
		if err := n.gossip.Close(); err != nil {
			n.log.Debug("closing gossip", "error", err)
		}
	}
	if n.profiler != nil {
		n.profiler.Close()
	}
	n.listen.close()
}

// parts are the goroutines of a node. The first failure is reported.
type parts struct {
	ctx    context.Context
	stop   context.CancelFunc
	group  sync.WaitGroup
	failed chan error
}

func newParts() *parts {
	p := &parts{failed: make(chan error, 1)}
	p.ctx, p.stop = context.WithCancel(context.Background())
	return p
}

func (p *parts) run(name string, f func(context.Context) error) {
	p.group.Go(func() {
		if err := f(p.ctx); err != nil {
			select {
			case p.failed <- fmt.Errorf("%s: %w", name, err):
			default:
			}
		}
	})
}

func (p *parts) wait() { p.group.Wait() }

// listeners are the TCP ports but gossip's.
type listeners struct{ grpc, http, peer, pprof net.Listener }

func openListeners(s settings) (l listeners, err error) {
	for _, one := range []struct {
		flag     string
		addr     string
		listener *net.Listener
	}{
		{"grpc-port", s.listenAddr(s.grpcPort), &l.grpc}, {"http-port", s.listenAddr(s.httpPort), &l.http},
		{"peer-port", s.listenAddr(s.peerPort), &l.peer}, {"pprof-addr", s.pprofAddr, &l.pprof},
	} {
		if one.addr == "" {
			continue
		}
		if *one.listener, err = net.Listen("tcp", one.addr); err != nil {
			l.close()
			return listeners{}, fmt.Errorf("--%s: %w", one.flag, err)
		}
	}
	return l, nil
}

func (l listeners) close() {
	for _, one := range []net.Listener{l.grpc, l.http, l.peer, l.pprof} {
		if one != nil {
			one.Close() // a server may have closed it already
		}
	}
}
