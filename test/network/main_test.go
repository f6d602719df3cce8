// Package network tests real processes in network namespaces: hosts cut off, slow and lossy links, and callers that
// do not wait. All but the deadlines need root and ip.
package network

import (
	"testing"

	"github.com/sluicecluster/sluice/test/process"
)

func TestMain(m *testing.M) { process.Scenarios(m) }
