//go:build linux

package faults

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/sluicecluster/sluice/test/faultnet"
)

// scenario is a fault, and what it may cost. A name with a length is that of the fault review's table.
type scenario struct {
	name  string
	sizes []int // of the cluster
	runs  int   // 0: twice
	// short scenarios are those of continuous integration.
	short bool
	// length is about how long the fault lasts; keys that are being spent are at their limit in its middle.
	length time.Duration
	// ledger: callers reserve, hold slots and charge with idempotency keys.
	ledger bool
	// cold: run starts the nodes itself, and no key is spent before.
	cold bool
	// extra are hosts on which run starts more nodes.
	extra []int
	// prepare changes how nodes are started; run makes the fault and ends it.
	prepare, run func(c *cell)
	bound        func(n int) bound
}

// Situations of docs/internals/consistency.md.
const (
	rowNothing  = "nothing happens"
	rowPlanned  = "a node joins, leaves, is restarted in order"
	rowCrash    = "the owner crashes"
	rowPause    = "a process is paused and goes on"
	rowCut      = "the network is cut"
	rowStopAll  = "all nodes stopped in order and started, with --data-dir"
	rowCrashAll = "all nodes crash, with --data-dir"
	rowDamaged  = "the same, and snapshots are damaged"
	rowLostBoth = "the owner and its copy crash before there is another copy"
	rowLostTwo  = "two nodes are lost at once, with --replicas 2"
	rowFounding = "nodes start: at most one voter set that decides"
	rowSlow     = "a slow or lossy network"
)

// no returns the bound of scenarios that may cost nothing.
func no(row string) func(int) bound { return func(int) bound { return bound{row: row} } }

// slow is the bound of a network that loses nothing.
func slow(rtt time.Duration) func(int) bound {
	return func(int) bound { return bound{row: rowSlow, rtt: rtt} }
}

// slowAtOnce is slow for round trips that have become so much longer at once that shares answer in the first seconds: see the row.
func slowAtOnce(rtt time.Duration) func(int) bound {
	return func(n int) bound { return bound{row: rowSlow, rtt: rtt, nodes: n} }
}

// minority is the bound of cuts with so many nodes on the smaller side, each of which may lose its owners' last 50 ms.
func minority(nodes, losses int) func(int) bound {
	return func(int) bound { return bound{row: rowCut, nodes: nodes, losses: losses} }
}

// lostBoth is the bound of cuts with owners and their replicas on the smaller side, where so many
// nodes may be without an owner.
func lostBoth(nodes int) func(int) bound {
	return func(int) bound {
		return bound{
			row: rowCut + "; " + rowLostBoth, nodes: nodes, losses: 1, fresh: true, found: 10 * s,
		}
	}
}

// everybody is the bound where any node may be without an owner.
func everybody(row string, losses int) func(int) bound {
	return func(n int) bound { return bound{row: row, nodes: n, losses: losses} }
}

// crashes is the bound of so many lost processes where a majority stays: no node answers by itself.
func crashes(row string, losses int) func(int) bound {
	return func(int) bound { return bound{row: row, losses: losses} }
}

var three, both, five = []int{3}, []int{3, 5}, []int{5}

const ms, s = time.Millisecond, time.Second

func scenarioOf(name string) *scenario {
	i := slices.IndexFunc(scenarios, func(sc scenario) bool { return sc.name == name })
	return &scenarios[i]
}

var scenarios = slices.Concat(
	slowScenarios, cutScenarios, portScenarios, processScenarios, startScenarios,
	withLedger(processScenarios, "kill-1", "restart-each", "join-leave", "stop-all"),
	withLedger(cutScenarios, "cut-1", "flap-one", "flap-each"),
)

// withLedger returns those of the names, with three nodes and a ledger.
func withLedger(of []scenario, names ...string) (with []scenario) {
	for _, sc := range of {
		if slices.Contains(names, sc.name) {
			sc.name, sc.sizes, sc.runs = "ledger-"+sc.name, three, 3
			sc.short, sc.ledger = false, true
			with = append(with, sc)
		}
	}
	return with
}

