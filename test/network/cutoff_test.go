//go:build linux

package network

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/test/process"
)

// cut is one time in which a node was cut off.
type cut struct {
	node *labNode
	// The network was taken away and given back between these times.
	begin, begun, end, ended time.Time
}

// during takes a node's host off the network while f runs.
func (n *labNode) during(f func()) cut {
	n.lab.t.Helper()
	c := cut{node: n}
	c.begin, c.begun = n.lab.cut(n.host, true)
	f()
	c.end, c.ended = n.lab.cut(n.host, false)
	return c
}

// watch is an audit under way, whose report comes when it is stopped or has exhausted its keys.
type watch struct {
	*lab
	name   string
	log    string
	stop   context.CancelFunc
	done   chan *audit.Report
	checks atomic.Int64 // that have ended
}

// cutGap is how long an answer may take at most, or SLUICE_E2E_GAP on machines that do other things meanwhile.
func cutGap(t *testing.T) time.Duration {
	return max(2*time.Second, process.Setting(t, "SLUICE_E2E_GAP", 0))
}

// audit begins to ask the nodes that targets returns.
func (l *lab) audit(name string, c audit.Config, targets func() []*labNode) *watch {
	l.t.Helper()
	a := &watch{lab: l, name: name, log: filepath.Join(l.t.TempDir(), name+".jsonl"), done: make(chan *audit.Report, 1)}
	log, err := os.Create(a.log)
	if err != nil {
		l.t.Fatal(err)
	}
	c.Targets = func() (addrs []string) {
		for _, n := range targets() {
			addrs = append(addrs, n.grpc)
		}
		return addrs
	}
	c.Domain, c.Log, c.DialOptions = "cut", log, l.dialOptions()
	// An attempt may take longer than any answer should: no other node hides what one is late with.
	c.Attempt, c.AnswerWithin = cutGap(l.t)+time.Second/2, 10*time.Second
	c.Progress = func(p audit.Progress) { a.checks.Store(p.Checks) }
	var ctx context.Context
	ctx, a.stop = context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		r, err := audit.Run(ctx, c)
		if log.Close(); err != nil {
			l.t.Errorf("%s: %v", name, err)
			r = &audit.Report{}
		}
		a.done <- r
	}()
	l.t.Cleanup(func() { // nothing may go on when the test has failed
		a.stop()
		<-ended
	})
	return a
}

// end waits for the report, and returns the log.
func (a *watch) end() (log []audit.Check) {
	a.t.Helper()
	r := <-a.done
	a.t.Logf("%s: %d checks, admitted %d, denied %d, errors %d %+v, ambiguous retries %d, sent on %d; sources %v",
		a.name, r.Checks, r.Admitted, r.Denied, r.FinalErrors, r.Errors, r.AmbiguousRetries, r.ReroutedCalls, r.Sources)
	a.t.Logf("%s: over quota %+v, by owners alone %+v; under %+v", a.name, r.Over, r.OverByOwners, r.Under)
	if r.FinalErrors > 0 || r.Unexhausted > 0 {
		a.t.Errorf("%s: %d checks had no answer, %d keys were not at their limit in the end", a.name, r.FinalErrors, r.Unexhausted)
	}
	// A check whose answer got lost between two nodes may have been charged twice.
	if twice := a.ambiguous(); r.Under.Units > twice {
		a.t.Errorf("%s: %+v were denied that were free, with %d ambiguous retries between nodes: %+v", a.name, r.Under, twice, r.Violations)
	}
	file, err := os.Open(a.log)
	if err != nil {
		a.t.Fatal(err)
	}
	defer file.Close()
	if err := audit.ReadLog(file, func(c audit.Check) error {
		log = append(log, c)
		return nil
	}); err != nil {
		a.t.Fatal(err)
	}
	return log
}

// ambiguous returns how many checks were sent between nodes and not answered.
func (l *lab) ambiguous() (total int64) {
	l.t.Helper()
	client := http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, addr string) (net.Conn, error) { return l.dial(ctx, addr) },
	}}
	defer client.CloseIdleConnections()
	for _, host := range l.hosts {
		v, err := process.Measure(&client, "http://"+host+":7461/metrics")
		count, ok := v["sluice_forward_ambiguous_total"]
		if err != nil || !ok {
			l.t.Fatalf("%s: the metrics do not count ambiguous checks (%v)", host, err)
		}
		total += int64(count)
	}
	return total
}

func byOwner(k *audit.Check) bool { return k.Source == "owned" || k.Source == "forwarded" }

// spent is what was admitted of one key.
type spent struct {
	held, shared int64
	// apart is the part of shared that the node gave which was cut off, atRisk the part of held that this node may not have told a copy:
	// sent to be copied within 50 ms before the cut, or decided in the 50 ms before the gate shut.
	apart, atRisk int64
}

