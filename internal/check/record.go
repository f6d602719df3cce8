package check

import (
	"errors"
	"time"

	"github.com/sluice-project/sluice/bucket"
)

// Errors of a whole call between nodes.
var (
	// ErrUnsent: the records never left this node; asking again is safe.
	ErrUnsent = errors.New("not sent")
	// ErrAmbiguous: the records were sent and no answer came; they may have been charged.
	ErrAmbiguous = errors.New("sent, but not answered")
)

// Record is one request as it travels to a holder.
type Record struct {
	bucket.Request
	// Hold asks the holder to remember the charge under ID for a while, so that
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
	// Lend asks for a lease of Want units for the time For instead of a check, and says that grant ID is wholly spent, if it
	// is not 0. Return gives back Want unspent units of
	// grant ID. Rate is the demand on the asking node, in units a second.
	Lend, Return bool
	Want, Rate   int64
	For          time.Duration
	// Relay asks a node that does not own the key to ask the owner, within For, for one that cannot reach it. Records that the node
	// asks for others are not relayed again. Never with Hold.
	Relay bool
	// Trace is the span of the asking node that the record is sent for, mostly nil.
	Trace *Trace
}

// Many reports whether r is more than one check.
func (r *Record) Many() bool { return r.Times > 1 }

// Hot reports whether r is more than one check, or about a lease.
func (r *Record) Hot() bool { return r.Many() || r.Lend || r.Return }

// Status says what became of a Record.
type Status uint8

const (
	// Decided: the Reply's Decision counts.
	Decided Status = iota + 1
	// NotHolder: the node asked does not hold the key. Holder names who does, if known.
	NotHolder
	// Overloaded: refused unread.
	Overloaded
	// Invalid: the record cannot be decided (for example unknown limits).
	Invalid
	// Later: nothing was decided or charged, and the same node, or Holder if it names
	// another, is to be asked again in a moment.
	Later
)

// Reply answers the Record at the same index.
type Reply struct {
	bucket.Decision
	Status Status
	// Holder is the name of the holder as the answering node knows it; with
	// Decided it is the answering node.
	Holder string
	// Granted is how many checks of a record with Times were admitted: the first ones. Decision
	// answers the last of them, and all of the record if there are none.
	Granted int64
	// Denial answers the others where some were admitted and some not; else nil.
	Denial *bucket.Decision
	// Lent: units of the key are lent, and may come back, so a denial is true only now.
	Lent bool
	// Grant and For answer a record with Lend, as in bucket.Grant; Granted is the units, and RetryAfter when there
	// may be some if there are none.
	Grant uint64
	For   time.Duration
}

// Handler decides records that came from another node. from is the asking
// process's boot id. Unless the records are Sync or Relay, it must not block on the network.
type Handler interface {
	Serve(from string, records []Record, replies []Reply)
}