var slowScenarios = []scenario{
	{name: "loss-1", sizes: three, length: 10 * s, run: everywhere(faultnet.Rule{Loss: 0.01}), bound: no(rowSlow)},
	{name: "loss-5", sizes: three, length: 10 * s, run: everywhere(faultnet.Rule{Loss: 0.05}), bound: everybody(rowSlow, 0)},
	{name: "loss-20", sizes: both, length: 15 * s, run: everywhere(faultnet.Rule{Loss: 0.2}), bound: everybody(rowSlow, 1)},
	{name: "delay-10", sizes: three, length: 30 * s, run: everywhere(faultnet.Rule{Delay: 10 * ms}), bound: slow(20 * ms)},
	{name: "delay-25", sizes: three, length: 30 * s, run: everywhere(faultnet.Rule{Delay: 25 * ms}), bound: slow(50 * ms)},
	{name: "delay-50", sizes: three, short: true, length: 30 * s, run: everywhere(faultnet.Rule{Delay: 50 * ms}), bound: slow(100 * ms)},
	{name: "delay-100", sizes: three, length: 30 * s, run: everywhere(faultnet.Rule{Delay: 100 * ms}), bound: slowAtOnce(200 * ms)},
	{name: "delay-200", sizes: both, length: 30 * s, run: everywhere(faultnet.Rule{Delay: 200 * ms}), bound: slowAtOnce(400 * ms)},
	{
		name: "loss-10-ten-minutes", sizes: three, runs: 1, length: 10 * time.Minute,
		run: everywhere(faultnet.Rule{Loss: 0.1, Jitter: 5 * ms}), bound: func(n int) bound { return bound{row: rowSlow, nodes: n, answered: 0.95} },
	},
	{
		name: "delay-200-kill", sizes: three, length: 20 * s, run: func(c *cell) {
			f := c.begin(c.between(faultnet.Rule{Delay: 200 * ms})...)
			c.wait(5 * s)
			c.nodes[0].kill()
			c.wait(10 * s)
			c.nodes[0].start()
			c.wait(5 * s)
			c.lift(f)
		}, bound: func(n int) bound { return bound{row: rowCrash + ", on " + rowSlow, losses: 1, nodes: n, gap: 6 * s} }, // nodes as slowAtOnce
	},
	{
		name: "loss-5-delay-50-100", sizes: both, length: 15 * s,
		run: everywhere(faultnet.Rule{Loss: 0.05, Delay: 50 * ms, Jitter: 50 * ms}), bound: everybody(rowSlow, 0),
	},
	{name: "duplicates", sizes: three, length: 10 * s, run: everywhere(faultnet.Rule{Duplicate: 0.5, Jitter: 5 * ms}), bound: no(rowNothing)},
	{name: "1-mbit", sizes: both, length: 10 * s, run: func(c *cell) {
		n1 := c.addr(1)
		c.during(c.fault, faultnet.Rule{From: n1, Bandwidth: 1e6}, faultnet.Rule{To: n1, Bandwidth: 1e6})
	}, bound: everybody(rowSlow, 1)},
}

