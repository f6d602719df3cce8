//go:build linux

package faults

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluicecluster/sluice/bucket"
	"github.com/sluicecluster/sluice/internal/audit"
	"github.com/sluicecluster/sluice/test/faultnet"
	"github.com/sluicecluster/sluice/test/process"
)

// lead is how long nodes are asked before the fault.
const lead = 3 * time.Second

// clientHost is the host of the auditor; nodes have 1 and up.
const clientHost = 254

// cell is one run of a scenario, with n nodes.
type cell struct {
	t            *testing.T
	id           cellID
	prefix       string // of the names of namespaces
	binary       string
	expect       bool   // it knows --bootstrap-expect
	sockets      bool   // it knows --operators-dir
	short        bool   // faults last for half of their time
	logs, dir    string // paths
	net          *faultnet.Switch
	nodes        []*node
	newcomer     *node // that takes the place of another
	audit        *auditor
	ledger       *ledger // nil if there is none
	groups       []group
	faults       map[*faultnet.Fault][]faultnet.Rule // in force
	whole, fault time.Duration                       // how long the cluster took after the fault, and the fault
	found        time.Duration                       // as result.Found
	rng          *rand.Rand                          // of the scenario
	takenOver    int                                 // partitions, in the fault
	two          time.Duration                       // for how long two clusters had quorum at once
	stall        time.Duration                       // the longest time for which this process did not run
	why          []string                            // what failed
}

func (c *cell) namespace(host int) string { return fmt.Sprintf("%sh%d", c.prefix, host) }

func (c *cell) addr(host int) netip.Addr { return netip.AddrFrom4([4]byte{10, 77, 0, byte(host)}) }

func (c *cell) failed(format string, args ...any) {
	c.why = append(c.why, fmt.Sprintf(format, args...))
}

// wait lets time pass: lengths of faults are what is tested.
func (c *cell) wait(d time.Duration) { <-time.After(d) }

// begin puts rules in force.
func (c *cell) begin(rules ...faultnet.Rule) *faultnet.Fault {
	f := c.net.Add(rules...)
	c.faults[f] = rules
	return f
}

// lift ends a fault, which must have met packets by each of its rules.
func (c *cell) lift(f *faultnet.Fault) {
	for i, met := range f.Lift() {
		if met == 0 {
			c.failed("no packet met %+v", c.faults[f][i])
		}
	}
	delete(c.faults, f)
}

// during holds rules in force for a time.
func (c *cell) during(d time.Duration, rules ...faultnet.Rule) {
	f := c.begin(rules...)
	c.wait(d)
	c.lift(f)
}

// waitWhole waits until the nodes are one cluster, and reports whether they are.
func (c *cell) waitWhole(within time.Duration) bool {
	took, err := until(within, func() error { return process.Whole(c.peers()) })
	if err != nil {
		c.failed("not one cluster within %v: %v", within, err)
		return false
	}
	c.whole = took
	return true
}

// until calls f until it returns no error, and returns how long that took; f's error if it still
// has one after the time.
func until(within time.Duration, f func() error) (took time.Duration, err error) {
	began := time.Now()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err = f()
		if took = time.Since(began); err == nil || took > within {
			return took, err
		}
		<-tick.C
	}
}

// targets are those of the nodes that should run.
func (c *cell) targets() (ts []*target) {
	for _, n := range c.nodes {
		for _, t := range c.audit.targets {
			if t.addr == n.addr+":7460" {
				ts = append(ts, t)
			}
		}
	}
	return ts
}

func (c *cell) peers() (list []process.Peer) {
	for _, t := range c.targets() {
		list = append(list, t.Peer)
	}
	return list
}

// addNode makes a node of the host, which is not started.
func (c *cell) addNode(host int, name string) *node {
	n := &node{c: c, host: host, name: name, addr: c.addr(host).String()}
	c.audit.connect(name+"@"+n.addr, n.addr+":7460")
	return n
}

func (c *cell) startAll() {
	for _, n := range c.nodes {
		n.start()
	}
}

