package limiter

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/check"
)

// Code is the kind of an Error. APIs map it to their own codes.
type Code uint8

const (
	// Invalid: a field is invalid; Field names it.
	Invalid Code = iota + 1
	// UnknownDomain: no rule file has the domain, and the node rejects such domains.
	UnknownDomain
	// Overloaded: a bounded queue was full. Nothing was charged.
	Overloaded
	// Unavailable: no owner responded in time, and the verb or the rule allows no fallback.
	Unavailable
	// NotFound: the named thing does not exist. Of no check, like the next.
	NotFound
	// Rejected: not in the present state; Message says what must change.
	Rejected
	// Forbidden: the caller does not have the permission.
	Forbidden
	// Unauthenticated: the caller is not authenticated, and anonymous ones do not have the permission.
	Unauthenticated
	// Unsupported: the call requires a feature that the node does not have.
	Unsupported
)

// codes is the number of codes, counting the unused 0.
const codes = int(Unsupported) + 1

// checkCodes are those that checks can have.
var checkCodes = []Code{Invalid, UnknownDomain, Overloaded, Unavailable, Forbidden, Unauthenticated}

var codeNames = [codes]string{
	Invalid: "invalid", UnknownDomain: "unknown_domain", Overloaded: "overloaded", Unavailable: "unavailable",
	NotFound: "not_found", Rejected: "rejected", Forbidden: "forbidden", Unauthenticated: "unauthenticated",
	Unsupported: "unsupported",
}

func (c Code) String() string {
	if c == 0 || int(c) >= codes {
		return "unknown"
	}
	return codeNames[c]
}

// Error is why there is no decision on a check or a call. Values are shared; do not change one.
type Error struct {
	Code Code
	// Field is the invalid field, for example "descriptor[0].key". Within a Result it is relative to the check: see Path.
	Field string
	// Message is the reason and the remedy, without the field's name.
	Message string
}

func (e *Error) Error() string {
	if e.Field == "" {
		return e.Message
	}
	return e.Field + ": " + e.Message
}

// Path returns the field within a call whose check i the error is about, for example "checks[3].cost", or "" for no field.
func (e *Error) Path(i int) string {
	if e.Field == "" {
		return ""
	}
	return "checks[" + strconv.Itoa(i) + "]." + e.Field
}

// ErrBusy rejects a call to an overloaded node. Shared; do not change it.
var ErrBusy = &Error{Code: Overloaded, Message: "this node has too much to do; nothing was charged, ask another node or try again later"}

// ErrNotOperator rejects an operator's call of another caller where there is no ACL. Shared; do not change it.
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

// LimitsError returns err, of bucket.NewLimits, as the error of a check. An error of the set has the field "limits".
func LimitsError(err error) *Error {
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

// CountError returns why a call of n checks is invalid, or nil. APIs call it before they fill a batch, so that a flood of empty
// checks costs no memory; Service calls it again.
func CountError(n int) *Error {
	switch {
	case n == 0:
		return &Error{Code: Invalid, Field: "checks", Message: "empty; want 1 to 10,000 checks"}
	case n > MaxChecks:
		return &Error{Code: Invalid, Field: "checks", Message: "more than 10,000 checks; split the call"}
	}
	return nil
}

// ValidKey reports whether key is an idempotency key.
func ValidKey(key string) bool {
	return key != "" && len(key) <= MaxIdempotencyKey && !strings.ContainsFunc(key, func(r rune) bool { return r <= ' ' || r > '~' })
}

// keyError returns why the idempotency key of b is invalid, or nil.
func keyError(b *Batch) *Error {
	switch {
	case b.IdempotencyKey == "":
	case !ValidKey(b.IdempotencyKey):
		return &Error{Code: Invalid, Field: "idempotency_key", Message: "want at most 128 bytes of visible ASCII"}
	case b.reserving == nil && slices.ContainsFunc(b.Checks, func(c Check) bool { return c.Verb != bucket.Charge && c.Verb != bucket.Refund }):
		return &Error{Code: Invalid, Field: "idempotency_key", Message: "is for charges and refunds, which the owner of a counter decides; " +
			"send other verbs in a call without it"}
	}
	return nil
}

// nameError returns why the domain or the descriptor of c is invalid, or nil.
func nameError(c *Check) *Error {
	if e := textError(c.Domain, false); e != "" {
		return &Error{Code: Invalid, Field: "domain", Message: e}
	}
	switch n := len(c.Descriptor); {
	case n == 0:
		return &Error{Code: Invalid, Field: "descriptor", Message: "empty; want at least one entry"}
	case n > MaxEntries:
		return &Error{Code: Invalid, Field: "descriptor", Message: fmt.Sprintf("more than %d entries", MaxEntries)}
	}
	for i := range c.Descriptor {
		if e := textError(c.Descriptor[i].Key, false); e != "" {
			return &Error{Code: Invalid, Field: fmt.Sprintf("descriptor[%d].key", i), Message: e}
		}
	}
	return nil
}

var (
	errDrainAtomic = &Error{Code: Invalid, Field: "drain", Message: "what a denied check drains cannot be given back, " +
		"so it cannot be part of an all-or-nothing call"}
	errResetAtomic = &Error{Code: Invalid, Field: "verb", Message: "a reset cannot be taken back, " +
		"so it cannot be part of an all-or-nothing call; send it in a call of its own"}
	errSpendAtomic = &Error{Code: Invalid, Field: "verb", Message: "charge and refund always succeed, " +
		"so they cannot be part of an all-or-nothing call; send them in a call of their own"}
)

// costError returns why the verb or the cost of c is invalid, or nil. A reset has no cost.
func costError(c *Check, allOrNothing bool) *Error {
	switch c.Verb {
	case bucket.Check, bucket.Read:
		if c.Drain && allOrNothing {
			return errDrainAtomic
		}
	case bucket.Reset:
		if allOrNothing {
			return errResetAtomic
		}
		c.Cost = 0
	case bucket.Charge, bucket.Refund:
		if allOrNothing {
			return errSpendAtomic
		}
	default:
		return &Error{Code: Invalid, Field: "verb", Message: fmt.Sprintf("%v is not a verb of checks; want check, read, charge, refund or reset", c.Verb)}
	}
	if c.Cost < 0 {
		return &Error{Code: Invalid, Field: "cost", Message: "negative; to give back, use the verb refund with a positive cost"}
	}
	return nil
}

// textError returns why a domain, key or name is invalid, or "".
func textError(s string, mayBeEmpty bool) string {
	switch {
	case s == "" && !mayBeEmpty:
		return "empty"
	case len(s) > MaxText:
		return fmt.Sprintf("%d bytes; want at most %d", len(s), MaxText)
	}
	return ""
}