var cutScenarios = []scenario{
	{name: "cut-1", sizes: both, short: true, length: 10 * s, run: func(c *cell) { c.during(c.fault, c.alone(1)...) }, bound: minority(1, 1)},
	{name: "cut-2", sizes: five, length: 10 * s, run: func(c *cell) {
		c.during(c.fault, c.cutTwo()...)
	}, bound: lostBoth(2)},
	byLinks("cut-2-by-links", false, false),
	byLinks("cut-2-by-links-in-any-order", true, false),
	byLinks("cut-2-by-links-healed-so", true, true),
	{name: "n1-not-heard", sizes: three, short: true, length: 10 * s, run: func(c *cell) { c.during(c.fault, c.oneWay(1, 0)...) }, bound: minority(1, 1)},
	{name: "n1-hears-not", sizes: three, length: 10 * s, run: func(c *cell) { c.during(c.fault, c.oneWay(0, 1)...) }, bound: minority(1, 1)},
	{name: "only-n1-to-n2", sizes: both, length: 10 * s, run: func(c *cell) {
		c.during(c.fault, faultnet.Rule{From: c.addr(1), To: c.addr(2), Loss: 1})
	}, bound: minority(1, 1)},
	{name: "link", sizes: both, short: true, length: 10 * s, run: func(c *cell) { c.during(c.fault, c.link(1, 2)) }, bound: minority(1, 1)},
	{
		// n1 owns partitions and sees n2 alone; the others are a majority that can see that.
		name: "bridge", sizes: []int{4, 5}, length: 30 * s, run: func(c *cell) {
			c.during(c.fault, c.apart(func(i, j int) bool { return i == 1 && j > 2 })...)
		}, bound: func(n int) bound { return bound{row: rowCut, nodes: n, losses: 1, gap: 2 * s} },
	},
	{name: "ring", sizes: []int{4}, length: 10 * s, run: func(c *cell) {
		c.during(c.fault, c.link(1, 3), c.link(2, 4))
	}, bound: minority(1, 1)},
	{name: "flap-one", sizes: both, length: 18 * s, run: flap(6, 1500*ms, 1500*ms, func(int) int { return 1 }), bound: minority(1, 6)},
	{name: "flap-each", sizes: both, length: 18 * s, run: flap(6, 1500*ms, 1500*ms, func(i int) int { return i }), bound: everybody(rowCut, 6)},
	{name: "each-once", sizes: three, length: 21 * s, run: flap(3, 5*s, 2*s, func(i int) int { return i }), bound: everybody(rowCut, 3)},
	{name: "all-apart", sizes: both, length: 10 * s, run: func(c *cell) {
		c.during(c.fault, c.apart(func(i, j int) bool { return true })...)
	}, bound: everybody(rowCut, 1)},
}

var portScenarios = []scenario{
	{name: "7460-of-n1", sizes: three, length: 8 * s, run: func(c *cell) {
		c.during(c.fault, faultnet.Rule{To: c.addr(1), Both: true, Port: 7460, Loss: 1})
	}, bound: no(rowNothing)},
	{name: "7462-of-n1", sizes: both, length: 10 * s, run: func(c *cell) { c.during(c.fault, port(7462, c.alone(1))...) }, bound: minority(1, 1)},
	{name: "7462-n1-n2", sizes: three, length: 10 * s, run: func(c *cell) {
		c.during(c.fault, port(7462, []faultnet.Rule{c.link(1, 2)})...)
	}, bound: minority(1, 1)},
	{name: "7462-everywhere", sizes: three, length: 10 * s, run: everywhere(faultnet.Rule{Port: 7462, Loss: 1}), bound: everybody(rowCut, 1)},
	{name: "7462-at-start", sizes: three, length: 2 * s, cold: true, run: func(c *cell) {
		f := c.begin(c.between(faultnet.Rule{Port: 7462, Loss: 1})...)
		c.startAll()
		c.wait(12 * s)
		c.lift(f)
		c.spendAfter()
	}, bound: no(rowFounding)},
	{name: "7463-of-n1", sizes: both, short: true, length: 10 * s, run: func(c *cell) { c.during(c.fault, port(7463, c.alone(1))...) }, bound: minority(1, 1)},
	{name: "7463-everywhere", sizes: both, length: 10 * s, run: everywhere(faultnet.Rule{Port: 7463, Loss: 1}), bound: everybody(rowCut, 1)},
	{name: "7463-of-n1-at-start", sizes: three, length: 2 * s, cold: true, run: func(c *cell) {
		f := c.begin(port(7463, c.alone(1))...)
		c.startAll()
		c.wait(12 * s)
		c.lift(f)
		c.spendAfter()
	}, bound: no(rowFounding)},
	{name: "udp-everywhere", sizes: three, length: 10 * s, run: everywhere(faultnet.Rule{Protocol: faultnet.UDP, Loss: 1}), bound: no(rowNothing)},
	{name: "udp-of-n1", sizes: three, length: 10 * s, run: func(c *cell) {
		rules := c.alone(1)
		for i := range rules {
			rules[i].Protocol = faultnet.UDP
		}
		c.during(c.fault, rules...)
	}, bound: no(rowNothing)},
}

