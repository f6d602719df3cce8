package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/report"
	"github.com/sluice-project/sluice/bench/system"
)

// target is the run of the rows: sluice's targets, relative to the echo in the same rounds, and the other limiters.
type target struct {
	session
	peers bool
	scale []int         // the numbers of keys for memory and for the curve over keys
	long  time.Duration // the window of coarse figures
}

// usual is the number of keys where it does not matter.
const usual = 100_000

func rows(ctx context.Context, args []string) (err error) {
	t := target{scale: []int{10_000, 100_000, 1_000_000, 10_000_000}, long: 15 * time.Second}
	f := flag.NewFlagSet("rows", flag.ContinueOnError)
	t.register(f)
	only := f.String("only", "", "`pattern` of the groups to run")
	quick := f.Bool("quick", false, "one short round of everything, to see that it runs")
	f.BoolVar(&t.peers, "peers", true, "run the other limiters too")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *quick {
		t.rounds, t.warmup, t.window, t.long = 1, 50*time.Millisecond, 200*time.Millisecond, 500*time.Millisecond
		t.scale = []int{1_000, 3_000, 10_000, 30_000}
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if err := t.open(ctx, "rows"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	for _, group := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"one-node", t.oneNode},
		{"three-nodes", t.threeNodes},
		{"tls", t.tls},
		{"stream", t.stream},
		{"sdk", t.sdk},
		{"keys", t.manyKeys},
		{"more-nodes", t.moreNodes},
		{"replication", t.replication},
		{"hot", t.hot},
		{"tracing", t.tracing},
		{"telemetry", t.telemetry},
		{"join", t.joining},
	} {
		if !pattern.MatchString(group.name) {
			continue
		}
		err := group.run(ctx)
		t.stop()
		if err != nil {
			return fmt.Errorf("%s: %w", group.name, err)
		}
	}
	fmt.Println()
	if err := report.WriteRows(os.Stdout, t.file.Rows); err != nil {
		return err
	}
	return report.Save(t.out, &t.file)
}

func (t *target) add(r report.Row) { t.file.Rows = append(t.file.Rows, r) }

// lineup starts systems, fills them with the usual keys, and returns them for unary calls. It leaves ratelimit out without
// Redis.
func (t *target) lineup(ctx context.Context, specs ...system.Spec) (cs []contestant, err error) {
	for _, spec := range specs {
		c, err := t.filled(ctx, spec, "allowed", usual, 100)
		if errors.Is(err, system.ErrNoRedis) {
			fmt.Println("left out:", err)
			continue
		}
		if err != nil {
			return nil, err
		}
		cs = append(cs, c)
	}
	return cs, nil
}

var echo = system.Spec{System: "echo"}

func sluice(nodes int) system.Spec { return system.Spec{System: "sluice", Nodes: nodes} }

// all is the echo, sluice with so many nodes, and the others that can have so many.
func (t *target) all(nodes int) []system.Spec {
	specs := []system.Spec{echo, sluice(nodes)}
	if t.peers {
		specs = append(specs, system.Spec{System: "gubernator", Nodes: nodes})
		if nodes == 1 {
			specs = append(specs, system.Spec{System: "ratelimit"})
		}
	}
	return specs
}

// shape is the usual one.
func shape(nodes, callers, checks int) report.Shape {
	return report.Shape{Nodes: nodes, Callers: callers, Checks: checks, Keys: usual, Distribution: "uniform", Domain: "allowed"}
}

func (t *target) oneNode(ctx context.Context) error {
	cs, err := t.lineup(ctx, t.all(1)...)
	if err != nil {
		return err
	}
	if err := system.SameSize(ctx, cs[0].system, cs[1].system); err != nil {
		return err
	}
	_, err = t.byChecks(ctx, 1, "1 node", [3]float64{0.90, 0.75, 0.75}, cs)
	return err
}

// byChecks compares cs with 1, 100 and 1000 checks a call, each with its bound, and returns the cell of single checks.
func (t *target) byChecks(ctx context.Context, nodes int, work string, bounds [3]float64, cs []contestant) (single *report.Cell, err error) {
	for i, checks := range []int{1, 100, 1000} {
		what := fmt.Sprintf("%s, checks a call: %d, 64 callers", work, checks)
		cell, err := t.versusEcho(ctx, shape(nodes, 64, checks), what, bounds[i], cs)
		if err != nil {
			return nil, err
		}
		if checks == 1 {
			single = cell
		}
	}
	return single, nil
}

