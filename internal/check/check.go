// Package check has the types that APIs, the node and the peer transport share: a matched and hashed check, its answer, and
// the records in which both travel between nodes. It decides nothing and does no I/O.
package check

import (
	"context"
	"errors"
	"hash/fnv"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/rules"
)

// Errors of a single check, in Answer.Err.
var (
	// ErrOverloaded: a bounded queue was full. The check was neither decided nor charged.
	ErrOverloaded = errors.New("overloaded: a queue to the deciding node is full")
	// ErrNoOwner: no node that may decide could be reached in time, and the verb or the rule allows no fallback.
	ErrNoOwner = errors.New("no node that may decide this key answered in time")
)

// Source tells how an answer was made.
type Source uint8

const (
	// Owned: this node owns the key and decided.
	Owned Source = iota + 1
	// Forwarded: another node owns the key and decided.
	Forwarded
	// Share, Closed and Open: no owner answered; the fallback decided.
	Share
	Closed
	Open
	// Unmatched: no rule matched, or the rule is unlimited; nothing was counted.
	Unmatched
	// Leased: decided on units that the owner has leased to this node.
	Leased
	// Eventual: this node decided by itself, on its share of the last known remainder.
	Eventual
	// Lost: the key's counter was lost, and the rule denies what may have been spent. A Decider reports it in
	// Decision.Lost.
	Lost
)

var sources = [...]string{"", "owned", "forwarded", "share", "closed", "open", "unmatched", "lease", "eventual", "lost_state"}

// String returns the name of s, "" for none.
func (s Source) String() string {
	if int(s) < len(sources) {
		return sources[s]
	}
	return "unknown"
}

// Early says why a check was answered without its owner before its caller's deadline.
type Early uint8

const (
	// AtMargin: the deadline is so near that an answer of the owner would come too late.
	AtMargin Early = iota + 1
	// NotAsked: the owner has just let another check wait in vain.
	NotAsked
)

// String returns the name of e, "" for none.
func (e Early) String() string { return [...]string{"", "deadline", "circuit_open"}[e] }

// Request is one matched and hashed check.
type Request struct {
	bucket.Request
	// OnFailure is the fallback when no owner is reached in time, OnPartition when this node is in a minority.
	OnFailure, OnPartition rules.OnFailure
	// UnknownShare is the share if this node remembers no answer of the key's owner.
	UnknownShare rules.UnknownShare
	// Sync: the answer waits until a replica has the charge. Never with Unreplicated.
	Sync bool
	// NoDenialCache: its denials must not be cached, because other clients give units back all the time.
	NoDenialCache bool
	// Eventual: this node decides by itself where it can, and reports to the owner afterwards. Never with Sync.
	Eventual bool
	// Shadow: the rule only observes. Its denial does not fail an atomic batch.
	Shadow bool
}

// Answer is the answer to the Request at the same index.
type Answer struct {
	bucket.Decision
	Source Source
	// Owner is the name of the node that decided.
	Owner string
	// Age is the maximum time since the owner was asked, if the answer is cached; else 0.
	Age time.Duration
	// Early says why the check did not wait for its owner until the end of its time.
	Early Early
	// GivenBack: it was admitted and then refunded because another check failed its atomic batch. Allowed is then false.
	GivenBack bool
	// Err is set if there is no decision; Decision is then zero.
	Err error
}

// Batch is a set of checks made together. Answers has the length of Requests.
type Batch struct {
	Requests []Request
	Answers  []Answer
	// AllOrNothing: if one check of verb Check is denied or fails, the charges of the others are refunded and they are
	// answered as not allowed.
	AllOrNothing bool
	// Detached: it is decided to the end, though the caller's deadline may pass. Decide returns before the deadline, and the batch is
	// the Decider's from then on.
	Detached bool
	// Trace is the parent span of the batch, nil if it is not traced.
	Trace *Trace
}

// Decider decides batches; cluster.Node is one.
type Decider interface {
	// Decide fills b.Answers. It blocks until every check is answered, at the latest when ctx ends or the node's own
	// timeout has passed.
	Decide(ctx context.Context, b *Batch)
}

// MaxDenied is the maximum time for which a denial may be cached, and so the time for which a rule change, a refund through
// another node or a reset may go unnoticed.
const MaxDenied = 100 * time.Millisecond

// DoNotCache is the Answer.Age of a denial that must not be cached: it is as old as one may get.
const DoNotCache = MaxDenied

// DeniedFor returns how long denial d of r holds whatever other clients spend, at most MaxDenied. It is 0 for a check whose
// denial counts or changes the counter.
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

