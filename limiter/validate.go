package limiter

import (
	"fmt"

	"github.com/sluice-project/sluice/bucket"
)

// CountFault returns why a call of n checks is refused, or nil. Doors ask it
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