// versusEcho compares cs, the echo and sluice first, and adds sluice's ratio to the echo, and the others' in a note.
func (t *target) versusEcho(ctx context.Context, shape report.Shape, work string, bound float64, cs []contestant) (*report.Cell, error) {
	cell, err := t.compare(ctx, shape, cs...)
	if err != nil {
		return nil, err
	}
	r := report.AtLeast(work, bound, cell.Ratio(1, 0, report.Checks))
	r.Note = "echo " + report.Number(cell.Series[0].Of(report.Checks).Median) + " checks/s"
	for i := 2; i < len(cell.Series); i++ {
		s := &cell.Series[i]
		r.Note += fmt.Sprintf("; %s %s", s.Name, report.Number(s.Ratio(&cell.Series[0], report.Checks).Median))
	}
	t.add(r)
	return cell, nil
}

func (t *target) threeNodes(ctx context.Context) error {
	cs, err := t.lineup(ctx, t.all(3)...)
	if err != nil {
		return err
	}
	cell, err := t.byChecks(ctx, 3, "3 nodes, random node", [3]float64{0.65, 0.45, 0.45}, cs)
	if err != nil {
		return err
	}
	t.add(report.AtMost("3 nodes, 1 check a call, 64 callers: p99 ÷ echo's", 1.6, cell.Ratio(1, 0, report.P99), ""))
	return t.oneCaller(ctx, cs)
}

// oneCaller measures the latency of a check without others.
func (t *target) oneCaller(ctx context.Context, cs []contestant) error {
	first := cs[1]
	first.asked = []int{0}
	owners, err := first.system.Owners(ctx, "allowed", usual)
	if err != nil {
		return err
	}
	cs = append([]contestant{cs[0], first.only(owners, true, "owned"), first.only(owners, false, "forwarded")}, cs[2:]...)
	alone := shape(3, 1, 1)
	alone.Note = "sluice's first node is asked"
	cell, err := t.compare(ctx, alone, cs...)
	if err != nil {
		return err
	}
	t.add(report.AtMost("1 caller, decided locally: p50 ÷ echo's", 1.15, cell.Ratio(1, 0, report.P50), ""))
	t.add(report.AtMost("1 caller, forwarded: p50 ÷ echo's", 2.2, cell.Ratio(2, 0, report.P50), ""))
	return nil
}

// tls compares single checks with the echo, both over TLS.
func (t *target) tls(ctx context.Context) error {
	cs, err := t.lineup(ctx, system.Spec{System: "echo", TLS: true}, system.Spec{System: "sluice", TLS: true})
	if err != nil {
		return err
	}
	work := shape(1, 64, 1)
	work.Note = "over TLS"
	_, err = t.versusEcho(ctx, work, "1 node, TLS, checks a call: 1, 64 callers, ÷ the echo with TLS", 0.90, cs)
	return err
}

func (t *target) stream(ctx context.Context) error {
	cs, err := t.lineup(ctx, echo, sluice(1))
	if err != nil {
		return err
	}
	one := shape(1, 64, 1)
	one.Note = "by CheckStream where it says stream"
	cell, err := t.compare(ctx, one, cs[0], cs[0].by(system.Frames, "stream"), cs[1].by(system.Frames, "stream"))
	if err != nil {
		return err
	}
	r := report.AtLeast("CheckStream, single checks of 64 callers in frames, 1 node, ÷ the unary echo's calls/s", 5,
		cell.Ratio(2, 0, report.Checks))
	r.Note = "echo by CheckStream: " + report.Number(cell.Ratio(1, 0, report.Checks).Median)
	t.add(r)
	return nil
}

// sdk compares single checks of 64 goroutines through the Go client, which packs them into frames to the owner, with unary
// calls of the echo.
func (t *target) sdk(ctx context.Context) error {
	for _, nodes := range []int{1, 3} {
		cs, err := t.lineup(ctx, echo, sluice(nodes))
		if err != nil {
			return err
		}
		work := shape(nodes, 64, 1)
		work.Note = "by the Go client where it says SDK"
		cell, err := t.compare(ctx, work, cs[0], cs[1].by(system.SDK, "SDK"))
		if err != nil {
			return err
		}
		what := fmt.Sprintf("Go client, single checks of 64 goroutines, %s, ÷ the unary echo's calls/s", report.Count(nodes, "node"))
		t.add(report.AtLeast(what, 5, cell.Ratio(1, 0, report.Checks)))
		t.stop()
	}
	return nil
}