// result is a cell's line in the file of results.
type result struct {
	Cell   string `json:"cell"`
	Nodes  int    `json:"nodes"`
	Run    int    `json:"run"`
	Commit string `json:"commit"`
	Seed   uint64 `json:"seed"`
	// Verdict is kept, beyond (the bound), failed (the cluster or the test did not come to an end), or disturbed: one of
	// these two on a machine that was too busy to say so. TestMatrix runs disturbed cells again.
	Verdict string             `json:"verdict"`
	Why     []string           `json:"why,omitempty"`
	Row     string             `json:"row"` // that states the bound
	Groups  map[string]finding `json:"groups,omitempty"`
	// Ledger is about reservations, slots and charges with idempotency keys, by policy and use.
	Ledger map[string]*ledgerFinding `json:"ledger,omitempty"`
	// Async and Sync are the 99th percentiles of calls whose checks were forwarded, in seconds, Answered is the part of checks
	// that owners decided, and TakenOver the number of partitions that were taken over, all in the middle of the fault.
	Async     float64 `json:"forwarded_async,omitempty"`
	Sync      float64 `json:"forwarded_sync,omitempty"`
	Answered  float64 `json:"answered,omitempty"`
	TakenOver int     `json:"taken_over,omitempty"`
	// Gap is the longest time without an owner's decision of a key that is asked all the time, Whole how long the
	// cluster took to agree after the fault, both in seconds.
	Gap      float64 `json:"gap"`
	SyncGap  float64 `json:"gap_sync"` // the same of keys of a sync rule, whose owner waits for a replica
	GapBound float64 `json:"gap_bound,omitempty"`
	Whole    float64 `json:"whole"`
	// Found is how long it took after the fault until no partition was lost and ample keys were
	// admitted, in seconds.
	Found float64 `json:"found,omitempty"`
	// Clusters is for how many seconds two clusters had quorum at once.
	Clusters float64 `json:"two_clusters,omitempty"`
	Errors   int64   `json:"errors"` // checks without a decision
	Fresh    string  `json:"fresh"`  // what an audit with fresh keys found afterwards
	// Stall is the longest time for which this process was kept waiting for a processor. Nodes then were too.
	Stall float64 `json:"stall"`
	TCP   string  `json:"tcp,omitempty"` // the congestion control of the nodes
}