var processScenarios = []scenario{
	{name: "pause-0.5", sizes: three, length: 12 * s, run: pauses(5, 500*ms), bound: no(rowPause)},
	{name: "pause-0.65", sizes: three, length: 13 * s, run: pauses(5, 650*ms), bound: crashes(rowPause, 5)},
	{name: "pause-0.8", sizes: three, short: true, length: 14 * s, run: pauses(5, 800*ms), bound: crashes(rowPause, 5)},
	{name: "pause-2", sizes: three, length: 12 * s, run: pauses(3, 2*s), bound: crashes(rowPause, 3)},
	{name: "pause-10", sizes: three, length: 12 * s, run: pauses(1, 10*s), bound: crashes(rowPause, 1)},
	{name: "pause-120", sizes: three, runs: 1, length: 122 * s, run: pauses(1, 120*s), bound: crashes(rowPause, 1)},
	{name: "pause-two-of-three", sizes: three, length: 24 * s, run: func(c *cell) {
		for _, d := range []time.Duration{650 * ms, 800 * ms, 2 * s, 10 * s} {
			c.pause(d, c.nodes[:2]...)
			c.wait(2500 * ms)
		}
	}, bound: func(int) bound { return bound{row: rowPause, nodes: 1, losses: 4} }},
	{name: "pause-all", sizes: three, length: 8 * s, run: func(c *cell) {
		for _, d := range []time.Duration{800 * ms, 2 * s} {
			c.pause(d, c.nodes...)
			c.wait(2500 * ms)
		}
	}, bound: crashes(rowPause, 2)},
	{name: "kill-0.1", sizes: three, short: true, length: 10 * s, run: kills(3, 100*ms, 3*s), bound: crashes(rowCrash, 3)},
	{name: "kill-1", sizes: three, length: 12 * s, run: kills(3, s, 3*s), bound: crashes(rowCrash, 3)},
	{name: "kill-8", sizes: three, length: 10 * s, run: kills(1, 8*s, 2*s), bound: crashes(rowCrash, 1)},
	{name: "kill-each-of-five", sizes: five, length: 26 * s, run: kills(5, s, 4*s), bound: crashes(rowCrash, 5)},
	{name: "kill-two-of-five", sizes: five, length: 20 * s, prepare: func(c *cell) {
		for _, n := range c.nodes {
			n.args = append(n.args, "--replicas", "2")
		}
	}, run: func(c *cell) {
		for _, two := range [][]*node{c.nodes[:2], c.nodes[2:4]} {
			for _, n := range two {
				n.signal(syscall.SIGKILL)
			}
			for _, n := range two {
				n.kill()
			}
			c.wait(3 * s)
			for _, n := range two {
				n.start()
			}
			c.waitWhole(30 * s)
			c.wait(s)
		}
	}, bound: crashes(rowLostTwo, 2)},
	{name: "restart-each", sizes: three, runs: 10, short: true, length: 20 * s, run: restarts(2), bound: no(rowPlanned)},
	{
		name: "join-leave", sizes: three, length: 16 * s, extra: []int{101},
		prepare: func(c *cell) { c.newcomer = c.addNode(101, "n4") },
		run: func(c *cell) {
			c.newcomer.args = c.nodes[0].args
			members := c.nodes
			for range 2 {
				c.newcomer.start()
				c.nodes = append(slices.Clip(members), c.newcomer)
				joined := c.waitWhole(30 * s)
				c.wait(2 * s)
				c.newcomer.stop()
				c.nodes = members
				if !c.waitWhole(30*s) || !joined {
					return
				}
				c.wait(2 * s)
			}
		},
		bound: no(rowPlanned),
	},
	{name: "restart-each-of-five", sizes: five, length: 20 * s, run: restarts(1), bound: no(rowPlanned)},
	{
		name: "stop-all", sizes: three, short: true, length: 8 * s,
		prepare: withData, run: func(c *cell) { c.stopAll(func() {}) }, bound: no(rowStopAll),
	},
	damaged(1), damaged(2), damaged(3),
	{name: "kill-all", sizes: three, length: 8 * s, prepare: withData, run: func(c *cell) {
		for _, n := range c.nodes {
			n.signal(syscall.SIGKILL)
		}
		for _, n := range c.nodes {
			n.kill()
		}
		c.startAll()
		c.wait(4 * s)
	}, bound: func(int) bound { return bound{row: rowCrashAll, snapshot: true} }},
	{name: "descriptors", sizes: three, length: 12 * s, prepare: func(c *cell) { c.nodes[0].files = 256 }, run: func(c *cell) {
		leave := c.idleClients(500, c.nodes[0])
		c.wait(2 * s)
		c.nodes[1].stop()
		c.nodes[1].start()
		c.wait(8 * s)
		leave()
	}, bound: no(rowPlanned)},
}

