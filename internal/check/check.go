// Package check is the vocabulary that APIs, the node and the peer
// transport share: a check that has been matched and hashed, its answer, and the
// records in which both travel between nodes. It decides nothing and does no I/O.
package check

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/rules"
)

// Errors of a single check, found in Answer.Err.
var (
	// ErrOverloaded: a bounded queue was full. The check was neither decided nor charged.
	ErrOverloaded = errors.New("overloaded: a queue to the deciding node is full")
	// ErrNoOwner: nobody that may decide could be reached in time, and the verb
	// or the rule allows no answer in its place.
	ErrNoOwner = errors.New("no node that may decide this key answered in time")
)

// Source says how an answer came to be.
type Source uint8

const (
	// Held: the node that was asked holds the key and decided.
	Held Source = iota + 1
	// Forwarded: another node holds the key and decided.
	Forwarded
	// Share, Closed and Open: no owner answered; on_failure did.
	Share
	Closed
	Open
	// Unmatched: no rule matched, or the rule is unlimited; nothing was counted.
	Unmatched
	// Leased: another node holds the key, and has granted units of it to the one that was asked.
	Leased
	// Eventual: the node that was asked decided by itself, on a share of what it last heard to be left.
	Eventual
	// Lost: the key's counter was lost, and the rule denies what may have been spent. A Decider tells it by Decision.Lost.
	Lost
)

var sources = [...]string{"", "held", "forwarded", "share", "closed", "open", "unmatched", "lease", "eventual", "lost_state"}

// String returns the word for s, "" for none.
func (s Source) String() string {
	if int(s) < len(sources) {
		return sources[s]
	}
	return "unknown"
}

// Request is one matched and hashed check.
type Request struct {
	bucket.Request
	// OnFailure answers when no owner is reached in time, OnPartition when this node
	// is in a minority.
	OnFailure, OnPartition rules.OnFailure
	// UnknownShare says what a share is if this node remembers no answer of the key's owner.
	UnknownShare rules.UnknownShare
	// Sync: the answer waits until a copy has the charge. Never with Transient.
	Sync bool
	// Fresh: a denial of it must not be answered from memory, because others make room all the time.
	Fresh bool
	// Eventual: the node asked decides by itself where it can, and tells the owner afterwards. Never with Sync.
	Eventual bool
	// Shadow: the rule only watches. Its denial does not fail an all-or-nothing batch.
	Shadow bool
}

// Answer is the answer to the Request at the same index.
type Answer struct {
	bucket.Decision
	Source Source
	// Owner is the name of the node that decided.
	Owner string
	// Age is how long ago the owner was asked, at most, where the answer is from memory; else 0.
	Age time.Duration
	// GivenBack: it was admitted, and taken back because another check failed an all-or-nothing
	// batch. Allowed is then false.
	GivenBack bool
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
	// Trace is where what is done for the batch goes in its trace, nil if it is in none.
	Trace *Trace
}

// Decider decides batches; cluster.Node is one.
type Decider interface {
	// Decide fills b.Answers. It blocks until every check is answered, at the
	// latest when ctx ends or the node's own time-out has passed.
	Decide(ctx context.Context, b *Batch)
}

// MaxDenied is the longest that a denial may be answered from memory: as long as a change of
// rules, a refund through another node, or a reset may go unnoticed.
const MaxDenied = 100 * time.Millisecond

// DeniedFor returns how long the denial d of r stands whatever is spent by others, at most MaxDenied. One that counts itself,
// or changes the counter, must be asked for each time.
func DeniedFor(r *bucket.Request, d *bucket.Decision) time.Duration {
	if r.Verb != bucket.Check || r.Drain || r.NoDelay {
		return 0
	}
	for i := range r.Limits.Len() {
		if r.Limits.At(i).CountDenied {
			return 0
		}
	}
	return min(d.RetryAfter, MaxDenied)
}

// Errors of a whole call between nodes.
var (
	// ErrUnsent: the records never left this node; asking again is safe.
	ErrUnsent = errors.New("not sent")
	// ErrAmbiguous: the records were sent and no answer came; they may have been charged.
	ErrAmbiguous = errors.New("sent, but not answered")
)

// Record is one request as it travels to an owner.
type Record struct {
	bucket.Request
	// Hold asks the owner to remember the charge under ID for a while, so that
	// GiveBack can undo exactly it.
	Hold bool
	// GiveBack undoes the held charge ID on Key; all else is ignored. Idempotent.
	GiveBack bool
	// ID is unique among the charges of the asking process.
	ID uint64
	// Sync: the reply waits until a copy has the charge. All records of a call agree on it.
	Sync bool
	// Times is how many alike checks of one key this record is, at most bucket.MaxTimes; 0 is 1. More than
	// one only of verb Check, without Drain or Hold, under limits that are Repeatable.
	Times int64
	// Grant asks for a lease of Want units for the time For instead of a check, and says that grant ID is wholly spent, if it
	// is not 0. Return gives back Want unspent units of
	// grant ID. Rate is the demand on the asking node, in units a second.
	Grant, Return bool
	Want, Rate    int64
	For           time.Duration
	// Relay asks a node that does not own the key to ask the owner, within For, for one that cannot reach it. Records that the node
	// asks for others are not relayed again. Never with Hold.
	Relay bool
	// Trace is the span of the asking node that the record is sent for, mostly nil.
	Trace *Trace
}

// Many reports whether r is more than one check.
func (r *Record) Many() bool { return r.Times > 1 }

// Hot reports whether r is more than one check, or about a lease.
func (r *Record) Hot() bool { return r.Many() || r.Grant || r.Return }

// Status says what became of a Record.
type Status uint8

const (
	// Decided: the Reply's Decision counts.
	Decided Status = iota + 1
	// NotOwner: the node asked does not hold the key. Owner names who does, if known.
	NotOwner
	// Overloaded: rejected unread.
	Overloaded
	// Invalid: the record cannot be decided (for example unknown limits).
	Invalid
	// Later: nothing was decided or charged, and the same node, or Owner if it names
	// another, is to be asked again in a moment.
	Later
)

// Reply answers the Record at the same index.
type Reply struct {
	bucket.Decision
	Status Status
	// Owner is the name of the owner as the answering node knows it; with
	// Decided it is the answering node.
	Owner string
	// Admitted is how many checks of a record with Times were admitted: the first ones. Decision
	// answers the last of them, and all of the record if there are none.
	Admitted int64
	// Denial answers the others where some were admitted and some not; else nil.
	Denial *bucket.Decision
	// LeasedOut: units of the key are granted, and may come back, so a denial is true only now.
	LeasedOut bool
	// Grant and For answer a record with Grant, as in bucket.Grant; Admitted is the units, and RetryAfter when there
	// may be some if there are none.
	Grant uint64
	For   time.Duration
}

// Handler decides records that came from another node. from is the asking
// process's boot id. Unless the records are Sync or Relay, it must not block on the network.
type Handler interface {
	Serve(from string, records []Record, replies []Reply)
}

// Trace is a place in a trace that is being recorded: the span that what follows goes below. What is
// not recorded has no Trace, a nil pointer, and costs nothing by that.
type Trace struct {
	ID   [16]byte
	Span [8]byte
}
