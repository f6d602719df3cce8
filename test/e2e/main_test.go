// Package e2e tests sluice as its users meet it, by real processes: every API, the documentation, members that come and go.
package e2e

import (
	"testing"

	"github.com/sluicecluster/sluice/test/process"
)

func TestMain(m *testing.M) { process.Main(m) }