// replication compares, on one cluster of three, checks of a rule with asynchronous replication with those of one without.
func (t *target) replication(ctx context.Context) error {
	s, err := t.start(ctx, system.Spec{System: "sluice", Nodes: 3, Keys: 2 * usual})
	if err != nil {
		return err
	}
	var cs []contestant
	for _, domain := range []string{"allowed", "replicated"} {
		if err := t.fill(ctx, s, domain, usual, 100); err != nil {
			return err
		}
		cs = append(cs, contestant{name: domain, system: s, domain: domain})
	}
	for _, checks := range []int{1, 100} {
		work := shape(3, 64, checks)
		work.Note = "rules without and with asynchronous replication"
		cell, err := t.compare(ctx, work, cs...)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("3 nodes, 64 callers, checks a call: %d, async ÷ no replication", checks)
		t.add(report.AtLeast(what, 0.90, cell.Ratio(1, 0, report.Checks)))
	}
	return nil
}

// hot compares one key of all callers with many keys, and with the echo.
func (t *target) hot(ctx context.Context) error {
	cs, err := t.lineup(ctx, echo, sluice(3))
	if err != nil {
		return err
	}
	bare, many, one := cs[0], cs[1], cs[1]
	owners, err := many.system.Owners(ctx, "allowed", usual)
	if err != nil {
		return err
	}
	one.keys, one.name = 1, one.name+", one key"
	cell, err := t.compare(ctx, shape(3, 64, 1), bare, many, one)
	if err != nil {
		return err
	}
	t.add(report.AtLeast("3 nodes, 64 callers: one hot key ÷ uniform keys", 0.95, cell.Ratio(2, 1, report.Checks)))

	one.name += ", not owned"
	one.asked = []int{(int(owners[0]) + 1) % 3}
	many.asked = one.asked
	alone := shape(3, 1, 1)
	alone.Note = "one node is asked that does not hold the key"
	cell, err = t.compare(ctx, alone, bare, many.only(owners, false, "forwarded"), one)
	if err != nil {
		return err
	}
	t.add(report.AtMost("1 caller, a hot key that another node holds: p50 ÷ echo's", 1.2, cell.Ratio(2, 0, report.P50), ""))
	return nil
}

// manyKeys runs a node for each number of keys side by side: memory, the garbage collector's share and the fall of
// throughput.
func (t *target) manyKeys(ctx context.Context) error {
	var cs []contestant
	for _, n := range t.scale {
		name := fmt.Sprintf("sluice, %s keys", report.Number(float64(n)))
		c, err := t.filled(ctx, system.Spec{System: "sluice", Name: name, Keys: n}, "allowed", n, 1000)
		if err != nil {
			return err
		}
		c.keys = n
		cs = append(cs, c)
	}
	largest := t.scale[len(t.scale)-1]
	var work report.Shape
	for _, checks := range []int{1, 100} { // the last one is used below
		work = shape(1, 64, checks)
		work.Keys, work.Note = largest, "keys as the name says"
		list := cs
		if checks == 1 {
			list = []contestant{cs[0], cs[len(cs)-1]}
		}
		cell, err := t.compare(ctx, work, list...)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("%s → %s keys, checks/s that are left, checks a call: %d", report.Number(float64(t.scale[0])), report.Number(float64(largest)), checks)
		t.add(report.AtLeast(what, 0.65, cell.Ratio(len(cell.Series)-1, 0, report.Checks)))
	}

	// A cycle of the garbage collector is longer than a round.
	long, err := t.measure(ctx, work, cs[len(cs)-1], t.long)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("the collector's share of CPU at %s keys under load", report.Number(float64(largest)))
	t.add(report.Told(what, report.SpreadOf([]float64{100 * long.GCShare}), "%"))
	for i, n := range t.scale {
		if n < t.scale[len(t.scale)-2] {
			continue
		}
		// After the load, when the heap has grown to the garbage collector's goal.
		u, err := process.Total(cs[i].system.Processes)
		if err != nil {
			return err
		}
		t.add(report.AtMost(fmt.Sprintf("resident memory per key at %s keys, after load", report.Number(float64(n))), 320,
			report.SpreadOf([]float64{float64(u.Resident) / float64(n)}), "bytes"))
	}
	return nil
}
