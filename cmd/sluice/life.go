package main

import (
	"context"
	"sync"
	"time"

	"github.com/sluice-project/sluice/internal/member"
)

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
	n.cluster.SetView(n.gossip.View())
	n.joined.Store(true)
	n.grpcDoor.SetReady(true)
	n.log.Info("ready", "members", len(n.gossip.View().Members))
	return nil
}

// followMembership gives every new view to the cluster, and fails when gossip
// says that this node must not go on.
func (n *node) followMembership(ctx context.Context) error {
	n.cluster.SetView(n.gossip.View())
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-n.gossip.Done():
			return n.gossip.Err()
		case <-n.gossip.Changes():
			n.cluster.SetView(n.gossip.View())
		}
	}
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
	// However long the calls took, the others are told.
	telling, done := context.WithTimeout(context.Background(), time.Second)
	defer done()
	if err := n.gossip.Leave(telling); err != nil {
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
