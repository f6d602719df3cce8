package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sluicecluster/sluice/bench/process"
	"github.com/sluicecluster/sluice/bench/report"
	"github.com/sluicecluster/sluice/bench/system"
	"github.com/sluicecluster/sluice/internal/load"
)

// target is the run of the rows: sluice's targets, relative to the echo in the same rounds, and the other limiters.
type target struct {
	session
	peers bool
	keys  int           // of the rows keys, join and snapshot
	long  time.Duration // the window of coarse figures
}

// usual is the number of keys where it does not matter.
const usual = 100_000

func rows(ctx context.Context, args []string) (err error) {
	t := target{long: 15 * time.Second}
	f := flag.NewFlagSet("rows", flag.ContinueOnError)
	t.register(f)
	only := f.String("only", "", "`pattern` of the groups to run")
	quick := f.Bool("quick", false, "one short round of everything, to see that it runs")
	f.BoolVar(&t.peers, "peers", true, "run the other limiters too")
	f.IntVar(&t.keys, "keys", 0, "`number` of keys of the groups keys, join and snapshot (default 10000000, or 100000 with -quick)")
	if err := f.Parse(args); err != nil {
		return err
	}
	if *quick {
		t.rounds, t.warmup, t.window, t.long = 1, 100*time.Millisecond, 500*time.Millisecond, 500*time.Millisecond
		t.keys = cmp.Or(t.keys, 100_000)
	}
	if t.keys = cmp.Or(t.keys, 10_000_000); t.keys < 10_000 || t.keys > load.MaxKeys {
		return fmt.Errorf("-keys %d is not a number from 10000 to %d", t.keys, load.MaxKeys)
	}
	pattern, err := regexp.Compile(*only)
	if err != nil {
		return fmt.Errorf("-only: %w", err)
	}
	if err := t.open(ctx, "rows"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, t.close()) }()
	var tables strings.Builder
	defer func() { fmt.Print(tables.String()) }() // also those before an error
	for _, group := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"one-node", t.oneNode},
		{"three-nodes", t.threeNodes},
		{"redis", t.redis},
		{"tls", t.tls},
		{"stream", t.stream},
		{"sdk", t.sdk},
		{"keys", t.manyKeys},
		{"more-nodes", t.moreNodes},
		{"hot", t.hot},
		{"tracing", t.tracing},
		{"telemetry", t.telemetry},
		{"join", t.joining},
		{"snapshot", t.snapshot},
	} {
		if !pattern.MatchString(group.name) {
			continue
		}
		before := len(t.file.Rows)
		t.flags = nil
		err := group.run(ctx)
		t.stop()
		if errors.Is(err, system.ErrNoRedis) {
			fmt.Fprintf(&tables, "\n%s: left out: %v\n", group.name, err)
			continue
		}
		if err != nil {
			return fmt.Errorf("%s: %w", group.name, err)
		}
		fmt.Fprintf(&tables, "\n%s. Flags, beside names, addresses and rules: %s\n\n", group.name, strings.Join(t.flags, "; "))
		if err := report.WriteRows(&tables, t.file.Rows[before:]); err != nil {
			return err
		}
	}
	return report.Save(t.out, &t.file)
}

func (t *target) add(r report.Row) { t.file.Rows = append(t.file.Rows, r) }

// lineup starts systems, fills them with the usual keys, and returns them for unary calls. A cluster of sluice is followed by
// itself with rules without replicas. It leaves ratelimit out without Redis.
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
		if spec.System == "sluice" && spec.Nodes > 1 {
			cs = append(cs, c.unreplicated())
			if err := t.fill(ctx, c.unreplicated(), usual, 100); err != nil {
				return nil, err
			}
		}
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
	if cs, err = t.withGubernatorAPI(ctx, cs, 2); err != nil {
		return err
	}
	_, err = t.byChecks(ctx, 1, "1 node", [3]float64{0.90, 0.90, 0.90}, cs)
	return err
}

