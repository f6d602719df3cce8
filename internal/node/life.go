package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/member"
)

const (
	// settleTimeout is the longest time that a joining node waits for its partitions before it accepts traffic: it can forward.
	settleTimeout = 30 * time.Second
	// departureWait is how long a node without a next owner waits to hear that the other voters
	// leave too.
	departureWait = time.Second
	// leaveSetTimeout is the longest time that a leaving node waits to be removed from the voter set.
	leaveSetTimeout = 3 * time.Second
)

// ErrNotHandedOver is Run's error when the node stopped with counters that it could hand over to no
// other node, and that are in no snapshot, while others were to go on.
var ErrNotHandedOver = errors.New("no other node has taken over this node's counters")

// Run serves until ctx ends or a part fails, then stops in order. It returns the part's error or
// ErrNotHandedOver, else nil.
func (n *Node) Run(ctx context.Context) error {
	parts := &parts{failed: make(chan error, 1)}
	parts.ctx, parts.stop = context.WithCancel(context.Background())
	joining, stopJoining := context.WithCancel(parts.ctx)
	defer stopJoining()
	joined := make(chan struct{})
	n.startParts(parts)
	parts.run("join", func(context.Context) error {
		defer close(joined)
		return n.join(joining)
	})
	n.log.Info("started", "name", n.config.Name, "version", n.config.Version,
		"grpc", n.listen.grpc.Addr(), "http", n.listen.http.Addr(), "peer", n.listen.peer.Addr(), "gossip", n.gossip.Addr())

	var err error
	select {
	case <-ctx.Done():
	case err = <-parts.failed:
	}
	stopJoining()
	<-joined
	left := n.leave()
	parts.stop()
	<-n.ended // until then the cluster node refunds charges at peers
	n.closeParts()
	parts.group.Wait()
	n.log.Info("stopped", "name", n.config.Name)
	return cmp.Or(err, left)
}

func (n *Node) startParts(p *parts) {
	p.run("membership", n.followMembership)
	p.run("cluster", func(ctx context.Context) error {
		defer close(n.ended)
		return n.cluster.Run(ctx)
	})
	p.run("console", n.hub.Run)
	p.run("history", n.service.RunHistory)
	p.run("runtime", n.watchRuntime)
	p.run("notices", n.watchSelf)
	if n.regions != nil {
		p.run("regions", n.regions.Run)
	}
	for _, s := range n.secrets {
		p.run("certificates and keys", s.run)
	}
	if n.rules != nil {
		p.run("rules", n.rules.Run)
	}
	if n.snapshotter != nil {
		n.snapshotter.start(p.ctx)
	}
	p.run("peer port", func(context.Context) error { return n.peerServer.Serve(n.listen.peer) })
	p.run("gRPC port", func(context.Context) error { return n.grpcServer.Serve(n.listen.grpc) })
	p.run("HTTP port", func(context.Context) error { return serveHTTP(n.httpServer, n.httpListener(n.listen.http)) })
	if n.listen.metrics != nil {
		p.run("metrics port", func(context.Context) error { return serveHTTP(n.metrics, n.listen.metrics) })
	}
	if n.listen.admin != nil {
		p.run("admin port", func(context.Context) error { return serveHTTP(n.operators.http, n.listen.admin) })
	}
	if n.operators.place != nil {
		p.run("operators' socket", func(context.Context) error { return serveHTTP(n.operators.http, n.operators.place.Listener()) })
	}
}

// leave takes this node out of service in order: it rejects new clients, hands its partitions off
// while it still answers, waits for calls in flight, and leaves the voter set and gossip. The last
// snapshot has the remaining counters. If all nodes leave, it stays in the voter set, so that no
// minority of it can continue at the next start. A process with another's name only stops. It
// returns ErrNotHandedOver, wrapped, or nil.
func (n *Node) leave() error {
	n.leaving.Store(true)
	n.grpcAPI.SetReady(false)
	own, all := n.gossip.Err() == nil && n.gossip.WaitsFor() == "", false
	var absent []string
	if own {
		if err := n.gossip.SetState(member.Leaving); err != nil {
			n.log.Debug("could not announce leaving", "error", err)
		}
		n.cluster.SetView(n.gossip.View())
		all, absent = n.handOff()
	}
	n.drain()
	if own && !all {
		n.leaveSet()
	}
	if own && all {
		n.awaitQuiet()
	}
	if own && n.snapshotter != nil {
		n.stopDeciding()
	}
	telling, done := context.WithTimeout(context.Background(), time.Second)
	defer done()
	if err := n.gossip.Leave(telling); err != nil {
		n.log.Warn("left without announcing it to all nodes; they will notice", "error", err)
	}
	saved := own && n.snapshotter != nil && n.snapshotter.writeLast()
	if len(absent) > 0 && !saved {
		return fmt.Errorf("%w: %s did not answer or did not serve, and no snapshot has the counters",
			ErrNotHandedOver, strings.Join(absent, ", "))
	}
	return nil
}

