package change

import (
	"context"
	"fmt"
	"math"
	"strings"
	"syscall"
	"testing"
	"time"

	sluicev1 "github.com/sluicecluster/sluice/proto/sluice/v1"
	"github.com/sluicecluster/sluice/test/process"
)

// clockPeriod is how long the windows are, clockLimit what each admits.
const (
	clockPeriod = 4 * time.Second
	clockLimit  = 10
	// clockSlack is how much longer than it was told a key may be denied: what several handoffs may keep it on the way, and the checks
	// before and after them.
	clockSlack = 500 * time.Millisecond
)

// clocked are limits of all algorithms.
var clocked = []struct {
	name, rule string
	// window: it counts in windows that are the same for all keys.
	window bool
	// exact: in no time of one period is more than the limit admitted.
	exact bool
}{
	{"fixed", "count: 10, period: 4s, algorithm: fixed_window", true, false},
	{"calendar", "count: 10, unit: minute, algorithm: fixed_window, align: calendar", false, false},
	{"first", "count: 10, period: 4s, algorithm: fixed_window, align: first_hit", false, false},
	{"steps", "count: 10, period: 4s, algorithm: token_bucket, refill: interval", true, false},
	{"bucket", "count: 10, period: 4s, algorithm: token_bucket", false, false},
	{"leaky", "count: 10, period: 4s, algorithm: leaky_bucket", false, false},
	{"queue", "count: 10, period: 4s, algorithm: leaky_queue", false, false},
	{"log", "count: 10, period: 4s, algorithm: sliding_log", false, true},
	{"counter", "count: 10, period: 4s, algorithm: sliding_counter", false, false},
	{"window", "count: 10, period: 4s, algorithm: sliding_window", false, true},
}

// clockKeys is how many keys each algorithm has, so that some change hands.
const clockKeys = 12

// Nodes whose clocks are off join a cluster and leave it again, or are there first: no key is admitted more than its limit in a window as its first
// owner began it, and none is denied for longer than it was told. The nodes find their clocks off, and new windows follow the others'.
func TestChangeClocks(t *testing.T) {
	shifting := process.ShiftingBinary(t)
	var text strings.Builder
	text.WriteString("domain: clocks\ndescriptors:\n")
	for _, c := range clocked {
		fmt.Fprintf(&text, "  - key: %s\n    limits: [{%s}]\n", c.name, c.rule)
	}
	rules := process.RulesOf(t, text.String())
	for _, shift := range []time.Duration{2 * time.Second, -2 * time.Second, 10 * time.Second, -10 * time.Second, time.Hour, -time.Hour} {
		t.Run(shift.String(), func(t *testing.T) {
			c := process.Config{Rules: rules, Binary: shifting, Args: []string{"--check-timeout", "3s"}}
			nodes := process.ClusterOf(t, 2, c)
			c.Name, c.Join, c.Env = "pod-3", []string{nodes[0].Gossip, nodes[1].Gossip}, []string{"SLUICE_CLOCK_SHIFT=" + shift.String()}
			h := &keyHammer{t: t, keys: make([]hammered, len(clocked)*clockKeys)}
			ctx, stop := context.WithCancel(context.Background())
			done := make(chan struct{})
			go func() { defer close(done); h.run(ctx, nodes[0], nodes[1]) }()
			defer func() { stop(); <-done }()
			pass(clockPeriod)
			odd := process.Start(t, c) // keys move to it
			process.WaitAgreed(t, append(nodes, odd), 20*time.Second)
			pass(clockPeriod * 5 / 4)
			skewKnown(t, odd, shift)
			odd.Signal(syscall.SIGTERM) // and back
			<-odd.Done
			process.WaitAgreed(t, nodes, 20*time.Second)
			pass(clockPeriod * 5 / 4)
			stop()
			<-done
			h.report()
		})
	}
}

// skewKnown fails t unless n's metric says by how much its clock is off.
func skewKnown(t *testing.T, n *process.Node, shift time.Duration) {
	t.Helper()
	if got := n.Metric("sluice_clock_skew_seconds"); math.Abs(got-shift.Seconds()) > 0.1 {
		t.Errorf("a clock that is %v ahead is said to be %v s", shift, got)
	}
}