var startScenarios = []scenario{
	{
		name: "names-late", sizes: three, runs: 10, cold: true, length: 2 * s,
		prepare: byName(func(c *cell, host int, after time.Duration) []int {
			if after < time.Duration(host)*6*s { // the first after --join-timeout
				return nil
			}
			return []int{1, 2, 3}
		}),
		run: coldStart(14 * s), bound: no(rowFounding),
	},
	{
		name: "names-wrong", sizes: three, runs: 10, cold: true, length: 2 * s,
		prepare: func(c *cell) {
			c.serveOther(clientHost)
			byName(func(c *cell, host int, after time.Duration) []int {
				if after < 30*s {
					return []int{101, clientHost} // nobody has the first, and the second has another service
				}
				return []int{1, 2, 3}
			})(c)
		},
		run: coldStart(30 * s), bound: no(rowFounding),
	},
	{
		name: "names-old", sizes: three, runs: 10, cold: true, length: 2 * s,
		prepare: byName(func(c *cell, host int, after time.Duration) []int {
			if after < 30*s {
				return []int{101, 102, host} // nobody has the first two, and the third is the node itself
			}
			return []int{1, 2, 3}
		}),
		run: coldStart(30 * s), bound: no(rowFounding),
	},
	{name: "seed-restarted", sizes: three, length: 14 * s, prepare: func(c *cell) {
		for i, n := range c.nodes {
			n.args = []string{"--join", c.addr(1).String()}
			if i == 0 {
				n.args = c.bootstrap(1)
			}
		}
	}, run: func(c *cell) {
		seed := c.nodes[0]
		seed.stop()
		seed.start()
		c.wait(5 * s)
		seed.kill()
		seed.start()
		c.wait(5 * s)
	}, bound: crashes(rowFounding, 1)},
	{name: "restart-in-cut", sizes: both, length: 14 * s, run: func(c *cell) {
		f := c.begin(c.alone(1)...)
		c.wait(3 * s)
		c.nodes[0].kill()
		c.nodes[0].start()
		c.wait(10 * s)
		c.lift(f)
	}, bound: minority(1, 1)},
	{name: "start-in-cut", sizes: three, length: 12 * s, run: func(c *cell) {
		// No time for a share between the cut and the restart: what the new process admits is all excess.
		f := c.begin(c.alone(1)...)
		c.nodes[0].kill()
		c.nodes[0].start()
		c.wait(10 * s)
		c.lift(f)
	}, bound: crashes(rowCut, 1)},
	overlap(0), overlap(50 * ms), overlap(500 * ms),
}

// stopAll stops all nodes and starts them.
func (c *cell) stopAll(meanwhile func()) {
	for _, n := range c.nodes {
		n.signal(syscall.SIGTERM)
	}
	for _, n := range c.nodes {
		n.ended()
	}
	meanwhile()
	c.startAll()
	c.wait(4 * s)
}