// TestCell runs the cell that FAULT_CELL names, in a process that TestMatrix starts.
func TestCell(t *testing.T) {
	id, ok := parseCellID(os.Getenv("FAULT_CELL"))
	if !ok {
		t.Skip("TestMatrix runs this, once for each cell")
	}
	s := scenarioOf(id.scenario)
	c := &cell{
		t: t, id: id, prefix: os.Getenv("FAULT_PREFIX"), binary: os.Getenv("FAULT_BINARY"), logs: os.Getenv("FAULT_LOGS"),
		faults: map[*faultnet.Fault][]faultnet.Rule{}, fault: s.length, short: os.Getenv("FAULT_SHORT") != "",
	}
	if c.short {
		c.fault /= 2
	}
	help, err := exec.Command(c.binary, "serve", "--help").Output()
	if err != nil {
		t.Fatal(err)
	}
	c.expect = strings.Contains(string(help), "--bootstrap-expect")
	c.sockets = strings.Contains(string(help), "--operators-dir")
	c.net = faultnet.New(id.seed())
	c.rng = rand.New(rand.NewPCG(id.seed(), 0))
	t.Logf("seed %d", id.seed())
	t.Cleanup(c.net.Close)
	for _, host := range c.hosts(s) {
		if err := c.net.AddHost(c.namespace(host), netip.PrefixFrom(c.addr(host), 24)); err != nil {
			t.Fatal(err)
		}
	}
	c.groups = groups(c.fault, id.nodes, s.ledger)
	rules := ruleFile(c.groups)
	if s.ledger {
		c.ledger = newLedger(c)
		rules += c.ledger.rules()
	}
	c.dir = t.TempDir()
	for name, text := range map[string]string{"rules.yaml": rules, "secret": strings.Repeat("s", 32)} {
		if err := os.WriteFile(filepath.Join(c.dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c.audit = newAuditor(c, c.groups)
	var join []string
	for host := 1; host <= id.nodes; host++ {
		join = append(join, c.addr(host).String())
	}
	for host := 1; host <= id.nodes; host++ {
		n := c.addNode(host, fmt.Sprintf("n%d", host))
		n.args = append(n.args, "--join", strings.Join(join, ","))
		n.args = append(n.args, c.bootstrap(id.nodes/2+1)...)
		c.nodes = append(c.nodes, n)
	}
	if s.prepare != nil {
		s.prepare(c)
	}
	ended := c.run(s)
	r := c.judge(s, ended)
	out, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", out)
	if err := os.WriteFile(os.Getenv("FAULT_RESULT"), out, 0o644); err != nil {
		t.Fatal(err)
	}
	if r.Verdict != kept {
		t.Errorf("%v: %s: %s", id, r.Verdict, strings.Join(r.Why, "; "))
	}
}

// bootstrap are the flags of a node that founds a cluster when n nodes see each other.
func (c *cell) bootstrap(n int) []string {
	if !c.expect {
		return nil
	}
	return []string{"--bootstrap-expect", fmt.Sprint(n)}
}

// run plays the scenario and returns when the fault was over and the cluster whole again.
func (c *cell) run(s *scenario) (ended time.Time) {
	if s.cold {
		for _, t := range c.audit.targets {
			c.audit.ask(t, spent, unknown, spending, ample)
		}
	} else {
		c.startAll()
		if !c.waitWhole(30 * time.Second) {
			c.t.Fatalf("before the fault: %v", c.why)
		}
		all := c.audit.targets
		c.audit.targets = c.targets() // not those who come later
		if err := c.audit.prespend(); err != nil {
			c.t.Fatal(err)
		}
		c.audit.targets = all
		for _, t := range all {
			c.audit.ask(t, spent, spending, ample)
		}
	}
	for _, t := range c.audit.targets {
		c.audit.greet(t, s.cold)
	}
	watch := c.audit.watchVoters()
	if c.ledger != nil {
		c.ledger.begin(c.audit.targets)
	}
	c.audit.running.Go(c.watchStalls)
	if !s.cold {
		c.wait(lead)
		for _, t := range c.audit.targets {
			c.audit.ask(t, unknown)
		}
	}
	b := s.bound(c.id.nodes)
	if b.answered > 0 {
		c.takenOver -= c.sum("sluice_takeovers_total")
	}
	began := time.Now()
	c.audit.fault.Store(began.UnixNano())
	s.run(c)
	for f := range c.faults {
		c.lift(f)
	}
	c.fault = time.Since(began)
	if b.answered > 0 {
		c.takenOver += c.sum("sluice_takeovers_total")
	}
	healed := time.Now()
	c.waitWhole(time.Minute)
	if b.found > 0 {
		_, err := until(b.found-time.Since(healed), c.lost)
		if c.found = time.Since(healed); err != nil {
			c.failed("%v after the fault: %v", c.found, err)
		}
	}
	if c.ledger != nil {
		c.ledger.end()
	}
	c.wait(time.Second) // what waited is answered
	ended = time.Now()
	c.audit.end()
	var which string
	if c.two, which = watch.end(); c.two > 0 {
		c.t.Logf("two clusters had quorum at once for %v: %s", c.two, which)
	}
	return ended
}

// tcp returns the congestion control of the nodes' connections.
func (c *cell) tcp() (name string) {
	err := faultnet.In(c.namespace(1), func() error {
		text, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
		name = strings.TrimSpace(string(text))
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	return name
}

// judge holds the run to the scenario's bound.
func (c *cell) judge(s *scenario, ended time.Time) result {
	c.audit.tell()
	b := s.bound(c.id.nodes)
	b.tcp = c.tcp()
	r := result{
		Cell: s.name, Nodes: c.id.nodes, Run: c.id.run, Commit: os.Getenv("FAULT_COMMIT"), Seed: c.id.seed(), Row: b.row,
		Verdict: kept, Groups: map[string]finding{}, GapBound: b.gap.Seconds(), Whole: seconds(c.whole), Clusters: seconds(c.two),
		Errors: c.audit.errors.Load(), Found: seconds(c.found), Fresh: c.fresh(), Stall: seconds(c.stall), TCP: b.tcp,
	}
	if c.ledger != nil {
		r.Ledger = c.ledger.judge(b)
	}
	for _, name := range slices.Sorted(maps.Keys(r.Ledger)) {
		if f := r.Ledger[name]; f.Beyond > 0 {
			r.Verdict = beyond
			r.Why = append(r.Why, fmt.Sprintf("%s: %v", name, f))
		}
	}
	owners, checks := 0, 0
	for _, a := range c.audit.accounts {
		p99 := a.during.p99()
		if p99 > b.forwarded(a.group) && b.rtt > 0 {
			r.Verdict = beyond
			r.Why = append(r.Why, fmt.Sprintf("%s: p99 of forwarded checks %v, bound %v", a.name(), p99.Round(time.Millisecond), b.forwarded(a.group)))
		}
		if a.policy == "sync" || a.policy == "closed" {
			r.Sync = max(r.Sync, seconds(p99))
		} else {
			r.Async = max(r.Async, seconds(p99))
		}
		owners, checks = owners+a.during.owners, checks+a.during.owners+a.during.others
		if a.policy == "probe" {
			r.Gap = seconds(a.longestGap(ended))
			continue
		}
		f := a.judge(b, c.id.nodes)
		if a.state == spending {
			f.Gap = seconds(a.longestGap(ended))
		}
		if a.policy == "sync" && a.state == spending {
			r.SyncGap = f.Gap
		}
		r.Groups[a.name()] = f
		if f.Beyond > 0 {
			r.Verdict = beyond
			r.Why = append(r.Why, fmt.Sprintf("%s +%d (%d/%d, owners +%d, bound %d a key)", a.name(), f.Excess, f.Most, f.Limit, f.Owners, f.Bound))
		}
	}
	if b.gap > 0 && r.Gap > b.gap.Seconds() {
		r.Verdict = beyond
		r.Why = append(r.Why, fmt.Sprintf("a key had no owner for %.1fs, bound %.1fs", r.Gap, b.gap.Seconds()))
	}
	if checks > 0 {
		r.Answered = math.Round(float64(owners)/float64(checks)*1000) / 1000
	}
	if r.TakenOver = c.takenOver; r.TakenOver > 0 || r.Answered < b.answered {
		r.Verdict = beyond
		r.Why = append(r.Why, fmt.Sprintf("owners answered %.1f %% of %d checks, bound %.1f %%; %d partitions were taken over",
			100*r.Answered, checks, 100*b.answered, c.takenOver))
	}
	if c.two > 0 {
		r.Verdict = beyond
		r.Why = append(r.Why, fmt.Sprintf("two clusters had quorum at once for %.2fs", r.Clusters))
	}
	if r.Fresh != "exact" {
		c.failed("fresh keys afterwards: %s", r.Fresh)
	}
	if len(c.why) > 0 {
		r.Verdict = failed
		r.Why = append(r.Why, c.why...)
	}
	if r.Verdict != kept && c.stall > maxStall {
		r.Why = append([]string{fmt.Sprintf("%s, on a machine that did not run this test for %.2fs", r.Verdict, r.Stall)}, r.Why...)
		r.Verdict = disturbed
	}
	return r
}

// maxStall is how long a machine may keep processes waiting, at most, for the run to say something about a bound
// that it breaks: nodes lose quorum after 600 ms without an answer.
const maxStall = 200 * time.Millisecond

// watchStalls measures how late this process runs when it should.
func (c *cell) watchStalls() {
	const every = 5 * time.Millisecond
	for c.audit.ctx.Err() == nil {
		asked := time.Now()
		<-time.After(every)
		c.stall = max(c.stall, time.Since(asked)-every)
	}
}

func seconds(d time.Duration) float64 { return math.Round(d.Seconds()*100) / 100 }

// fresh audits the limits of new keys after the fault: they must be exact.
func (c *cell) fresh() string {
	r, err := audit.Run(context.Background(), audit.Config{
		Targets: func() (addrs []string) {
			for _, t := range c.targets() {
				addrs = append(addrs, t.addr)
			}
			return addrs
		},
		Domain: "fresh", DialOptions: c.dialOptions(), Callers: 6, Batches: []int{10}, Rate: 2000, Duration: time.Second,
		Specs:   []audit.Spec{{Keys: 60, Limit: bucket.Limit{Algorithm: bucket.FixedWindow, Align: bucket.AlignFirstHit, Count: 20, Period: time.Hour}}},
		Exhaust: audit.Exhaust{Denials: 1, Within: 15 * time.Second}, Seed: c.id.seed(),
	})
	if err != nil {
		return err.Error()
	}
	if r.Over.Units+r.Under.Units+r.FinalErrors+int64(r.Unexhausted) > 0 {
		return fmt.Sprintf("%d over, %d under, %d errors, %d keys not at their limit", r.Over.Units, r.Under.Units, r.FinalErrors, r.Unexhausted)
	}
	return "exact"
}
