// Package load measures real processes under load on one key, and what a console costs.
package load

import (
	"testing"

	"github.com/sluicecluster/sluice/test/process"
)

func TestMain(m *testing.M) { process.Scenarios(m) }