// damaged stops all nodes, damages the snapshots of the first ones, and starts all.
func damaged(number int) scenario {
	damage := func(c *cell) {
		for _, n := range c.nodes[:number] {
			files, _ := filepath.Glob(filepath.Join(n.data, "*.snapshot"))
			if len(files) != 1 {
				c.t.Fatalf("%s has snapshots %v", n.name, files)
			}
			if err := os.WriteFile(files[0], []byte("garbage"), 0o600); err != nil {
				c.t.Fatal(err)
			}
		}
	}
	return scenario{
		name: fmt.Sprintf("snapshots-damaged-%d", number), sizes: three, runs: 3, length: 8 * s,
		prepare: withData, run: func(c *cell) { c.stopAll(func() { damage(c) }) },
		bound: func(int) bound { return bound{row: rowDamaged, fresh: number > 1} },
	}
}

// overlap deletes n1 with force: another process of its name starts elsewhere while it hands over.
func overlap(after time.Duration) scenario {
	const newHost = 101
	return scenario{
		name: fmt.Sprintf("overlap-%d", after/ms), sizes: three, short: after == 50*ms, length: 10 * s, extra: []int{newHost},
		prepare: func(c *cell) { c.newcomer = c.addNode(newHost, "n1") },
		run: func(c *cell) {
			old := c.nodes[0]
			c.newcomer.args = old.args
			old.signal(syscall.SIGTERM)
			c.wait(after)
			c.newcomer.start()
			c.nodes[0] = c.newcomer
			old.ended()
			if log, err := os.ReadFile(old.log()); err != nil || !strings.Contains(string(log), `msg="handed over"`) {
				c.failed("the first process did not hand over all: %v", err)
			}
			if c.waitWhole(15 * s) { // it joined at its first start
				c.wait(3 * s)
			}
		},
		bound: no(rowPlanned),
	}
}

// hosts are those of a cell.
func (c *cell) hosts(sc *scenario) []int {
	hosts := append([]int{clientHost}, sc.extra...)
	for host := 1; host <= c.id.nodes; host++ {
		hosts = append(hosts, host)
	}
	return hosts
}

// apart cuts the links of the pairs, i below j.
func (c *cell) apart(cut func(i, j int) bool) (rules []faultnet.Rule) {
	for j := 2; j <= c.id.nodes; j++ {
		for i := 1; i < j; i++ {
			if cut(i, j) {
				rules = append(rules, c.link(i, j))
			}
		}
	}
	return rules
}

// cutTwo cuts n1 and n2 off from all others.
func (c *cell) cutTwo() []faultnet.Rule {
	return c.apart(func(i, j int) bool { return i <= 2 && j > 2 })
}

// byLinks cuts n1 and n2 of five off, one link each second, or in any order with up to two seconds
// between them. The links heal in the same way, or at once.
func byLinks(name string, anyOrder, healedSo bool) scenario {
	return scenario{name: name, sizes: five, runs: 10, length: 16 * s, run: func(c *cell) {
		pause := func() {
			d := s
			if anyOrder {
				d = time.Duration(c.rng.Int64N(int64(2 * s)))
			}
			c.wait(d)
		}
		links := []faultnet.Rule{
			c.link(1, 4), c.link(2, 3), c.link(1, 5), c.link(2, 4), c.link(1, 3), c.link(2, 5),
		}
		shuffle := func() {
			if anyOrder {
				c.rng.Shuffle(6, func(i, j int) { links[i], links[j] = links[j], links[i] })
			}
		}
		began := time.Now()
		tell := func(what string, r faultnet.Rule) {
			c.t.Logf("%.2fs: link of %v and %v %s", time.Since(began).Seconds(), r.From, r.To, what)
		}
		shuffle()
		cut := map[faultnet.Rule]*faultnet.Fault{}
		for _, r := range links {
			cut[r] = c.begin(r)
			tell("cut", r)
			pause()
		}
		c.wait(c.fault - time.Since(began))
		if !healedSo {
			return
		}
		shuffle()
		for _, r := range links {
			c.lift(cut[r])
			tell("healed", r)
			pause()
		}
	}, bound: lostBoth(5)}
}

// alone cuts a node off from all others.
func (c *cell) alone(host int) []faultnet.Rule {
	return c.apart(func(i, j int) bool { return i == host || j == host })
}

