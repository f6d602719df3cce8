// Package faulttest checks, for tests of several packages, the errors in files.
package faulttest

import (
	"testing"

	"github.com/sluicecluster/sluice/rules"
)

// Placed checks that err joins one or more errors, each with a line of the file and a reason.
func Placed(t testing.TB, err error, file string) {
	t.Helper()
	faults := rules.Errors(err)
	if len(faults) == 0 {
		t.Fatalf("an error without a place: %v", err)
	}
	for _, e := range faults {
		if e.File != file || e.Line < 1 || e.Reason == "" {
			t.Errorf("%#v lacks file, line or reason", e)
		}
	}
}
