// Package faulttest has what tests of several packages want of faults in files.
package faulttest

import (
	"testing"

	"github.com/sluice-project/sluice/rules"
)

// Placed wants err to be one or more faults, each with a line of the file and a reason.
func Placed(t testing.TB, err error, file string) {
	t.Helper()
	faults := rules.Errors(err)
	if len(faults) == 0 {
		t.Fatalf("an error without faults: %v", err)
	}
	for _, e := range faults {
		if e.File != file || e.Line < 1 || e.Reason == "" {
			t.Errorf("%#v lacks file, line or reason", e)
		}
	}
}
