//go:build linux

package faults

import (
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/test/process"
)

// startSlots starts a process in the client's namespace that uses slots as users of the Go client do, until it is killed.
func (c *cell) startSlots(targets []*target) *process.SlotProcess {
	c.t.Helper()
	x := process.SlotCallers{Domain: domain, Each: 300 * time.Millisecond, Work: workersOfUse * len(policies) * len(bookNames)}
	var addrs []string
	for _, t := range targets {
		addrs = append(addrs, t.addr)
	}
	x.Target = strings.Join(addrs, ",")
	for _, policy := range policies {
		for _, value := range bookNames {
			x.Keys = append(x.Keys, [2]string{(&book{policy: policy, use: useSlots}).name(), value})
		}
	}
	return process.StartSlotCallers(c.t, exec.Command("ip", "netns", "exec", c.namespace(clientHost), os.Args[0]), x)
}

// endSlots kills the process, writes its slots into the books, and gives the nodes the time to free them. It returns how many fences did
// not rise, by the name of books.
func (l *ledger) endSlots() (fences map[string]int) {
	fences = map[string]int{}
	l.slots.Kill()
	ended := time.Now()
	for _, b := range l.books {
		if b.use != useSlots {
			continue
		}
		uses := l.slots.Uses(b.name() + "=" + b.value)
		if len(uses) == 0 {
			l.c.failed("%s %s: no slot was used", b.name(), b.value)
		}
		for i, u := range uses {
			from, to := time.Unix(0, u.Begin), time.Unix(0, u.End)
			b.note(from, 1, "slot", func() {
				b.hold(from, 1)
				b.hold(to, -1)
			})
			if slices.ContainsFunc(uses[:i], func(before *process.SlotUse) bool { return before.End < u.Begin && before.Fence >= u.Fence }) {
				fences[b.name()]++
			}
		}
	}
	l.c.wait(time.Until(ended.Add(slotsFree)))
	return fences
}