// withGubernatorAPI inserts at i the first sluice of cs, asked by gubernator's API.
func (t *target) withGubernatorAPI(ctx context.Context, cs []contestant, i int) ([]contestant, error) {
	c := cs[1].by("gubernator", "")
	c.name = "sluice by gubernator's API"
	return slices.Insert(cs, i, c), t.fill(ctx, c, usual, 100)
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

// versusEcho compares cs, the echo and sluice first, and adds sluice's ratio to the echo, with and without replicas if it is a
// cluster, and the others' in a note.
func (t *target) versusEcho(ctx context.Context, shape report.Shape, work string, bound float64, cs []contestant) (*report.Cell, error) {
	cell, err := t.compare(ctx, shape, cs...)
	if err != nil {
		return nil, err
	}
	r, others := report.AtLeast(work, bound, cell.Ratio(1, 0, report.Checks)), 2
	if shape.Nodes > 1 {
		r, others = r.Beside(cell.Ratio(2, 0, report.Checks)), 3
	}
	r.Note = "echo " + report.Number(cell.Series[0].Of(report.Checks).Median) + " checks/s"
	for i := range cell.Series[others:] {
		other := cell.Ratio(others+i, 0, report.Checks)
		r.Note += fmt.Sprintf("; %s %.2f (%.2f to %.2f)", cell.Series[others+i].Name, other.Median, other.Low, other.High)
	}
	t.add(r)
	if shape.Nodes > 1 {
		t.add(report.AtLeast(work+", ÷ without replicas", 0.90, cell.Ratio(1, 2, report.Checks)))
	}
	return cell, nil
}

func (t *target) threeNodes(ctx context.Context) error {
	cs, err := t.lineup(ctx, t.all(3)...)
	if err != nil {
		return err
	}
	if cs, err = t.withGubernatorAPI(ctx, cs, 3); err != nil {
		return err
	}
	cell, err := t.byChecks(ctx, 3, "3 nodes, random node", [3]float64{0.70, 0.60, 0.60}, cs)
	if err != nil {
		return err
	}
	t.add(report.AtMost("3 nodes, 1 check a call, 64 callers: p99 ÷ echo's", 1.6, cell.Ratio(1, 0, report.P99), "").
		Beside(cell.Ratio(2, 0, report.P99)))
	return t.oneCaller(ctx, cs)
}

// oneCaller measures the latency of a check without others.
func (t *target) oneCaller(ctx context.Context, cs []contestant) error {
	list := cs[:1:1]
	for _, c := range cs[1:3] {
		owners, err := c.system.Owners(ctx, c.domain, usual)
		if err != nil {
			return err
		}
		c.asked = []int{0}
		list = append(list, c.only(owners, true, "owned"), c.only(owners, false, "forwarded"))
	}
	alone := shape(3, 1, 1)
	alone.Note = "sluice's first node is asked"
	cell, err := t.compare(ctx, alone, append(list, cs[3:]...)...)
	if err != nil {
		return err
	}
	t.add(report.AtMost("1 caller, decided locally: p50 ÷ echo's", 1.15, cell.Ratio(1, 0, report.P50), "").Beside(cell.Ratio(3, 0, report.P50)))
	t.add(report.AtMost("1 caller, forwarded: p50 ÷ echo's", 2.2, cell.Ratio(2, 0, report.P50), "").Beside(cell.Ratio(4, 0, report.P50)))
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
		for i := range cs[1:] {
			cs[1+i] = cs[1+i].by(system.SDK, "SDK")
		}
		cell, err := t.compare(ctx, work, cs...)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("Go client, single checks of 64 goroutines, %s, ÷ the unary echo's calls/s", report.Count(nodes, "node"))
		r := report.AtLeast(what, 5, cell.Ratio(1, 0, report.Checks))
		if nodes > 1 {
			r = r.Beside(cell.Ratio(2, 0, report.Checks))
		}
		t.add(r)
		t.stop()
	}
	return nil
}

