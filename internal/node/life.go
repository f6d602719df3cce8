package node

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/member"
)

const (
	// settleTimeout is how long a node that has joined waits for its partitions before it
	// takes traffic all the same: it forwards what it does not hold.
	settleTimeout = 30 * time.Second
	// leaveSetTimeout is how long it waits for the others to go on without it.
	leaveSetTimeout = 3 * time.Second
)

// Run serves until ctx ends or a part fails, then stops in order. It returns nil
// after an ordered stop that ctx asked for.
func (n *Node) Run(ctx context.Context) error {
	parts := newParts()
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
	n.leave()
	parts.stop()
	<-n.ended // charges are given back to peers until then
	n.closeParts()
	parts.wait()
	n.log.Info("stopped", "name", n.config.Name)
	return err
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
	for _, s := range n.secrets {
		p.run("certificates and keys", s.run)
	}
	if n.rules != nil {
		p.run("rules", n.rules.Run)
	}
	if n.keeper != nil {
		n.keeper.begin(p)
	}
	p.run("peer port", func(context.Context) error { return n.peerServer.Serve(n.listen.peer) })
	p.run("gRPC port", func(context.Context) error { return n.grpcServer.Serve(n.listen.grpc) })
	p.run("HTTP port", func(context.Context) error { return serveHTTP(n.httpServer, n.httpListener(n.listen.http)) })
	if n.listen.admin != nil {
		p.run("admin port", func(context.Context) error { return serveHTTP(n.operators.http, n.listen.admin) })
	}
	if n.operators.place != nil {
		p.run("operators' socket", func(context.Context) error { return serveHTTP(n.operators.http, n.operators.place.Listener()) })
	}
}

// leave takes this node out of service in order: no new clients, its counters to the
// others while it still answers, then the calls under way, then out of the set and of
// gossip. What it could not give away it writes to its data directory; where all leave it stays
// in the set, which has to be found whole at the next start: no part of it may go on
// alone. A process whose name is another's, by now or still, only stops.
func (n *Node) leave() {
	n.leaving.Store(true)
	n.grpcAPI.SetReady(false)
	own, all := n.gossip.Err() == nil && n.gossip.WaitsFor() == "", false
	if own {
		if err := n.gossip.SetState(member.Leaving); err != nil {
			n.log.Debug("could not announce leaving", "error", err)
		}
		n.cluster.SetView(n.gossip.View())
		all = n.handOver()
	}
	n.drain()
	if own && !all {
		n.leaveSet()
	}
	if own && n.keeper != nil {
		n.rest(all)
	}
	// However long the calls took, the others are told.
	telling, done := context.WithTimeout(context.Background(), time.Second)
	defer done()
	if err := n.gossip.Leave(telling); err != nil {
		n.log.Warn("left without telling everybody; the others will notice", "error", err)
	}
	if own && n.keeper != nil {
		n.keeper.last()
	}
}

// handOver waits until the others hold what this node held, at most --handover-timeout. It
// reports whether nobody was there to take it: all leave.
func (n *Node) handOver() (all bool) {
	ctx, cancel := n.waiting(n.config.HandoverTimeout)
	defer cancel()
	if held := n.cluster.Stats().Partitions.Holding; held > 0 {
		n.log.Info("handing over", "partitions", held)
	}
	began := time.Now()
	gave, left, err := n.cluster.HandOver(ctx)
	longest := time.Duration(n.cluster.Stats().Partitions.FrozenMax).Round(time.Microsecond)
	facts := []any{"given", gave, "left", left, "took", time.Since(began).Round(time.Millisecond), "longest_freeze", longest}
	switch {
	case gave+left == 0:
	case left == 0:
		n.log.Info("handed over", facts...)
	case err == nil:
		n.log.Info("nobody is left to hand over to", facts...)
	default:
		n.log.Warn("not all was handed over; the others claim it, from their copies", facts...)
	}
	return err == nil && left > 0
}

// rest ends deciding here, so that the last snapshot has all that was decided. Where all leave, the
// others' last checks are answered first.
func (n *Node) rest(all bool) {
	ctx, cancel := n.waiting(n.config.ShutdownTimeout)
	defer cancel()
	if all {
		if err := n.cluster.Quiet(ctx); err != nil {
			n.log.Debug("others still asked this node when it stopped", "error", err)
		}
	}
	if err := n.cluster.Rest(context.WithoutCancel(ctx)); err != nil {
		n.log.Error("the last snapshot may lack what is decided now", "error", err)
	}
}

// waiting returns the context of a wait for other nodes, which a second signal ends too.
func (n *Node) waiting(most time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(context.Background(), most)
	go func() {
		select {
		case <-n.hurry:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// drain waits for the calls under way. Checks that still come are forwarded.
func (n *Node) drain() {
	n.draining.Store(true)
	n.hub.Close() // watching never ends by itself
	ctx, cancel := context.WithTimeout(context.Background(), n.config.ShutdownTimeout)
	defer cancel()
	var apis sync.WaitGroup
	apis.Go(func() { n.grpcAPI.Shutdown(ctx, n.grpcServer) })
	apis.Go(func() {
		if err := n.httpServer.Shutdown(ctx); err != nil {
			n.httpServer.Close()
		}
	})
	apis.Go(func() {
		if err := n.operators.http.Shutdown(ctx); err != nil {
			n.operators.http.Close()
		}
		n.operators.grpc.Stop()
	})
	apis.Wait()
}

// leaveSet waits until the others no longer count this node.
func (n *Node) leaveSet() {
	ctx, cancel := n.waiting(leaveSetTimeout)
	defer cancel()
	if err := n.cluster.LeaveSet(ctx); err != nil {
		n.log.Warn("still counted by the others; they go on without this node after --forget-after, or `sluice members forget`",
			"name", n.config.Name, "error", err)
	}
}

// closeParts closes what openNode opened, as far as it got.
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
	if n.keeper != nil {
		n.keeper.close()
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
