package rules

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sluice-project/sluice/internal/yamldoc"
)

// Error is one fault in a rule file.
type Error struct {
	File string
	// Line counts from 1. It is 0 when the fault is the file itself.
	Line int
	// Path leads to the value, for example
	// "auth/auth_type=login.rate_limit.period". It may be empty.
	Path   string
	Reason string
}

func (e *Error) Error() string { return place(e.File, e.Line, e.Path) + e.Reason }

// place says where a fault is, and ends so that the reason can follow.
func place(file string, line int, path string) string {
	var b strings.Builder
	b.WriteString(file)
	if line > 0 {
		fmt.Fprintf(&b, ":%d", line)
	}
	b.WriteString(": ")
	if path != "" {
		b.WriteString(path + ": ")
	}
	return b.String()
}

// Errors returns the faults joined in an error of Parse.
func Errors(err error) []*Error {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var out []*Error
		for _, e := range joined.Unwrap() {
			out = append(out, Errors(e)...)
		}
		return out
	}
	var one *Error
	if errors.As(err, &one) {
		return []*Error{one}
	}
	return nil
}

// joinFaults makes one error of a document's faults, by line.
func joinFaults(file string, faults []yamldoc.Fault) error {
	errs := make([]error, len(faults))
	for i, f := range faults {
		errs[i] = &Error{File: file, Line: f.Line, Path: f.Path, Reason: f.Reason}
	}
	return errors.Join(errs...)
}
