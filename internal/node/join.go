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
	"time"

	"github.com/sluice-project/sluice/internal/member"
)

const (
	// waitsEvery is how often a node that joins looks what it waits for, tellWaitsEvery how often it says so.
	waitsEvery     = 250 * time.Millisecond
	tellWaitsEvery = 5 * time.Second
	// mostGreeted bounds the nodes that reject this one and are asked why: each may take as long as an attempt to connect.
	mostGreeted = 3
)

// join takes this node into service in order: into gossip, counted by the others, into
// the ring, its partitions handed to it, and only then clients.
func (n *Node) join(ctx context.Context) error {
	err := n.enter(ctx)
	if err != nil && ctx.Err() != nil {
		return nil
	}
	return err
}

func (n *Node) enter(ctx context.Context) error {
	if err := n.gossip.Ready(ctx); err != nil {
		return err
	}
	// A process that turns out to have another's name must not have been heard of before.
	n.cluster.SetView(n.gossip.View())
	waiting, counted := context.WithCancel(ctx)
	defer counted()
	told := make(chan struct{})
	go func() {
		defer close(told)
		n.tellWaits(waiting)
	}()
	defer func() {
		counted()
		<-told
	}()
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
		n.log.Warn("ready without all of its partitions, or without copies of them", "waited", settleTimeout)
	}
	n.joined.Store(true)
	ready, _ := n.Ready()
	n.grpcAPI.SetReady(ready)
	n.log.Info("ready", "members", len(n.gossip.View().Members), "partitions", n.cluster.Stats().Partitions.Holding)
	return nil
}

// followMembership gives every new view to the cluster, once this node may be seen by
// others, and fails when gossip says that it must not go on.
func (n *Node) followMembership(ctx context.Context) error {
	if err := n.gossip.Ready(ctx); err != nil {
		if ctx.Err() != nil {
			return nil
		}
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

// tellWaits says every few seconds what this node waits for until it has joined, which ends ctx, and lets it found a cluster
// when it may: a node that a join target has rejected never does.
func (n *Node) tellWaits(ctx context.Context) {
	tick := time.NewTicker(waitsEvery)
	defer tick.Stop()
	told := time.Now().Add(2*time.Second - tellWaitsEvery)
	var asked time.Time
	var answers []string
	for {
		rejected := n.gossip.Rejected()
		if len(rejected) == 0 {
			asked, answers = time.Time{}, nil
		} else if time.Since(asked) >= tellWaitsEvery {
			asked, answers = time.Now(), n.greetRejecting(rejected)
		}
		// An error means that the node ends.
		_ = n.cluster.MayFound(ctx, n.mayFound.Load() && len(rejected) == 0)
		if waits := n.waitsNow(ctx, rejected, answers); len(waits) > 0 && time.Since(told) >= tellWaitsEvery {
			told = time.Now()
			n.log.Warn("not ready yet", "waits", strings.Join(waits, "; "))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// greetRejecting asks the peer ports beside gossip ports that do not take this node, which are taken to be where its own is: gossip that cannot
// be decrypted is not answered, a hello is told whether the secret differs. It returns why those that answer do not take it.
func (n *Node) greetRejecting(rejected map[string]string) (answers []string) {
	if n.config.PeerPort == 0 {
		return nil
	}
	addresses := slices.Sorted(maps.Keys(rejected))
	for _, address := range addresses[:min(len(addresses), mostGreeted)] {
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

// waitsNow looks what this node waits for.
func (n *Node) waitsNow(ctx context.Context, rejected map[string]string, answers []string) []string {
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
	n.waitsFor.Store(&waits)
	return waits
}

// awaitRejoin gives members that know this node time to meet it, where it would found a cluster alone and has nobody to ask: they try the
// addresses that they miss once in two intervals at least.
func (n *Node) awaitRejoin(ctx context.Context) error {
	if n.hasSet || len(n.config.Join) > 0 || n.config.expect() != 1 {
		return nil
	}
	timer := time.NewTimer(n.gossip.LongestRejoin())
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
