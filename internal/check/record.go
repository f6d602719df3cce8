package check

import (
	"errors"

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
}

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
}

// Handler decides records that came from another node. from is the asking
// process's boot id. Unless the records are Sync, it must not block on the network.
type Handler interface {
	Serve(from string, records []Record, replies []Reply)
}
