package client

import (
	"errors"
	"fmt"
)

// Errors of a Client.
var (
	// ErrClosed: the Client was closed.
	ErrClosed = errors.New("sluice: the client is closed")
	// ErrNever: Wait was asked for a cost that can never be admitted.
	ErrNever = errors.New("sluice: the cost is more than the limit can ever admit")
	// ErrWouldExceedDeadline: Wait would have to wait for longer than its context lives.
	ErrWouldExceedDeadline = errors.New("sluice: the limit would admit this only after the context's deadline")
	// ErrUnavailable: no node has said that it did what was asked: a Charge, a Refund or a Reset, which no
	// FailurePolicy can stand in for. It may have been done.
	ErrUnavailable = errors.New("sluice: no node answered")
	// ErrCredentials: the nodes do not take the client's token, or want one. Dial returns it, with what a node said; where
	// nodes stop to take the token later, the FailurePolicy answers.
	ErrCredentials = errors.New("sluice: the nodes do not take the credentials")
)

// Error says what is wrong with a check. It was not charged.
type Error struct {
	// Field is the field at fault, for example "descriptor[0].key".
	Field   string
	Message string
}

func (e *Error) Error() string {
	if e.Field == "" {
		return "sluice: " + e.Message
	}
	return fmt.Sprintf("sluice: %s: %s", e.Field, e.Message)
}

func invalid(field, message string) *Error { return &Error{field, message} }

// What became of a call on a stream. They do not leave the package.
var (
	// errUnsent: the check never left, or was certainly not decided.
	errUnsent = errors.New("not sent")
	// errAmbiguous: it was sent and has no answer; it may have been charged.
	errAmbiguous = errors.New("sent, but not answered")
	// errGaveUp: the context ended before an answer came; it may have been charged.
	errGaveUp = errors.New("sent, and not waited for any more")
	// errBusy: a full queue; nothing was charged.
	errBusy = errors.New("overloaded")
	// errNoHolder: the node found nobody who may decide, and the rule no answer in its place.
	errNoHolder = errors.New("no node that may decide answered the node that was asked")
)
