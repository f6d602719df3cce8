//go:build linux

package network

import (
	"context"
	"strings"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// TestRestartWhileCutOff is review finding B2: a node is restarted behind a cut, without a disk. It founds nothing and owns nothing, so what
// was spent is not admitted again, and it joins the others when the cut has healed.
func TestRestartWhileCutOff(t *testing.T) {
	l, nodes := startThree(t)
	check := func(n *labNode) *sluicev1.Decision {
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		defer cancel()
		resp, err := sluicev1.NewRateLimitServiceClient(n.conn).Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{process.InlineCheck("cut off")}})
		if err != nil {
			return &sluicev1.Decision{}
		}
		return resp.Decisions[0]
	}
	spent := 0
	for check(nodes[0]).Allowed {
		spent++
	}
	if spent == 0 {
		t.Fatal("nothing was admitted")
	}
	l.cut(1, true)
	l.waitSide(nodes[1:], true, 20*time.Second)
	nodes[0].kill()
	// Its link is down, so it could not tell its address.
	nodes[0] = l.start(1, "--join", strings.Join(l.hosts, ","), "--bootstrap-expect", "3", "--advertise", l.hosts[0])
	process.Eventually(t, 20*time.Second, "the restarted node says what it waits for", func() error {
		m, err := nodes[0].members()
		if err == nil && len(m.Unreached) == 0 {
			t.Fatalf("it waits for nothing: %v", m)
		}
		return err
	})
	for end := time.Now().Add(12 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if d := check(nodes[0]); d.Allowed && d.Source != sluicev1.Source_SOURCE_SHARE {
			t.Fatalf("behind the cut it admits as %v", d.Source)
		}
		if m, err := nodes[0].members(); err == nil && (m.VoterSet != nil || m.MayDecide) {
			t.Fatalf("behind the cut it knows %v", m.VoterSet)
		}
	}
	l.cut(1, false)
	l.waitWhole(nodes, 20*time.Second)
}
