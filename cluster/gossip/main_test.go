package gossip

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// TestMain checks that nothing is left running. Each look at the goroutines waits
// about half a second; memberlist's need at most as long as a dial.
func TestMain(m *testing.M) {
	code := m.Run()
	var leak error
	for range 10 {
		if leak = goleak.Find(); leak == nil {
			break
		}
	}
	if leak != nil && code == 0 {
		fmt.Fprintln(os.Stderr, leak)
		code = 1
	}
	os.Exit(code)
}
