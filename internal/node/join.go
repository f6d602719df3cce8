package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/internal/member"
)

const (
	notReadyEvery    = 250 * time.Millisecond // between two looks at the reasons why the node has not joined
	logNotReadyEvery = 5 * time.Second        // between two log lines about them
	maxGreeted       = 3                      // of the nodes that reject this one: each greeting may take as long as a dial
)

// join takes this node into service in order: gossip, the voter set, the ring, its partitions, and only then clients. It
// returns nil if ctx ends.
func (n *Node) join(ctx context.Context) (err error) {
	defer func() {
		if ctx.Err() != nil {
			err = nil
		}
	}()
	if err := n.gossip.Ready(ctx); err != nil {
		return err
	}
	// Before gossip is ready, this process may turn out to have another's name.
	n.cluster.SetView(n.gossip.View())
	waiting, joined := context.WithCancel(ctx)
	var telling sync.WaitGroup
	defer telling.Wait()
	defer joined()
	telling.Go(func() { n.logNotReady(waiting) })
	if err := n.awaitRejoin(ctx); err != nil {
		return err
	}
	n.mayFound.Store(true)
	if err := n.cluster.Join(ctx); err != nil {
		return err
	}
	if err := n.gossip.SetState(member.Serving); err != nil {
		return err
	}
	n.cluster.SetView(n.gossip.View())
	settling, cancel := context.WithTimeout(ctx, settleTimeout)
	defer cancel()
	if err := n.cluster.Settled(settling); err != nil {
		if ctx.Err() != nil || !errors.Is(err, context.DeadlineExceeded) {
			return err
		}
		if err := n.cluster.AwaitQuorum(ctx); err != nil {
			return err
		}
		n.log.Warn("ready without all of its partitions, or without replicas of them", "waited", settleTimeout)
	}
	n.joined.Store(true)
	ready, _ := n.Ready()
	n.grpcAPI.SetReady(ready)
	n.log.Info("ready", "members", len(n.gossip.View().Members), "partitions", n.cluster.Stats().Partitions.Owned)
	return nil
}

// followMembership gives every new view to the cluster node once gossip is ready, and fails when gossip does.
func (n *Node) followMembership(ctx context.Context) error {
	if err := n.gossip.Ready(ctx); ctx.Err() != nil {
		return nil
	} else if err != nil {
		return err
	}
	for {
		n.cluster.SetView(n.gossip.View())
		select {
		case <-ctx.Done():
			return nil
		case <-n.gossip.Done():
			return n.gossip.Err()
		case <-n.gossip.Changes():
		}
	}
}

// logNotReady logs every few seconds why this node has not joined, until ctx ends, and tells the cluster node whether it may found
// a cluster: not while a join target rejects it.
func (n *Node) logNotReady(ctx context.Context) {
	tick := time.NewTicker(notReadyEvery)
	defer tick.Stop()
	logged := time.Now().Add(2*time.Second - logNotReadyEvery)
	var asked time.Time
	var answers []string
	for {
		rejected := n.gossip.Rejected()
		if len(rejected) == 0 {
			asked, answers = time.Time{}, nil
		} else if time.Since(asked) >= logNotReadyEvery {
			asked, answers = time.Now(), n.greetRejecting(rejected)
		}
		all := n.gossip.AllAnswered()
		n.cluster.SetView(n.gossip.View())
		// It fails when the node ends.
		_ = n.cluster.MayFound(ctx, n.mayFound.Load() && len(rejected) == 0, all)
		if waits := n.updateNotReady(ctx, rejected, answers); len(waits) > 0 && time.Since(logged) >= logNotReadyEvery {
			logged = time.Now()
			n.log.Warn("not ready yet", "waits", strings.Join(waits, "; "))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// greetRejecting sends hellos to the peer ports of nodes whose gossip rejects this one, and returns the errors: gossip that cannot
// be decrypted gets no answer, but a hello does. It assumes that the peer ports have the number of this node's.
func (n *Node) greetRejecting(rejected map[string]string) (answers []string) {
	if n.config.PeerPort == 0 {
		return nil
	}
	addresses := slices.Sorted(maps.Keys(rejected))
	for _, address := range addresses[:min(len(addresses), maxGreeted)] {
		host, _, err := net.SplitHostPort(address)
		if err != nil {
			continue
		}
		peer := net.JoinHostPort(host, strconv.Itoa(int(n.config.PeerPort)))
		if err := n.peers.Greet(peer); err != nil {
			answers = append(answers, fmt.Sprintf("%s: %v", peer, err))
		}
	}
	return answers
}

// updateNotReady returns why this node has not joined, and keeps it for Ready.
func (n *Node) updateNotReady(ctx context.Context, rejected map[string]string, answers []string) []string {
	var waits []string
	for _, address := range slices.Sorted(maps.Keys(rejected)) {
		waits = append(waits, "rejected by "+rejected[address])
	}
	waits = append(waits, answers...)
	if own, err := n.cluster.Waits(ctx, n.peers.Failure); err == nil && len(own) > 0 {
		waits = append(waits, own...)
		if failures := n.gossip.Failures(); len(failures) > 0 && len(rejected) == 0 {
			waits = append(waits, "targets that do not answer: "+strings.Join(failures, ", "))
		}
	}
	n.notReady.Store(&waits)
	return waits
}

// awaitRejoin waits until members that know this node have tried its address, before it founds a
// cluster alone, or decides as the only voter that its data directory has.
func (n *Node) awaitRejoin(ctx context.Context) error {
	if n.voters > 1 || len(n.config.Join) > 0 || n.voters == 0 && n.config.expect() != 1 {
		return nil
	}
	pause.For(ctx, n.gossip.LongestRejoin())
	return ctx.Err()
}
