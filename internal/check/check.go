// Package check is the vocabulary that front doors, the node and the peer
// transport share: a check that has been matched and hashed, its answer, and the
// records in which both travel between nodes. It decides nothing and does no I/O.
package check

import (
	"context"
	"errors"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/rules"
)

// Errors of a single check, found in Answer.Err.
var (
	// ErrOverloaded: a bounded queue was full. The check was neither decided nor charged.
	ErrOverloaded = errors.New("overloaded: a queue to the deciding node is full")
	// ErrNoHolder: nobody that may decide could be reached in time, and the verb
	// or the rule allows no answer in its place.
	ErrNoHolder = errors.New("no node that may decide this key answered in time")
)

// Source says how an answer came to be.
type Source uint8

const (
	// Held: the node that was asked holds the key and decided.
	Held Source = iota + 1
	// Forwarded: another node holds the key and decided.
	Forwarded
	// Share, Closed and Open: no holder answered; on_failure did.
	Share
	Closed
	Open
	// Unruled: no rule matched, or the rule is unlimited; nothing was counted.
	Unruled
)

// Request is one matched and hashed check.
type Request struct {
	bucket.Request
	// OnFailure answers when no holder is reached in time, OnPartition when this node
	// is in a minority.
	OnFailure, OnPartition rules.OnFailure
	// Sync: the answer waits until a copy has the charge. Never with Transient.
	Sync bool
	// Shadow: the rule only watches. Its denial does not fail an all-or-nothing batch.
	Shadow bool
}

// Answer is the answer to the Request at the same index.
type Answer struct {
	bucket.Decision
	Source Source
	// Holder is the name of the node that decided.
	Holder string
	// Err is set when there is no decision; the Decision is then zero.
	Err error
}

// Batch is a set of checks asked together. Answers has the length of Requests.
type Batch struct {
	Requests []Request
	Answers  []Answer
	// AllOrNothing: when one check of verb Check is denied or fails, what the
	// others were charged is given back, and every admitted one is answered as
	// not allowed.
	AllOrNothing bool
}

// Decider decides batches; cluster.Node is one.
type Decider interface {
	// Decide fills b.Answers. It blocks until every check is answered, at the
	// latest when ctx ends or the node's own time-out has passed.
	Decide(ctx context.Context, b *Batch)
}
