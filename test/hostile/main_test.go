// Package hostile tests real processes with callers and peers that mean harm, or far too much.
package hostile

import (
	"testing"

	"github.com/sluicecluster/sluice/test/process"
)

func TestMain(m *testing.M) { process.Scenarios(m) }
