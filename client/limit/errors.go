package limit

import "errors"

// Errors of a Limiter beside *Error.
var (
	// ErrDenied: the limit denies. ErrNever and ErrWouldExceedDeadline are kinds of it.
	ErrDenied = errors.New("sluice: the rate limit denies this")
	// ErrNever: the amount can never be admitted.
	ErrNever = kindOf(ErrDenied, "sluice: the amount is more than the limit can ever admit")
	// ErrWouldExceedDeadline: the limit would admit this only after the context's deadline.
	ErrWouldExceedDeadline = kindOf(ErrDenied, "sluice: the limit would admit this only after the context's deadline")
	// ErrUnavailable: no node has answered in time. A charge, a refund or a reset that it is returned for may have been done
	// unless its text says that it was not. Degraded is one when a FailurePolicy has decided.
	ErrUnavailable = errors.New("sluice: no node answered")
	// ErrNoOwner is the Decision.Degraded of SourceShare, SourceClosed and SourceOpen.
	ErrNoOwner = errors.New("sluice: no owner of the counter answered the node that was asked")
	// ErrClosed: the Limiter was closed, or was not made by its constructor.
	ErrClosed = errors.New("sluice: the client is closed, or not made by New")
)

// kind is an error that is also another.
type kind struct {
	error
	of error
}

func kindOf(of error, text string) error { return kind{errors.New(text), of} }

func (k kind) Unwrap() error { return k.of }

// DeniedError is the error of a call that takes units to hold, when the limits deny them: nothing is held. It is ErrDenied, and ErrNever if the
// units can never be had. The Batch has a decision per key, or the one that denied.
type DeniedError struct{ Batch }

// Error returns the rule that denies, and when to come back.
func (e *DeniedError) Error() string {
	d, text := e.Strictest(), e.Unwrap().Error()
	switch {
	case d.Rule != "":
		text += ": rule " + d.Rule
	case d.Source == SourceUnmatched:
		text += ": no rule matches"
	}
	if wait, known := e.RetryIn(); known {
		text += "; retry in " + wait.String()
	}
	return text
}

// Unwrap returns ErrNever or ErrDenied.
func (e *DeniedError) Unwrap() error {
	if e.Strictest().Verdict == VerdictNever {
		return ErrNever
	}
	return ErrDenied
}

// Error is why no node can decide a check. Nothing was spent.
type Error struct {
	// Code is the kind of the error.
	Code Code
	// Field is the invalid field, for example "descriptor[0].key"; empty if none is.
	Field string
	// Message says what is wrong and what to do.
	Message string
}

// Invalid returns an Error with CodeInvalid.
func Invalid(field, message string) *Error { return &Error{CodeInvalid, field, message} }

// Error returns the field and the message.
func (e *Error) Error() string {
	text := e.Message
	if text == "" {
		text = e.Code.String()
	}
	if e.Field == "" {
		return "sluice: " + text
	}
	return "sluice: " + e.Field + ": " + text
}

// Is reports whether target is the Err variable of e's code.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && *t == Error{Code: e.Code}
}

// Code is the kind of an Error.
type Code uint8

const (
	// CodeUnknown: a newer node says something that this package does not know.
	CodeUnknown Code = iota
	// CodeInvalid: a field is wrong.
	CodeInvalid
	// CodeUnknownDomain: no rule has the domain, and nodes are set to reject that.
	CodeUnknownDomain
	_ // overloaded: the client asks another node
	_ // unavailable: as above
	// CodeNotFound: what was named is not there.
	CodeNotFound
	// CodeRejected: not as things are now; the message says what must be otherwise.
	CodeRejected
	// CodeForbidden: not for this caller.
	CodeForbidden
	// CodeUnauthenticated: it is not known who calls, and not everybody may.
	CodeUnauthenticated
	// CodeUnsupported: the node lacks a feature that the request needs.
	CodeUnsupported
)

// String returns the name of c.
func (c Code) String() string {
	return nameOf(c, "unknown", "invalid", "unknown domain", "overloaded", "unavailable", "not found", "rejected", "forbidden", "unauthenticated", "unsupported")
}

// The errors of each Code, for errors.Is.
var (
	ErrInvalid         error = &Error{Code: CodeInvalid}
	ErrUnknownDomain   error = &Error{Code: CodeUnknownDomain}
	ErrNotFound        error = &Error{Code: CodeNotFound}
	ErrRejected        error = &Error{Code: CodeRejected}
	ErrForbidden       error = &Error{Code: CodeForbidden}
	ErrUnauthenticated error = &Error{Code: CodeUnauthenticated}
	ErrUnsupported     error = &Error{Code: CodeUnsupported}
)
