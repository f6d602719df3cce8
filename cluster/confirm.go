package cluster

import (
	"context"
	"errors"
	"sync"

	"github.com/sluice-project/sluice/bucket"
)

var errUnconfirmed = errors.New("charged, but no copy has confirmed it in time")

// bell wakes all who wait for it. The zero bell is ready.
type bell struct {
	mu struct {
		sync.Mutex
		next chan struct{} // nil while nobody waits
	}
}

// wait returns what is closed when the bell rings next.
func (b *bell) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.next == nil {
		b.mu.next = make(chan struct{})
	}
	return b.mu.next
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.mu.next != nil {
		close(b.mu.next)
		b.mu.next = nil
	}
}

// change is one that a check of a sync rule has made: to be confirmed before it is
// answered.
type change struct {
	index     int // of the check, in the caller's list
	partition int
	// term was read before the check was decided.
	term, seq uint64
}

// confirmed waits until a copy has change seq of a partition, or there is no copy to
// wait for. It reports false when ctx ended first, or this node was deposed: the charge
// stands, or is lost, and whoever asked must take it as one whose answer was lost.
func (n *Node) confirmed(ctx context.Context, c change) bool {
	h := n.runner.handoff
	confirmed := func() bool { return h.Confirmed(c.partition) >= c.seq && h.Term(c.partition) == c.term }
	if confirmed() {
		return true
	}
	// Once is enough: the change is in the journal, and from there it goes by itself.
	n.runner.flush.Store(true)
	signal(n.runner.kick)
	for {
		heard := n.confirms.wait()
		if confirmed() {
			return true
		}
		if h.Term(c.partition) != c.term {
			return false
		}
		select {
		case <-ctx.Done():
			return false
		case <-heard:
		}
	}
}

// term returns the term that a check of k would be decided in.
func (n *Node) term(k bucket.Key) uint64 {
	return n.runner.handoff.Term(k.Shard(n.cfg.Ring.Partitions))
}
