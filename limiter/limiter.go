package limiter

import (
	"context"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/rules"
)

// Bounds of what a door may ask. A check outside them is answered with an Error
// and charges nothing.
const (
	// MaxChecks is the most checks of one call.
	MaxChecks = 10_000
	// MaxEntries is the most entries of one descriptor: no rule lies deeper.
	MaxEntries = rules.MaxDepth
	// MaxText is the most bytes of a domain or a key. Values may be longer: see rules.Rule.AppendKey.
	MaxText = rules.MaxEntryBytes
	// MaxResponses is how many bytes the responses of rules may take in one answer, so that they
	// do not make it larger than clients read. Those beyond it are left out.
	MaxResponses = 1 << 20
)

// Service is what every front door calls. Limiter implements it.
type Service interface {
	// Check decides b.Checks and fills b.Results, one each. The error, an *Error,
	// is about the call as a whole: no checks or too many of them, or every one
	// met a full queue. All else stands in the results.
	Check(ctx context.Context, b *Batch) error
	// Reset forgets the counters that b.Checks name. Only Err, Rule, Source and
	// Holder of the results count. Errors are as in Check.
	Reset(ctx context.Context, b *Batch) error
	// Members returns the cluster as this node sees it.
	Members(ctx context.Context) Members
	// ReportLoad takes the load that a service reports for a pool, and tells the other nodes. The error, an
	// *Error, is Invalid, NotFound or Refused.
	ReportLoad(ctx context.Context, r LoadReport) (PoolLoad, error)
	// Top returns the heaviest keys of all nodes. The error, an *Error, is Invalid, Refused where this node counts
	// none, or q.Stranger.
	Top(ctx context.Context, q TopQuery) (Top, error)
	// Inspect tells everything about what a descriptor is held to and how it stands, and changes nothing. Of q only Domain
	// and Descriptor count. The error, an *Error, is Invalid, UnknownDomain or Unavailable.
	Inspect(ctx context.Context, q *Check) (Inspection, error)
	// Forget takes a member out of the stable set without asking a majority, and
	// returns the set without it. The error, an *Error, is Invalid, NotFound, Refused, or
	// Unavailable. Who may ask is for the doors to say.
	Forget(ctx context.Context, name string) (StableSet, error)
	// Bootstrap makes the node found a voter set of its own, and returns it. Its errors are *Error.
	Bootstrap(ctx context.Context) (StableSet, error)
	// AcceptLoss has all nodes take lost counters for unspent. It returns for how many partitions of this node, and which other nodes were
	// told. The error, an *Error, is Unavailable.
	AcceptLoss(ctx context.Context) (partitions int, told []string, err error)
}

// Check is one question: may this descriptor spend this cost now?
type Check struct {
	Domain     string
	Descriptor []rules.Entry
	// Cost is 0 or more; with verb Check, 0 only reads. Batch.Add sets it to 1.
	Cost int64
	// Verb is any. Reset, which ignores the cost, is for doors whose callers mix it with
	// checks; Service.Reset is the call for it alone.
	Verb bucket.Verb
	// Drain and NoDelay are those of bucket.Request. An all-or-nothing batch, which gives back
	// what it charged, refuses Reset and Drain.
	Drain, NoDelay bool
	// Limits come with the check. When there are any, no rule is matched, and
	// what is spent is counted apart from what rules count: see Limiter.
	Limits []bucket.Limit
	// Fault is set by a door that could read the call but not this check, for
	// example an enum out of range. It becomes the result's Err.
	Fault *Error
}
