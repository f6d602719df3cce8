//go:build guards

package handoff

import (
	"testing"

	"github.com/sluice-project/sluice/internal/guard"
)

func TestRefusalMemoryRemoved(t *testing.T) {
	guard.Off = guard.RefusalMemory
	t.Cleanup(func() { guard.Off = 0 })
	if !takesAfterRefusal(t, 0) {
		t.Error("a close of a rejected generation was rejected without the rule")
	}
}