// handOff waits until other nodes own this node's partitions, at most --handover-timeout. It
// reports whether there was no next owner, and then, if this node has counters, the other voters
// that do not leave too.
func (n *Node) handOff() (all bool, absent []string) {
	ctx, cancel := context.WithTimeout(n.leaveCtx, n.config.HandoverTimeout)
	defer cancel()
	if held := n.cluster.Stats().Partitions.Owned; held > 0 {
		n.log.Info("handing over", "partitions", held)
	}
	began := time.Now()
	gave, left, err := n.cluster.HandOff(ctx)
	longest := time.Duration(n.cluster.Stats().Partitions.FrozenMax).Round(time.Microsecond)
	facts := []any{"given", gave, "left", left, "took", time.Since(began).Round(time.Millisecond), "longest_freeze", longest}
	switch {
	case gave+left == 0:
	case left == 0:
		n.log.Info("handed over", facts...)
	case err == nil:
		if n.table.Stats().Entries > 0 {
			absent = n.absentVoters()
		}
		if len(absent) > 0 {
			n.log.Warn("no node took over this node's counters: the other voters do not answer or "+
				"do not serve", append(facts, "voters", absent)...)
		} else {
			n.log.Info("no node is left to hand over to", facts...)
		}
	default:
		n.log.Warn("not all was handed over; the others take it over, from their replicas", facts...)
	}
	return err == nil && left > 0, absent
}

// absentVoters returns the other voters that do not leave in order. It gives gossip time to tell of
// those that do.
func (n *Node) absentVoters() (names []string) {
	for range 10 {
		names = slices.DeleteFunc(n.cluster.OtherVoters(), n.gossip.Leaves)
		if len(names) == 0 || !pause.For(n.leaveCtx, departureWait/10) {
			break
		}
	}
	return names
}

// awaitQuiet waits for the last checks of other nodes when all nodes leave. By then all know that
// this one has left in order.
func (n *Node) awaitQuiet() {
	ctx, cancel := context.WithTimeout(n.leaveCtx, n.config.ShutdownTimeout)
	defer cancel()
	if err := n.cluster.Quiet(ctx); err != nil {
		n.log.Debug("others still asked this node when it stopped", "error", err)
	}
}

// stopDeciding makes this node decide no more, so that the last snapshot has all decisions.
func (n *Node) stopDeciding() {
	if err := n.cluster.Rest(context.Background()); err != nil {
		n.log.Error("the last snapshot may lack later decisions", "error", err)
	}
}

// drain waits for the calls in flight. New checks are forwarded.
func (n *Node) drain() {
	n.draining.Store(true)
	n.hub.Close() // watching never ends by itself
	n.operators.hide()
	ctx, cancel := context.WithTimeout(context.Background(), n.config.ShutdownTimeout)
	defer cancel()
	shutdown := func(s *http.Server) {
		if err := s.Shutdown(ctx); err != nil {
			s.Close()
		}
	}
	var apis sync.WaitGroup
	apis.Go(func() { n.grpcAPI.Shutdown(ctx, n.grpcServer) })
	apis.Go(func() { shutdown(n.httpServer) })
	apis.Go(func() { shutdown(n.metrics) })
	apis.Go(func() {
		shutdown(n.operators.http)
		n.operators.grpc.Stop()
	})
	apis.Wait()
}

// leaveSet waits until the voter set no longer has this node.
func (n *Node) leaveSet() {
	ctx, cancel := context.WithTimeout(n.leaveCtx, leaveSetTimeout)
	defer cancel()
	if err := n.cluster.LeaveSet(ctx); err != nil {
		n.log.Warn("still in the voter set of the others; they go on without this node after --forget-after, or `sluice members forget`",
			"name", n.config.Name, "error", err)
	}
}

// closeParts closes all that Open has opened.
func (n *Node) closeParts() {
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
	n.operators.close()
	if n.snapshotter != nil {
		n.snapshotter.close()
	}
	n.listen.close()
	n.spans.close()
}

// parts are the goroutines of a node. The first failure is reported.
type parts struct {
	ctx    context.Context
	stop   context.CancelFunc
	group  sync.WaitGroup
	failed chan error
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
