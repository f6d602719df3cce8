// Package onenode is a check.Decider that holds every key in one bucket.Table: a
// cluster of one, for the tests of what asks a Decider. It starts no goroutine.
package onenode

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// Name is the owner in every answer.
const Name = "n1"

// Node decides at a time that the test sets. It is safe for concurrent use.
type Node struct {
	Table *bucket.Table
	// Now is the Unix time in nanoseconds.
	Now atomic.Int64
	// Asked counts the requests that were decided, those given back too.
	Asked atomic.Int64
}

// New returns a Node with an empty table, at the Unix time start.
func New(start int64) (*Node, error) {
	t, err := bucket.NewTable(bucket.Config{Shards: 7})
	if err != nil {
		return nil, err
	}
	n := &Node{Table: t}
	n.Now.Store(start)
	return n, nil
}

// Decide implements check.Decider.
func (n *Node) Decide(_ context.Context, b *check.Batch) {
	n.Asked.Add(int64(len(b.Requests)))
	if !b.AllOrNothing {
		for i := range b.Requests {
			b.Answers[i] = n.answer(n.Table.Do(n.Now.Load(), &b.Requests[i].Request))
		}
		return
	}
	receipts := make([]bucket.Receipt, len(b.Requests))
	charged := make([]bool, len(b.Requests))
	failed := false
	var retry time.Duration
	for i := range b.Requests {
		r := &b.Requests[i]
		var d bucket.Decision
		d, charged[i] = n.Table.DoHeld(n.Now.Load(), &r.Request, &receipts[i])
		b.Answers[i] = n.answer(d)
		if r.Verb == bucket.Check && !d.Allowed && !r.Shadow {
			failed = true
			retry = max(retry, d.RetryAfter)
		}
	}
	if !failed {
		return
	}
	for i := range b.Requests {
		if charged[i] {
			n.Table.GiveBack(n.Now.Load(), &receipts[i])
		}
		r, a := &b.Requests[i], &b.Answers[i]
		if r.Verb == bucket.Check && !r.Shadow && a.Allowed {
			a.Allowed, a.GivenBack = false, true
			if retry != bucket.Never {
				a.RetryAfter = retry
			}
		}
	}
}

func (n *Node) answer(d bucket.Decision) check.Answer {
	return check.Answer{Decision: d, Source: check.Owned, Owner: Name}
}
