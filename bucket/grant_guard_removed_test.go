//go:build guards

package bucket_test

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
)

// TestGrantGuardsRemoved shows for each rule what is admitted without it.
func TestGrantGuardsRemoved(t *testing.T) {
	t.Cleanup(func() { guard.Off = 0 })
	for _, c := range grantGuards {
		guard.Off = c.removed
		if got := c.admitted(t); got != c.more {
			t.Errorf("%s: %d admitted without the rule, want %d", c.name, got, c.more)
		}
	}
}
