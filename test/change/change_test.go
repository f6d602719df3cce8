package change

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/test/linear"
	"github.com/sluicecluster/sluice/test/process"
)

// Quotas survive change: a cluster is audited under load while its members change, and
// every admission is held against the limits. `go run ./test/scenario change` runs these.

// What the issue of a change may cost.
const (
	// plannedGap is the longest time that a key may wait for its owner in planned change,
	// crashGap where a node is lost without a word.
	plannedGap = 100 * time.Millisecond
	crashGap   = 2 * time.Second
)

// fleet is a cluster whose members come and go while it is audited.
type fleet struct {
	t    *testing.T
	args []string
	rule string
	// binary is what is launched, if not the program under test.
	binary string
	// answerWithin is how long a check goes from node to node before it has no answer.
	answerWithin time.Duration
	mu           struct {
		sync.Mutex
		alive []*process.Node
		next  int
	}
}

func newFleet(t *testing.T, size int, rules string, args ...string) *fleet {
	t.Helper()
	return newFleetOf(t, "", size, rules, args...)
}

// newFleetOf is newFleet of nodes that run binary, the program under test if it is empty. They have a secret, as clusters do
// beyond one machine.
func newFleetOf(t *testing.T, binary string, size int, rules string, args ...string) *fleet {
	t.Helper()
	if !slices.Contains(args, "--secret-file") {
		k := process.NewTokens(t)
		k.Write("secret", strings.Repeat("s", 32))
		args = append(args, "--secret-file", filepath.Join(k.Dir, "secret"))
	}
	f := &fleet{
		t: t, rule: rules, binary: binary, args: append([]string{"--check-timeout", "3s"}, args...),
		answerWithin: 10 * time.Second,
	}
	f.mu.alive = process.ClusterOf(t, size, process.Config{Rules: rules, Args: f.args, Binary: binary})
	f.mu.next = size + 1
	return f
}

// targets are the addresses of those who are neither told to stop nor gone.
func (f *fleet) targets() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []string
	for _, n := range f.mu.alive {
		list = append(list, n.GRPC)
	}
	return list
}

func (f *fleet) nodes() []*process.Node {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.mu.alive)
}

// grow starts count nodes at once and waits until they are ready and all agree.
func (f *fleet) grow(count int) {
	f.t.Helper()
	var fresh []*process.Node
	for range count {
		f.mu.Lock()
		name := fmt.Sprintf("pod-%d", f.mu.next)
		f.mu.next++
		f.mu.Unlock()
		fresh = append(fresh, f.launch(name))
	}
	f.enlist(fresh...)
}

func (f *fleet) launch(name string) *process.Node {
	f.t.Helper()
	var join []string
	for _, n := range f.nodes() {
		join = append(join, n.Gossip)
	}
	return process.Launch(f.t, process.Config{Name: name, Join: join, Rules: f.rule, Args: f.args, Binary: f.binary})
}

// enlist waits for nodes and has them asked from then on.
func (f *fleet) enlist(fresh ...*process.Node) {
	f.t.Helper()
	for _, n := range fresh {
		n.WaitReady()
	}
	f.mu.Lock()
	f.mu.alive = append(f.mu.alive, fresh...)
	f.mu.Unlock()
	process.WaitAgreed(f.t, f.nodes(), 20*time.Second)
}

// discharge takes n off the list of those who are asked.
func (f *fleet) discharge(n *process.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.mu.alive = slices.DeleteFunc(f.mu.alive, func(x *process.Node) bool { return x == n })
}

// leave ends nodes with SIGTERM at once, and waits for them. They are asked until they
// reject: that is what a caller with a list of addresses does.
func (f *fleet) leave(nodes ...*process.Node) {
	f.t.Helper()
	var all sync.WaitGroup
	for _, n := range nodes {
		all.Go(func() {
			n.Signal(syscall.SIGTERM)
			<-n.Done
			f.discharge(n)
			if code := n.Cmd.ProcessState.ExitCode(); code != 0 {
				f.t.Errorf("%s ended with %d after SIGTERM:\n%s", n.Name, code, n.Log.Tail(3000))
			}
		})
	}
	all.Wait()
	process.WaitAgreed(f.t, f.nodes(), 20*time.Second)
}

// restart stops n in order and starts it under its name.
func (f *fleet) restart(n *process.Node) {
	f.t.Helper()
	f.leave(n)
	f.enlist(f.launch(n.Name))
}

// crash kills n without a word.
func (f *fleet) crash(n *process.Node) {
	n.Cmd.Process.Kill()
	<-n.Done
	f.discharge(n)
}