// redis compares single checks by the Go client and the gRPC API of one node with limiters on a Redis.
func (t *target) redis(ctx context.Context) error {
	cs, err := t.lineup(ctx, echo, sluice(1))
	if err != nil {
		return err
	}
	store, err := t.filled(ctx, system.Spec{System: "redis"}, "allowed", usual, 100)
	if err != nil {
		return err
	}
	lua := store.by(system.Rueidis, "Lua by rueidis")
	if err := t.fill(ctx, lua, usual, 100); err != nil {
		return err
	}
	store.name += ", redis_rate"
	cs = append(cs, cs[1].by(system.SDK, "Go client"), store, lua)
	cs[1].name += ", gRPC API"
	for _, callers := range []int{1, 64} {
		work := shape(1, callers, 1)
		work.Note = "APIs and clients as the name says"
		cell, err := t.compare(ctx, work, cs...)
		if err != nil {
			return err
		}
		for of := 1; of < 3; of++ {
			for base := 3; base < 5; base++ {
				what := fmt.Sprintf("%s ÷ %s, checks/s", cell.Series[of].Name, cell.Series[base].Name)
				r := report.Told(fmt.Sprintf("%s, %s", report.Count(callers, "caller"), what), cell.Ratio(of, base, report.Checks), "")
				p50, p99 := cell.Ratio(of, base, report.P50), cell.Ratio(of, base, report.P99)
				r.Note = fmt.Sprintf("p50 %.2f (%.2f to %.2f), p99 %.2f (%.2f to %.2f)", p50.Median, p50.Low, p50.High, p99.Median, p99.Low, p99.High)
				t.add(r)
			}
		}
		for i := range cell.Series[1:] {
			t.add(report.Told(fmt.Sprintf("%s, %s ÷ the echo, checks/s", report.Count(callers, "caller"), cell.Series[1+i].Name), cell.Ratio(1+i, 0, report.Checks), ""))
		}
	}
	plain := cs[2].by(system.NoLeases, "")
	plain.name = cs[2].name + " without leases"
	return t.leases(ctx, []contestant{cs[2], plain, cs[3], cs[4]})
}

// leases compares checks of one key, which the first of cs decides from leases.
func (t *target) leases(ctx context.Context, cs []contestant) error {
	for i := range cs {
		cs[i].keys = 1
	}
	work := shape(1, 1, 1)
	work.Keys, work.Note = 1, "one hot key"
	cell, err := t.compare(ctx, work, cs...)
	if err != nil {
		return err
	}
	for i, s := range cell.Series {
		r := report.Told(fmt.Sprintf("one hot key, 1 caller, %s: checks/s", s.Name), s.Of(report.Checks), "")
		if i > 0 {
			times := cell.Ratio(0, i, report.Checks)
			r.Note = fmt.Sprintf("with leases %.0f times as many (%.0f to %.0f)", times.Median, times.Low, times.High)
		}
		t.add(r)
	}
	return nil
}

// hot compares one key of all callers with many keys, and with the echo.
func (t *target) hot(ctx context.Context) error {
	cs, err := t.lineup(ctx, echo, sluice(3))
	if err != nil {
		return err
	}
	busy, alone := cs[:1:1], cs[:1:1]
	for _, many := range cs[1:] {
		owners, err := many.system.Owners(ctx, many.domain, usual)
		if err != nil {
			return err
		}
		one := many
		one.keys, one.name = 1, one.name+", one key"
		busy = append(busy, many, one)
		one.name += ", not owned"
		one.asked = []int{(int(owners[0]) + 1) % 3}
		many.asked = one.asked
		alone = append(alone, many.only(owners, false, "forwarded"), one)
	}
	cell, err := t.compare(ctx, shape(3, 64, 1), busy...)
	if err != nil {
		return err
	}
	t.add(report.AtLeast("3 nodes, 64 callers: one hot key ÷ uniform keys", 0.95, cell.Ratio(2, 1, report.Checks)).Beside(cell.Ratio(4, 3, report.Checks)))
	t.add(report.Told("3 nodes, 64 callers: one hot key ÷ the echo", cell.Ratio(2, 0, report.Checks), "").Beside(cell.Ratio(4, 0, report.Checks)))

	work := shape(3, 1, 1)
	work.Note = "one node is asked that does not own the key"
	cell, err = t.compare(ctx, work, alone...)
	if err != nil {
		return err
	}
	t.add(report.AtMost("1 caller, a hot key that another node holds: p50 ÷ echo's", 1.2, cell.Ratio(2, 0, report.P50), "").Beside(cell.Ratio(4, 0, report.P50)))
	return nil
}

