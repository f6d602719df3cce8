// Package change holds real processes to their quotas over everything that operators plan: joins, leaves, restarts, other
// rules and limits, two versions, and what they do not, such as crashes.
package change

import (
	"testing"

	"github.com/sluicecluster/sluice/test/process"
)

func TestMain(m *testing.M) { process.Scenarios(m) }