// outcome is what an audit of a change found: of keys that are soon at their limit, and
// of keys that never are.
type outcome struct {
	small, large *audit.Report
	log          string
}

// watch audits f while change runs, and after it until every small key is at its limit.
func (f *fleet) watch(change func()) outcome {
	f.t.Helper()
	specs := changeSpecs(f.rule != "")
	dir := f.t.TempDir()
	log, err := os.Create(filepath.Join(dir, "checks.jsonl"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer log.Close()
	ctx, settled := context.WithCancel(context.Background())
	defer settled()
	run := func(c audit.Config) *audit.Report {
		c.Targets, c.Domain, c.Rules, c.Callers = f.targets, "change", f.rule != "", 8
		c.Duration, c.Attempt, c.AnswerWithin = 5*time.Minute, 1500*time.Millisecond, f.answerWithin
		r, err := audit.Run(ctx, c)
		if err != nil {
			f.t.Error(err)
			return &audit.Report{}
		}
		return r
	}
	var found outcome
	found.log = log.Name()
	// Rates that leave two cores some room: what is measured is the change.
	var audits sync.WaitGroup
	audits.Go(func() { found.small = run(audit.Config{Specs: specs[0], Rate: 4000, Log: log}) })
	audits.Go(func() { found.large = run(audit.Config{Specs: specs[1], Rate: 1000}) })
	pass(2 * time.Second) // some keys are at their limit by then, and some are not
	change()
	pass(8 * time.Second) // until all small keys are at their limit
	settled()
	audits.Wait()
	return found
}

// pass lets the load go on for d: its time is what is tested here.
func pass(d time.Duration) { <-time.After(d) }

func (f *fleet) judge(found outcome, gap time.Duration, over int64) {
	f.t.Helper()
	for _, r := range []*audit.Report{found.small, found.large} {
		f.t.Logf("%d checks, admitted %d, denied %d; %d keys at their limit; over quota %d keys by %d (owners alone %d), under %d keys by %d, errors %d, ambiguous retries %d, sent on %d, "+
			"p50 %v p99 %v, longest gap %v at %v of %v, sources %v",
			r.Checks, r.Admitted, r.Denied, r.AtLimit, r.Over.Keys, r.Over.Units, r.OverByOwners.Units, r.Under.Keys, r.Under.Units, r.FinalErrors,
			r.AmbiguousRetries, r.ReroutedCalls, r.Latency.P50, r.Latency.P99, r.LongestGap().Length, r.LongestGap().At, r.Took, r.Sources)
		if r.Over.Units > over {
			f.t.Errorf("%d keys were admitted %d above their limits; want at most %d: %+v", r.Over.Keys, r.Over.Units, over, r.Violations)
		}
		// A check whose answer got lost between two nodes may have been charged twice.
		if twice := int64(process.Total(f.nodes(), "sluice_forward_ambiguous_total")); r.Under.Units > twice {
			f.t.Errorf("%d keys were denied %d units that were free, with %d ambiguous retries between nodes: %+v",
				r.Under.Keys, r.Under.Units, twice, r.Violations)
		}
		if r.FinalErrors > 0 {
			f.t.Errorf("%d checks had no answer: %+v", r.FinalErrors, r.Errors)
		}
		// Timings of machines that do other things meanwhile say nothing about sluice; what they admit does.
		if got := time.Duration(r.LongestGap().Length); got > max(gap, process.Setting(f.t, "SLUICE_E2E_GAP", 0)) {
			f.t.Errorf("a key waited %v for its owner, at %v; want at most %v", got, r.LongestGap().At, gap)
		}
	}
}

func TestChangeGrow(t *testing.T) {
	f := newFleet(t, 3, "")
	f.judge(f.watch(func() {
		f.grow(1)
		f.grow(3)
	}), plannedGap, 0)
}

func TestChangeShrinkOneByOne(t *testing.T) {
	f := newFleet(t, 7, "")
	f.judge(f.watch(func() {
		for _, n := range f.nodes()[3:] {
			f.leave(n)
		}
	}), plannedGap, 0)
}

func TestChangeShrinkAtOnce(t *testing.T) {
	f := newFleet(t, 7, "")
	f.judge(f.watch(func() { f.leave(f.nodes()[3:]...) }), plannedGap, 0)
}

// What a node with a data directory hands over does not come back with its snapshot.
func TestChangeRollingRestart(t *testing.T) {
	for name, f := range map[string]func(t *testing.T) *fleet{
		"3":                 func(t *testing.T) *fleet { return newFleet(t, 3, "") },
		"5":                 func(t *testing.T) *fleet { return newFleet(t, 5, "") },
		"3, with snapshots": func(t *testing.T) *fleet { return newKept(t, "", "--snapshot-interval", "1s") },
	} {
		t.Run(name, func(t *testing.T) {
			f := f(t)
			f.judge(f.watch(func() {
				for _, n := range f.nodes() {
					f.restart(n)
				}
			}), plannedGap, 0)
		})
	}
}

func TestChangeCrash(t *testing.T) {
	for _, size := range []int{3, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			f := newFleet(t, size, "")
			var at time.Time
			found := f.watch(func() {
				at = time.Now()
				f.crash(f.nodes()[1])
				process.WaitAgreed(t, f.nodes(), 10*time.Second)
			})
			f.judge(found, crashGap, f.allowance(found, at))
		})
	}
}