// hammered is one key that is asked all the time.
type hammered struct {
	// admitted are the times between which each unit was.
	admitted []interval
	// denied is the last denial, if the last check was; until is for how long.
	denied interval
	until  time.Duration
}

// interval is the time in which a call was answered.
type interval struct{ from, to time.Time }

// keyHammer asks all keys in turn, and holds each answer against the ones before.
type keyHammer struct {
	t            *testing.T
	keys         []hammered
	early, late  int
	calls, fails int
	moved        map[string]int // checks by who decided
}

func (h *keyHammer) run(ctx context.Context, nodes ...*process.Node) {
	req := &sluicev1.CheckRequest{}
	for i := range h.keys {
		entry := &sluicev1.Entry{Key: clocked[i/clockKeys].name, Value: fmt.Sprint(i % clockKeys)}
		req.Checks = append(req.Checks, &sluicev1.Check{Domain: "clocks", Descriptor_: []*sluicev1.Entry{entry}})
	}
	h.moved = make(map[string]int)
	tick := time.NewTicker(40 * time.Millisecond)
	defer tick.Stop()
	for ctx.Err() == nil {
		call := interval{from: time.Now()}
		res, err := nodes[h.calls%len(nodes)].API().Check(ctx, req)
		call.to = time.Now()
		if ctx.Err() != nil {
			return
		}
		h.calls++
		if err != nil {
			h.fails++
			continue
		}
		for i, d := range res.Decisions {
			h.hold(i, call, d)
		}
		<-tick.C
	}
}

// hold holds one answer against the key's last denial.
func (h *keyHammer) hold(i int, call interval, d *sluicev1.Decision) {
	k, name := &h.keys[i], clocked[i/clockKeys].name
	if d.Error != nil || d.Source == sluicev1.Source_SOURCE_SHARE || d.Source == sluicev1.Source_SOURCE_CLOSED {
		h.fails++
		return
	}
	h.moved[d.Owner]++
	if k.until > 0 {
		if wait := call.to.Sub(k.denied.from); d.Allowed && wait < k.until-time.Millisecond {
			h.early++
			h.t.Errorf("%s %d: admitted %v after it was denied for %v, by %s", name, i%clockKeys, wait, k.until, d.Owner)
		}
		if wait := call.from.Sub(k.denied.to); !d.Allowed && wait > k.until+clockSlack {
			h.late++
			h.t.Errorf("%s %d: denied %v after it was denied for %v, by %s", name, i%clockKeys, wait, k.until, d.Owner)
		}
	}
	switch {
	case d.Allowed:
		k.until = 0
		k.admitted = append(k.admitted, call)
	case k.until == 0 || call.to.Sub(k.denied.from) > k.until:
		// The first denial of these: the later ones must say the same.
		k.denied, k.until = call, time.Duration(d.GetRetryAfterNs())
	}
}

// report adds up what was admitted.
func (h *keyHammer) report() {
	admitted, over := 0, 0
	for i := range h.keys {
		c, list := clocked[i/clockKeys], h.keys[i].admitted
		admitted += len(list)
		if len(list) == 0 {
			h.t.Errorf("%s %d: nothing admitted", c.name, i%clockKeys)
		}
		windows := make(map[int64]int)
		for j, a := range list {
			if begins := a.from.Truncate(clockPeriod); c.window && a.from.Sub(begins) > clockSlack && a.to.Before(begins.Add(clockPeriod)) {
				windows[begins.UnixNano()]++
			}
			if c.exact && j >= clockLimit && a.to.Sub(list[j-clockLimit].from) < clockPeriod {
				over++
				h.t.Errorf("%s %d: more than %d within %v", c.name, i%clockKeys, clockLimit, a.to.Sub(list[j-clockLimit].from))
			}
		}
		for at, n := range windows {
			if n > clockLimit {
				over += n - clockLimit
				h.t.Errorf("%s %d: %d in the window from %v", c.name, i%clockKeys, n, time.Unix(0, at))
			}
		}
	}
	h.t.Logf("%d calls, %d failed; admitted %d, over %d; admitted before time %d, denied after it %d; decided by %v", h.calls, h.fails, admitted, over, h.early, h.late, h.moved)
	if h.fails > 0 {
		h.t.Errorf("%d calls or checks without an owner's answer", h.fails)
	}
	if h.moved["pod-3"] == 0 {
		h.t.Error("nothing has moved")
	}
}
