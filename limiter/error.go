package limiter

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/sluice-project/sluice/bucket"
	"github.com/sluice-project/sluice/internal/check"
)

// Code says what kind of Error it is. APIs map it to their own codes.
type Code uint8

const (
	// Invalid: a field is wrong; Field names it.
	Invalid Code = iota + 1
	// UnknownDomain: no rule file has the domain, and the node is set to reject that.
	UnknownDomain
	// Overloaded: a bounded queue was full. Nothing was charged.
	Overloaded
	// Unavailable: nobody that may decide answered in time, and the verb or the
	// rule allows no answer in its place.
	Unavailable
	// NotFound: what was named is not there. Of no check, like the next.
	NotFound
	// Rejected: not as things are now; Message says what must be otherwise.
	Rejected
	// Forbidden: not for this caller.
	Forbidden
	// Unauthenticated: it is not known who calls, and not everybody may.
	Unauthenticated
)

// codes is the number of codes, counting the unused 0.
const codes = int(Unauthenticated) + 1

// checkCodes are those that checks can have.
var checkCodes = []Code{Invalid, UnknownDomain, Overloaded, Unavailable, Forbidden, Unauthenticated}

var codeNames = [codes]string{
	Invalid: "invalid", UnknownDomain: "unknown_domain", Overloaded: "overloaded", Unavailable: "unavailable",
	NotFound: "not_found", Rejected: "rejected", Forbidden: "forbidden", Unauthenticated: "unauthenticated",
}

func (c Code) String() string {
	if c == 0 || int(c) >= codes {
		return "unknown"
	}
	return codeNames[c]
}

// Error is why there is no decision, on one check or on a whole call. Values are
// shared; do not change one.
type Error struct {
	Code Code
	// Field is the field at fault, for example "descriptor[0].key". Within a
	// Result it is relative to the check; Path completes it.
	Field string
	// Message says what is wrong and what to do, without the field's name.
	Message string
}

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Path returns the field as seen from the call whose check i the error is about,
// for example "checks[3].cost", or "" if no field is at fault.
func (e *Error) Path(i int) string {
	if e.Field == "" {
		return ""
	}
	return "checks[" + strconv.Itoa(i) + "]." + e.Field
}

// ErrBusy is why a node does not take a call on. Shared; do not change it.
var ErrBusy = &Error{Code: Overloaded, Message: "this node has too much to do; nothing was charged, ask another node or try again later"}

// ErrNotOperator is why a node without callers does not answer an operator's call. Shared; do not change it.
var ErrNotOperator = &Error{Code: Forbidden, Message: "only operators may do this: call on the node's own machine, as the user that runs it, " +
	"through its operators' socket, which sluice finds by itself, or through its admin port with its token; or start nodes with --callers and show the token of a caller that may"}

var (
	errOverloaded  = &Error{Code: Overloaded, Message: "a queue to the deciding node is full; nothing was charged, try again later"}
	errUnavailable = &Error{Code: Unavailable, Message: "no node that may decide this key answered in time; it is not known whether the cost was charged"}
)

// errorOf maps the error of an Answer.
func errorOf(err error) *Error {
	switch {
	case errors.Is(err, check.ErrOverloaded):
		return errOverloaded
	case errors.Is(err, check.ErrNoOwner):
		return errUnavailable
	}
	return &Error{Code: Unavailable, Message: err.Error()}
}

// LimitsFault returns err, of bucket.NewLimits, as the fault of a check. One that
// is about the set and not about one limit has the field "limits".
func LimitsFault(err error) *Error {
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	fe, ok := errors.AsType[*bucket.FieldError](err)
	if !ok {
		return &Error{Code: Invalid, Field: "limits", Message: err.Error()}
	}
	field := "limits"
	if fe.Field != "limits" {
		field += "[" + strconv.Itoa(fe.Index) + "]." + fe.Field
	}
	return &Error{Code: Invalid, Field: field, Message: fe.Reason}
}

// CountFault returns why a call of n checks is rejected, or nil. APIs ask it
// before they fill a batch, so that a flood of empty checks costs no memory;
// Service asks it again.
func CountFault(n int) *Error {
	switch {
	case n == 0:
		return &Error{Code: Invalid, Field: "checks", Message: "empty; want 1 to 10,000 checks"}
	case n > MaxChecks:
		return &Error{Code: Invalid, Field: "checks", Message: "more than 10,000 checks; split the call"}
	}
	return nil
}

// nameFault finds what is wrong with the part of c that names a counter.
func nameFault(c *Check) *Error {
	if e := textFault(c.Domain, false); e != "" {
		return &Error{Code: Invalid, Field: "domain", Message: e}
	}
	n := len(c.Descriptor)
	if n == 0 {
		return &Error{Code: Invalid, Field: "descriptor", Message: "empty; want at least one entry"}
	}
	if n > MaxEntries {
		return &Error{Code: Invalid, Field: "descriptor", Message: fmt.Sprintf("more than %d entries", MaxEntries)}
	}
	for i := range c.Descriptor {
		if e := textFault(c.Descriptor[i].Key, false); e != "" {
			return &Error{Code: Invalid, Field: fmt.Sprintf("descriptor[%d].key", i), Message: e}
		}
	}
	return nil
}

var (
	errDrainWhole = &Error{Code: Invalid, Field: "drain", Message: "what a denied check drains cannot be given back, so it cannot be part of an all-or-nothing call"}
	errResetWhole = &Error{Code: Invalid, Field: "verb", Message: "a reset cannot be taken back, so it cannot be part of an all-or-nothing call; send it in a call of its own"}
)

// spendFault finds what is wrong with the part of c that says what to do.
func spendFault(c *Check, allOrNothing bool) *Error {
	switch c.Verb {
	case bucket.Check, bucket.Read:
		if c.Drain && allOrNothing {
			return errDrainWhole
		}
	case bucket.Reset:
		if allOrNothing {
			return errResetWhole
		}
	case bucket.Charge, bucket.Refund:
		if allOrNothing {
			return &Error{Code: Invalid, Field: "verb", Message: "charge and refund always succeed, so they cannot be part of an all-or-nothing call; send them in a call of their own"}
		}
	default:
		return &Error{Code: Invalid, Field: "verb", Message: fmt.Sprintf("%v is not a verb of checks; want check, read, charge or refund", c.Verb)}
	}
	if c.Cost < 0 {
		return &Error{Code: Invalid, Field: "cost", Message: "negative; to give back, use the verb refund with a positive cost"}
	}
	return nil
}

// textFault says what is wrong with a domain, key or name, or "".
func textFault(s string, mayBeEmpty bool) string {
	switch {
	case s == "" && !mayBeEmpty:
		return "empty"
	case len(s) > MaxText:
		return fmt.Sprintf("%d bytes; want at most %d", len(s), MaxText)
	}
	return ""
}
