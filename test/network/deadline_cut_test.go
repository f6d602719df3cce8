//go:build linux

package network

import (
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
)

// TestDeadlinesCut: as TestDeadlines, where the owner is cut off the network.
func TestDeadlinesCut(t *testing.T) {
	for _, timeout := range []time.Duration{20 * time.Millisecond, 50 * time.Millisecond, 100 * time.Millisecond} {
		t.Run(timeout.String(), func(t *testing.T) {
			l, nodes := startThree(t, "--rules", deadlineRules(t))
			api := sluicev1.NewRateLimitServiceClient(nodes[0].conn)
			deadlineTrial{t, timeout, api, byConn(api), nodes[1].name, func() { l.cut(2, true) }}.run()
			l.cut(2, false)
		})
	}
}