// manyKeys runs a node for each number of keys side by side: memory, the garbage collector's share and the fall of
// throughput.
func (t *target) manyKeys(ctx context.Context) error {
	scale := []int{t.keys / 1000, t.keys / 100, t.keys / 10, t.keys}
	var cs []contestant
	var empty []int64
	for _, n := range scale {
		s, err := t.start(ctx, system.Spec{System: "sluice", Name: fmt.Sprintf("sluice, %s keys", report.Number(float64(n))), Keys: n})
		if err != nil {
			return err
		}
		u, err := process.Total(s.Processes)
		if err != nil {
			return err
		}
		c := unary(s)
		c.keys, c.domain = n, "allowed"
		cs, empty = append(cs, c), append(empty, u.Resident)
		if err := t.fill(ctx, c, n, 1000); err != nil {
			return err
		}
	}
	var work report.Shape
	for _, checks := range []int{1, 100} { // the last one is used below
		work = shape(1, 64, checks)
		work.Keys, work.Note = t.keys, "keys as the name says"
		cell, err := t.compare(ctx, work, cs...)
		if err != nil {
			return err
		}
		for i := range scale {
			what := fmt.Sprintf("%s keys, checks a call: %d, ", report.Number(float64(scale[i])), checks)
			t.add(report.Told(what+"checks/s", cell.Series[i].Of(report.Checks), ""))
			if i == 0 {
				continue
			}
			r := report.Told(what+"÷ "+report.Number(float64(scale[0]))+" keys", cell.Ratio(i, 0, report.Checks), "")
			if i == len(scale)-1 {
				r = report.AtLeast(r.Work, 0.80, r.Got)
			}
			t.add(r)
		}
	}

	for i, n := range scale[2:] {
		i += 2
		// A cycle of the garbage collector is longer than a round.
		long, err := t.measure(ctx, work, cs[i], t.long)
		if err != nil {
			return err
		}
		what := report.Number(float64(n)) + " keys, under load: "
		t.add(report.Told(what+"the garbage collector's share of the node's CPU", report.SpreadOf([]float64{100 * long.GCShare}), "%"))
		// After the load, when the heap has grown to the garbage collector's goal.
		u, err := process.Total(cs[i].system.Processes)
		if err != nil {
			return err
		}
		m, err := system.Metrics(ctx, cs[i].system.HTTP[0])
		if err != nil {
			return err
		}
		if m["sluice_counters"] < float64(n) || m["sluice_counters_evicted_live_total"] > 0 {
			return fmt.Errorf("%v counters for %d keys, %v evicted", m["sluice_counters"], n, m["sluice_counters_evicted_live_total"])
		}
		each := func(bytes int64) report.Spread { return report.SpreadOf([]float64{float64(bytes) / float64(n)}) }
		r := report.Told(what+"resident memory of the whole process per key", each(u.Resident), "bytes")
		r.Note = fmt.Sprintf("%.0f counters, none evicted", m["sluice_counters"])
		t.add(r)
		t.add(report.AtMost(what+"the same less that of the node without keys", 110, each(u.Resident-empty[i]), "bytes"))
	}
	return nil
}
