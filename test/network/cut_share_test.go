//go:build linux

package network

import (
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/test/process"
)

// patient nodes look longer for an owner than its partition may be without one. Others
// answer with their own share meanwhile.
var patient = []string{"--check-timeout", "3s"}

// TestCutOff takes one of three hosts off the network for 60 s under load: both sides go on
// with whom they see, all agree within 5 s of the cut's end, and nobody has spent more than the limit
// and the share of the host that was cut off.
func TestCutOff(t *testing.T) {
	l, nodes := startThree(t, patient...)
	majority, minority := nodes[:2], nodes[2:]
	all := func() []*labNode { return nodes }
	small := l.audit("small", audit.Config{Specs: cutSpecs(1000), Rate: 4000, Callers: 16}, all)
	huge := l.audit("huge", audit.Config{Specs: hugeSpecs(), Rate: 1000, Callers: 8}, all)
	process.Eventually(t, 20*time.Second, "keys have been asked for some times", func() error {
		if s, h := small.checks.Load(), huge.checks.Load(); s < 4000 || h < 1000 {
			return fmt.Errorf("%d and %d checks", s, h)
		}
		return nil
	})

	var healed atomic.Bool
	var late *watch
	c := minority[0].during(func() {
		began := time.Now()
		end := began.Add(60 * time.Second) // the length of the cut is what is tested
		l.waitSide(majority, true, 10*time.Second)
		t.Logf("majority agrees %v after the cut", time.Since(began).Round(time.Millisecond))
		l.waitSide(minority, false, 10*time.Second)
		t.Logf("minority agrees %v after the cut", time.Since(began).Round(time.Millisecond))
		// Keys that only the minority is asked for, so that there is room when the cut ends.
		late = l.audit("late", audit.Config{
			Specs: cutSpecs(50), Rate: 500, Callers: 4,
			Duration: time.Until(end) + 3*time.Second, Exhaust: audit.Exhaust{Denials: 2, Within: 20 * time.Second},
		}, func() []*labNode {
			if healed.Load() {
				return nodes
			}
			return minority
		})
		<-time.After(time.Until(end))
	})
	healed.Store(true)
	l.waitWhole(nodes, process.Quiet)
	t.Logf("all agree %v after the cut's end", time.Since(c.ended).Round(time.Millisecond))

	late.wait().judgeExact(cutLimit)
	a := small.end()
	a.judge(cutLimit, cutShare, c)
	c.judgeSides(a)
	a = huge.end()
	a.judge(hugeLimit, hugeLimit/3, c)
	c.judgeSides(a)
}

// TestCutOffFlapping cuts one of three hosts off and lets it come back, five times.
// Each key's share is spent once in all that time.
func TestCutOffFlapping(t *testing.T) {
	l, nodes := startThree(t, patient...)
	all := func() []*labNode { return nodes }
	// These spend limit and share at once, and those in the course of all cuts.
	fast := l.audit("fast", audit.Config{Specs: cutSpecs(300), Rate: 3000, Callers: 16}, all)
	slow := l.audit("slow", audit.Config{Specs: cutSpecs(300), Rate: 1000, Callers: 8}, all)
	<-time.After(2 * time.Second) // keys have been asked for some times
	var cuts []cut
	for range 5 {
		cuts = append(cuts, nodes[2].during(func() { <-time.After(5 * time.Second) }))
		<-time.After(5 * time.Second)
	}
	l.waitWhole(nodes, process.Quiet)
	for _, a := range []*account{fast.end(), slow.end()} {
		a.judge(cutLimit, cutShare, cuts...)
		a.judgeWaits("of all", func(*audit.Check) bool { return true })
	}
}

// judgeSides holds the time that answers took to cutGap, on each side of the cut.
func (c *cut) judgeSides(a *account) {
	a.t.Helper()
	// By then the minority has noticed that it is one.
	noticed, over := c.begun.Add(time.Second).UnixNano(), c.end.UnixNano()
	a.judgeWaits("of shares, during the cut", func(k *audit.Check) bool {
		return k.Source == "share" && k.First > noticed && k.Answered < over
	})
	for _, side := range []struct {
		what  string
		match func(*audit.Check) bool
	}{
		{"of the cut's first second, from the minority", func(k *audit.Check) bool {
			return k.Node == c.node.grpc && k.Answered > c.begin.UnixNano() && k.First <= noticed
		}},
		{"after the cut", func(k *audit.Check) bool { return k.Answered >= over }},
		{"of the majority", func(k *audit.Check) bool { return k.Node != c.node.grpc }},
		{"of all", func(*audit.Check) bool { return true }},
	} {
		a.judgeWaits(side.what, side.match)
	}
}
