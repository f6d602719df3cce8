package main

import (
	"context"
	"strings"
	"time"
)

const (
	// waitsEvery is how often a node that joins looks what it waits for, tellWaitsEvery how often it says so.
	waitsEvery     = 250 * time.Millisecond
	tellWaitsEvery = 5 * time.Second
)

// tellWaits says every few seconds what this node waits for until it has joined, which ends ctx, and lets it found a cluster
// when it may: a node that a join target has rejected never does.
func (n *node) tellWaits(ctx context.Context) {
	tick := time.NewTicker(waitsEvery)
	defer tick.Stop()
	told := time.Now().Add(2*time.Second - tellWaitsEvery)
	for {
		rejected := n.gossip.Rejected()
		// An error means that the node ends.
		_ = n.cluster.MayFound(ctx, n.mayFound.Load() && len(rejected) == 0)
		if waits := n.waitsNow(ctx, rejected); len(waits) > 0 && time.Since(told) >= tellWaitsEvery {
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

// waitsNow looks what this node waits for.
func (n *node) waitsNow(ctx context.Context, rejected []string) []string {
	var waits []string
	for _, r := range rejected {
		waits = append(waits, "rejected by "+r)
	}
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
func (n *node) awaitRejoin(ctx context.Context) error {
	if n.hasSet || len(n.settings.join) > 0 || n.settings.expect() != 1 {
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
