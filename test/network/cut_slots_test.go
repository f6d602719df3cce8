//go:build linux

package network

import (
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/leaf/pause"
	"github.com/sluicecluster/sluice/test/process"
)

// TestCutOffSlots: each host is cut off with its node and its callers. Those hold slots that others get only when they have ended, and never more
// are in use than the limit.
func TestCutOffSlots(t *testing.T) {
	l, nodes := startThree(t, "--rules", process.RulesOf(t, process.SlotRules))
	var target []string
	var processes []*process.SlotProcess
	for _, host := range l.hosts {
		target = append(target, host+":7460")
	}
	for host := range l.hosts {
		cmd := exec.Command("ip", "netns", "exec", l.namespace(host+1), os.Args[0])
		processes = append(processes, process.StartSlotCallers(t, cmd, process.WorkSlots(strings.Join(target, ","))))
	}
	for _, p := range processes {
		p.Progress("before a cut", 100)
	}
	var cuts []time.Time
	for i, n := range nodes {
		others := []*labNode{nodes[(i+1)%3], nodes[(i+2)%3]}
		alone, beside := processes[i], processes[(i+1)%3]
		c := n.during(func() {
			l.waitSide(others, true, 20*time.Second)
			beside.Progress("beside a host that is cut off", 100)
			pause.For(t.Context(), 3*time.Second) // longer than a slot without renewal
			from := alone.Count()
			beside.Progress("when all slots of that host have ended", 100)
			if more := alone.Count() - from; more > 0 {
				t.Errorf("%s: %d slots ended that had been given behind the cut", n.name, more)
			}
		})
		cuts = append(cuts, c.begin)
		l.waitWhole(nodes, 20*time.Second)
		for _, p := range processes {
			p.Progress("after a cut", 100)
		}
	}
	process.JudgeAll(t, processes, cuts...)
}
