package e2e

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// exhaust asks a node for each of the keys until it is denied or fails, and returns how many units an owner has admitted.
func exhaust(n *process.Node, keys int) (admitted int) {
	for i := range keys {
		for {
			ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
			resp, err := n.API().Check(ctx, &sluicev1.CheckRequest{Checks: []*sluicev1.Check{process.InlineCheck(fmt.Sprint("founding-", i))}})
			cancel()
			if err != nil || resp.Decisions[0].Error != nil || !resp.Decisions[0].Allowed || resp.Decisions[0].Source == sluicev1.Source_SOURCE_SHARE {
				break
			}
			admitted++
		}
	}
	return admitted
}

// TestSeedRestarts is review finding B2: the seed, which has no --join, is restarted. It meets the others before it founds anything,
// and admits nothing of keys that are spent.
func TestSeedRestarts(t *testing.T) {
	t.Parallel()
	nodes := process.Cluster(t, 3, "")
	const keys = 6
	if exhaust(nodes[0], keys) == 0 {
		t.Fatal("nothing was admitted")
	}
	for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
		nodes[0].Stop(end)
		nodes[0] = nodes[0].Same(process.Config{})
		again := 0
		for status := 0; status != http.StatusOK && nodes[0].Alive(); {
			again += exhaust(nodes[0], keys)
			status, _, _ = nodes[0].Get("/readyz")
		}
		again += exhaust(nodes[0], keys)
		if again > 0 {
			t.Errorf("after %v: %d units of spent keys were admitted again", end, again)
		}
		process.WaitAgreed(t, nodes, 10*time.Second)
		if s := nodes[0].Log.String(); strings.Contains(s, `members="[pod-1]"`) || strings.Contains(s, "members=[pod-1]") {
			t.Errorf("after %v the seed founded a cluster of its own:\n%s", end, s)
		}
	}
}

// TestColdStart starts three nodes whose names resolve to nothing that answers: none founds anything. When the third can be reached there is one
// cluster of three.
func TestColdStart(t *testing.T) {
	t.Parallel()
	hosts := []string{process.OwnHost(), process.OwnHost(), process.OwnHost()}
	late := hosts[2]
	join := []string{}
	for _, h := range hosts {
		join = append(join, h+":17463")
	}
	expect := []string{"--bootstrap-expect", "3", "--gossip-port", "17463", "--join-timeout", "1s"}
	var nodes []*process.Node
	for i, h := range hosts[:2] {
		nodes = append(nodes, process.Launch(t, process.Config{Name: "pod-" + strconv.Itoa(i+1), Host: h, Join: join, Args: expect}))
	}
	nodes[0].WaitLog("waiting for 1 more node to bootstrap with: --bootstrap-expect is 3, have pod-1, pod-2; targets that do not answer: "+late, 20*time.Second)
	for _, n := range nodes {
		if status, _, err := n.Get("/healthz"); err != nil || status != http.StatusOK {
			t.Errorf("%s: /healthz %d %v", n.Name, status, err)
		}
		if status, body, err := n.Get("/readyz"); err != nil || status != http.StatusServiceUnavailable || !strings.Contains(body, "waiting for 1 more node") {
			t.Errorf("%s: /readyz %d %s %v", n.Name, status, body, err)
		}
		if admitted := exhaust(n, 1); admitted > 0 {
			t.Errorf("%s admitted %d units before there is a cluster", n.Name, admitted)
		}
	}
	nodes = append(nodes, process.Launch(t, process.Config{Name: "pod-3", Host: late, Join: join, Args: expect}))
	for _, n := range nodes {
		n.WaitReady()
	}
	_, m := process.WaitAgreed(t, nodes, 10*time.Second)
	if m.VoterSet.Version != 1 || len(m.VoterSet.Members) != 3 {
		t.Errorf("founded %v", m.VoterSet)
	}
}
