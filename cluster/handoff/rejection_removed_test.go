//go:build guards

package handoff

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
)

func TestRejectionMemoryRemoved(t *testing.T) {
	guard.Off = guard.RejectionMemory
	t.Cleanup(func() { guard.Off = 0 })
	if !takesAfterRejection(t, 0) {
		t.Error("a close of a rejected generation was rejected without the rule")
	}
}