// link cuts one link.
func (c *cell) link(i, j int) faultnet.Rule {
	return faultnet.Rule{From: c.addr(i), To: c.addr(j), Both: true, Loss: 1}
}

// oneWay loses what goes from a node to another, 0 being any.
func (c *cell) oneWay(from, to int) (rules []faultnet.Rule) {
	for i := 1; i <= c.id.nodes; i++ {
		for j := 1; j <= c.id.nodes; j++ {
			if i != j && (from == 0 || from == i) && (to == 0 || to == j) {
				rules = append(rules, faultnet.Rule{From: c.addr(i), To: c.addr(j), Loss: 1})
			}
		}
	}
	return rules
}

// between makes the rule one for each link between nodes. The client is not touched.
func (c *cell) between(rule faultnet.Rule) []faultnet.Rule {
	rules := c.apart(func(i, j int) bool { return true })
	for i, r := range rules {
		rules[i] = rule
		rules[i].From, rules[i].To, rules[i].Both = r.From, r.To, true
	}
	return rules
}

func everywhere(rule faultnet.Rule) func(*cell) {
	return func(c *cell) { c.during(c.fault, c.between(rule)...) }
}

// port narrows rules to a port.
func port(p uint16, rules []faultnet.Rule) []faultnet.Rule {
	for i := range rules {
		rules[i].Port = p
	}
	return rules
}

// flap cuts off a node and lets it come back, again and again; which says the host, of the turn's.
func flap(times int, cut, healed time.Duration, which func(turn int) int) func(*cell) {
	return func(c *cell) {
		for i := range times {
			c.during(cut, c.alone(which(i%c.id.nodes+1))...)
			c.wait(healed)
		}
	}
}

// pauses stops n1 again and again.
func pauses(times int, d time.Duration) func(*cell) {
	return func(c *cell) {
		if c.short {
			times = 2
		}
		for range times {
			c.pause(d, c.nodes[0])
			c.wait(2 * s)
		}
	}
}

// kills kills one node after the other and starts it again.
func kills(times int, down, between time.Duration) func(*cell) {
	return func(c *cell) {
		if c.short {
			times = 1
		}
		for i := range times {
			n := c.nodes[i%len(c.nodes)]
			n.kill()
			c.wait(down)
			n.start()
			c.wait(between)
		}
	}
}

// restarts stops and starts one node after the other, each when all are one cluster again.
func restarts(rounds int) func(*cell) {
	return func(c *cell) {
		if c.short {
			rounds = 1
		}
		for range rounds {
			for _, n := range c.nodes {
				n.stop()
				n.start()
				if !c.waitWhole(30 * s) {
					return
				}
			}
		}
	}
}

// withData gives nodes directories, with a snapshot taken in the lead.
func withData(c *cell) {
	for _, n := range c.nodes {
		n.data = filepath.Join(c.t.TempDir(), n.name)
		n.args = append(n.args, "--data-dir", n.data)
		n.args = append(n.args, "--snapshot-interval", snapshotInterval.String())
	}
}

// byName has nodes join a name, which resolves to hosts as answer says.
func byName(answer func(c *cell, host int, after time.Duration) []int) func(*cell) {
	return func(c *cell) {
		for _, n := range c.nodes {
			n.args = append([]string{"--join", seeds}, c.bootstrap(len(c.nodes)/2+1)...)
		}
		c.serveNames(func(node netip.Addr, after time.Duration) (addrs []netip.Addr) {
			for _, host := range answer(c, int(node.As4()[3]), after) {
				addrs = append(addrs, c.addr(host))
			}
			return addrs
		})
	}
}

// coldStart starts all nodes, lets the fault last, and spends the keys when they are one cluster.
func coldStart(fault time.Duration) func(*cell) {
	return func(c *cell) {
		c.startAll()
		c.wait(fault)
		c.spendAfter()
	}
}

// spendAfter waits until nodes are one cluster and some seconds more, in which it spends what is left.
func (c *cell) spendAfter() {
	if c.waitWhole(time.Minute) {
		c.wait(3 * s)
	}
}
