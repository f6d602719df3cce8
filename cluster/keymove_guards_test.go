//go:build guards

package cluster

import (
	"testing"

	"github.com/sluicecluster/sluice/internal/leaf/guard"
)

// TestKeyMoveGuards: the worlds find each rule of moves that is left out.
func TestKeyMoveGuards(t *testing.T) {
	for name, g := range map[string]guard.Guard{"MoveSeal": guard.MoveSeal, "MoveCounter": guard.MoveCounter} {
		without(t, name, 0, g, func(seed uint64) (bad string) {
			bubble(t, func(t *testing.T) { _, bad = runKeyWorld(t, seed) })
			return bad
		})
	}
}