// The name is back before the others have noticed that its process is gone.
func TestChangeCrashAndReturn(t *testing.T) {
	f := newFleet(t, 3, "")
	var at time.Time
	found := f.watch(func() {
		lost := f.nodes()[1]
		at = time.Now()
		f.crash(lost)
		f.enlist(f.launch(lost.Name))
	})
	f.judge(found, crashGap, f.allowance(found, at))
}

func TestChangeCrashSync(t *testing.T) {
	f := newFleet(t, 3, process.RulesOf(t, changeRules("sync")))
	f.judge(f.watch(func() {
		f.crash(f.nodes()[1])
		process.WaitAgreed(t, f.nodes(), 10*time.Second)
	}), crashGap, 0)
}

func TestChangePause(t *testing.T) {
	f := newFleet(t, 3, "")
	var at time.Time
	found := f.watch(func() {
		n := f.nodes()[1]
		at = time.Now()
		n.Signal(syscall.SIGSTOP)
		f.discharge(n)
		pass(10 * time.Second)
		n.Signal(syscall.SIGCONT)
		f.enlist(n)
	})
	f.judge(found, crashGap, f.allowance(found, at))
}

// Every key's log must have an order in which one counter gives exactly these answers,
// whoever held it meanwhile.
func TestChangeIsLinearizable(t *testing.T) {
	f := newFleet(t, 3, "")
	path := filepath.Join(t.TempDir(), "checks.jsonl")
	log, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, enough := context.WithCancel(t.Context())
	audited := make(chan *audit.Report)
	const limit = 100
	go func() {
		r, err := audit.Run(ctx, audit.Config{
			Targets: f.targets, Domain: "linear", Callers: 16, Rate: 400, Duration: time.Minute, Log: log,
			Specs: []audit.Spec{{Keys: 20, Limit: bucket.Limit{
				Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Count: limit, Period: time.Hour,
			}}},
		})
		if err != nil {
			t.Error(err)
		}
		audited <- r
	}()
	pass(time.Second)
	f.grow(1)
	f.restart(f.nodes()[0])
	f.leave(f.nodes()[0])
	pass(2 * time.Second)
	enough()
	r := <-audited
	log.Close()
	t.Logf("%d checks, %d admitted, %d keys at their limit, longest gap %v", r.Checks, r.Admitted, r.AtLimit, r.LongestGap().Length)

	byKey := map[string][]audit.Check{}
	readLog(t, path, func(c audit.Check) { byKey[c.Key] = append(byKey[c.Key], c) })
	for key, checks := range byKey {
		if ok, err := linear.Check(checks, limit, 20*time.Second); err != nil || !ok {
			t.Errorf("the %d checks of %s are linearizable: %v, %v", len(checks), key, ok, err)
		}
	}
}

// allowance returns what asynchronous replication may lose by a loss at that time: of each
// key, what was admitted in 50 ms before it.
func (f *fleet) allowance(found outcome, at time.Time) int64 {
	f.t.Helper()
	var units int64
	readLog(f.t, found.log, func(c audit.Check) {
		before := at.UnixNano() - c.Answered
		// A check that was decided in these 50 ms was answered a little later, or never.
		if c.Decision == "allowed" && before < int64(50*time.Millisecond) && c.Sent < at.UnixNano() {
			units++
		}
	})
	f.t.Logf("what was admitted in the 50 ms before the loss, by all nodes: %d", units)
	return units
}

// readLog calls f for each check of an audit's log.
func readLog(t *testing.T, path string, f func(audit.Check)) {
	t.Helper()
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := audit.ReadLog(file, func(c audit.Check) error {
		f(c)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
}