// account adds up a log by key.
func (c *cut) account(log []audit.Check) map[string]*spent {
	const gate = int64(50 * time.Millisecond)
	keys := map[string]*spent{}
	for i := range log {
		k := &log[i]
		s := keys[k.Key]
		if s == nil {
			s = &spent{}
			keys[k.Key] = s
		}
		switch {
		case k.Decision != "allowed":
		case !byOwner(k):
			if s.shared++; k.Node == c.node.grpc {
				s.apart++
			}
		default:
			s.held++
			if k.Owner == c.node.name && k.Answered >= c.begin.UnixNano()-gate && k.Sent <= c.begun.UnixNano()+gate {
				s.atRisk++
			}
		}
	}
	return keys
}

// judge holds every key to its limit and one share more, what owners alone admitted to the limit, and the time that answers took to
// cutGap. The cut may also cost what its node had not told a copy. The test is too short for anything to flow back into a bucket.
func (c *cut) judge(a *watch, log []audit.Check, limit int64) {
	a.t.Helper()
	share := limit / 3
	var total spent
	keys, over := c.account(log), int64(0)
	for key, s := range keys {
		total = spent{total.held + s.held, total.shared + s.shared, total.apart + s.apart, total.atRisk + s.atRisk}
		over += max(0, s.held+s.shared-limit)
		if s.held > limit+s.atRisk || s.apart > share || s.held+s.shared > limit+share+s.atRisk {
			a.t.Errorf("%s, %s: %+v; the limit is %d, a share %d", a.name, key, *s, limit, share)
		}
	}
	a.t.Logf("%s: %d keys: %+v; above the limit %d", a.name, len(keys), total, over)
	// By then the minority has noticed that it is one.
	noticed := c.begun.Add(time.Second).UnixNano()
	for what, match := range map[string]func(*audit.Check) bool{
		"of shares, during the cut": func(k *audit.Check) bool {
			return k.Source == "share" && k.First > noticed && k.Answered < c.end.UnixNano()
		},
		"of the cut's first second, from the minority": func(k *audit.Check) bool {
			return k.Node == c.node.grpc && k.Answered > c.begin.UnixNano() && k.First <= noticed
		},
		"after the cut":   func(k *audit.Check) bool { return k.Answered >= c.end.UnixNano() },
		"of the majority": func(k *audit.Check) bool { return k.Node != c.node.grpc },
	} {
		var took []time.Duration
		for i := range log {
			if k := &log[i]; match(k) {
				took = append(took, time.Duration(k.Answered-k.First))
			}
		}
		if len(took) == 0 {
			a.t.Errorf("%s: no answers %s", a.name, what)
			continue
		}
		slices.Sort(took)
		most := took[len(took)-1]
		a.t.Logf("%s: %d answers %s took p50 %v, p99 %v, at most %v", a.name, len(took), what, took[len(took)/2], took[len(took)*99/100], most)
		if most > cutGap(a.t) {
			a.t.Errorf("%s: an answer %s took %v, want at most %v", a.name, what, most, cutGap(a.t))
		}
	}
}

// TestCutOff takes one of three hosts off the network for 60 s under load: both sides go on
// with whom they see, all agree within 5 s of the cut's end, and nobody has spent more than the limit
// and the share of the host that was cut off. Nodes look longer for an owner than its partition may be without one.
func TestCutOff(t *testing.T) {
	const limit, huge = 30, 100_000
	// Keys that fill up when a bucket, an own window and two aligned windows do, which go on for longer than the test.
	left := func(p time.Duration) time.Duration { return p - time.Duration(time.Now().UnixNano()%int64(p)) }
	period := slices.MaxFunc([]time.Duration{time.Hour, 67 * time.Minute, 71 * time.Minute}, func(a, b time.Duration) int {
		return cmp.Compare(left(a), left(b))
	})
	specs := func(keys int) (list []audit.Spec) {
		for _, l := range []bucket.Limit{
			{Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit}, {Algorithm: bucket.TokenBucket}, {Algorithm: bucket.SlidingCounter},
		} {
			l.Count, l.Period = limit, period
			list = append(list, audit.Spec{Keys: keys, Limit: l})
		}
		return list
	}
	l, nodes := startThree(t, "--check-timeout", "3s")
	majority, minority := nodes[:2], nodes[2:]
	all := func() []*labNode { return nodes }
	small := l.audit("small", audit.Config{Specs: specs(1000), Rate: 4000, Callers: 16, Duration: 5 * time.Minute}, all)
	ample := l.audit("huge", audit.Config{Rate: 1000, Callers: 8, Duration: 5 * time.Minute, Specs: []audit.Spec{{Keys: 100, Limit: bucket.Limit{
		Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Count: huge, Period: time.Hour,
	}}}}, all)
	process.Eventually(t, 20*time.Second, "keys have been asked for some times", func() error {
		if s, h := small.checks.Load(), ample.checks.Load(); s < 4000 || h < 1000 {
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
			Specs: specs(50), Rate: 500, Callers: 4,
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

	for key, s := range c.account(late.end()) {
		if s.held+s.shared != limit {
			t.Errorf("late, %s: owners admitted %d and shares %d, the limit is %d", key, s.held, s.shared, limit)
		}
	}
	small.stop()
	c.judge(small, small.end(), limit)
	ample.stop()
	c.judge(ample, ample.end(), huge)
}
