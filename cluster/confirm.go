package cluster

import (
	"context"
	"sync"

	"github.com/sluicecluster/sluice/bucket"
)

// notifier wakes all goroutines that wait for it. The zero notifier is ready.
type notifier struct {
	mu struct {
		sync.Mutex
		next chan struct{} // nil without waiters
	}
}

// wait returns a channel that the next notify closes.
func (b *notifier) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.next == nil {
		b.mu.next = make(chan struct{})
	}
	return b.mu.next
}

func (b *notifier) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.next != nil {
		close(b.mu.next)
		b.mu.next = nil
	}
}

// change is a change by a check of a sync rule: a replica must confirm it before the check is answered.
type change struct {
	index          int // of the check, in the caller's list
	partition      int
	localTerm, seq uint64 // term was read before the check was decided
}

// awaitConfirmed waits until a replica has change c, or there is no replica to wait for. It reports false when ctx ends first or
// this node is no longer the owner: the charge stands or is lost, and the check must be treated as one whose answer was
// lost.
func (n *Node) awaitConfirmed(ctx context.Context, c change) bool {
	h := n.runner.handoff
	confirmed := func() bool { return h.Confirmed(c.partition) >= c.seq && h.LocalTerm(c.partition) == c.localTerm }
	if confirmed() {
		return true
	}
	// The next turn sends the journal, which has the change.
	n.runner.flush.Store(true)
	signal(n.runner.wake)
	for {
		heard := n.confirms.wait()
		if confirmed() {
			return true
		}
		if h.LocalTerm(c.partition) != c.localTerm {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-heard:
		}
	}
}

// localTerm returns the local term that a check of k would be decided in.
func (n *Node) localTerm(k bucket.Key) uint64 {
	return n.runner.handoff.LocalTerm(k.Shard(n.cfg.Ring.Partitions))
}