// Errors of a call between nodes.
var (
	// ErrUnsent: the records never left this node; a retry is safe.
	ErrUnsent = errors.New("not sent")
	// ErrAmbiguous: the records were sent and no answer arrived; they may have been charged.
	ErrAmbiguous = errors.New("sent, but not answered")
)

// Record is one request to an owner.
type Record struct {
	bucket.Request
	// Undoable asks the owner to remember the charge under ID for a while, so that GiveBack can undo exactly that.
	Undoable bool
	// GiveBack undoes the Undoable charge ID on Key; all other fields are ignored. Idempotent.
	GiveBack bool
	// ID is unique among the charges of the sending process.
	ID uint64
	// Sync: the reply waits until a replica has the charge. All records of a call have the same value.
	Sync bool
	// Times is the number of equal checks of one key in this record, at most bucket.MaxTimes; 0 means 1. Above 1 only with
	// verb Check, without Drain and Undoable, under limits that are Repeatable.
	Times int64
	// Grant requests a lease of Want units for the time For instead of a check, and reports grant ID (if not 0) as fully
	// spent. Return gives back Want unspent units of grant ID. Rate is the sender's demand in units per second.
	Grant, Return bool
	Want, Rate    int64
	For           time.Duration
	// Once, with Grant, names the leaseholder if that is not the sender but its region.

	// Report reports, in eventual mode, that Cost is all that the process tagged Once has admitted of Key in the window that ends at ID (Unix
	// ns), instead of a check. Its Reply has what that window's counter knows: Admitted of the process, Remaining, Limit processes that
	// share it, and in Grant the end of the window, ResetAfter from now.
	Report bool
	// Relay asks a node that is not the owner to ask the owner within For, for a node that cannot reach it. A relayed
	// record is not relayed again. Never with Undoable.
	Relay bool
	// Trace is the sender's span, usually nil.
	Trace *Trace
}

// Many reports whether r is more than one check.
func (r *Record) Many() bool { return r.Times > 1 }

// Hot reports whether r is more than one check, or about a lease.
func (r *Record) Hot() bool { return r.Many() || r.Grant || r.Return }

// Status is the outcome of a Record.
type Status uint8

const (
	// Decided: Decision is valid.
	Decided Status = iota + 1
	// NotOwner: the receiver does not own the key. Owner is the owner, if known.
	NotOwner
	// Overloaded: rejected without being read.
	Overloaded
	// Invalid: the record cannot be decided (for example unknown limits).
	Invalid
	// NotReady: nothing was decided or charged; retry in a moment at the same node, or at Owner if it names another.
	NotReady
	// AtHome: another region has the counter, and the receiver has too little leased of it: the sender must ask there.
	AtHome
)

// Reply answers the Record at the same index.
type Reply struct {
	bucket.Decision
	Status Status
	// Owner is the owner's name as known to the receiver; with Decided, the receiver itself.
	Owner string
	// Admitted is the number of admitted checks of a record with Times: the first ones. Decision is for the last of them,
	// or for all checks if none was admitted.
	Admitted int64
	// Denial is the decision for the other checks if only some were admitted; else nil.
	Denial *bucket.Decision
	// LeasedOut: units of the key are leased and may come back, so the denial must not be cached.
	LeasedOut bool
	// Grant and For answer a record with Grant, as in bucket.Grant. Admitted is the number of units; without any,
	// RetryAfter says when there may be some.
	Grant uint64
	For   time.Duration
	// Late, Repeated and Unknown answer a record about a reservation, as in bucket.Reserved; Admitted is its Units, Grant its
	// Returned and For its Expires.
	Late, Repeated, Unknown bool
}

// Reserved returns the answer to a record about a reservation.
func (r *Reply) Reserved() bucket.Reserved {
	return bucket.Reserved{
		Units: r.Admitted, Returned: int64(r.Grant), Expires: r.For, Late: r.Late, Repeated: r.Repeated, Unknown: r.Unknown,
	}
}

// SetReserved makes x the answer to a record about a reservation.
func (r *Reply) SetReserved(x *bucket.Reserved) {
	r.Admitted, r.Grant, r.For, r.Late, r.Repeated, r.Unknown = x.Units, uint64(x.Returned), x.Expires, x.Late, x.Repeated, x.Unknown
}

// Handler decides records from another node. from is the boot ID of the sender. Unless the records are Sync or Relay, it
// must not block on the network.
type Handler interface {
	Serve(from string, records []Record, replies []Reply)
}

// Trace identifies the parent span in a recorded trace. It is nil, and costs nothing, if nothing is recorded.
type Trace struct {
	ID   [16]byte
	Span [8]byte
}

// HashOf returns a checksum of text, not 0. That of a region's name says in the Once of a Record that is Grant and Relay who sends it.
func HashOf(text string) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(text)) // never fails
	return max(1, h.Sum64())
}
