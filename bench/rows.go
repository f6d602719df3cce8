package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"time"

	"github.com/sluice-project/sluice/bench/load"
	"github.com/sluice-project/sluice/bench/report"
	"github.com/sluice-project/sluice/bench/system"
)

// target is the run of the rows: what sluice is to reach, against the echo in the
// same rounds, with the other limiters beside it.
type target struct {
	session
	peers bool
	// scale are the numbers of keys for memory and for the curve over keys.
	scale []int
	// long is for what a short window is too coarse for.
	long time.Duration
}

// usual is how many keys there are where their number does not matter.
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
		if err := group.run(ctx); err != nil {
			return fmt.Errorf("%s: %w", group.name, err)
		}
	}
	fmt.Println()
	if err := report.WriteRows(os.Stdout, t.file.Rows); err != nil {
		return err
	}
	return t.file.Save(t.out)
}

func (t *target) add(r report.Row) { t.file.Rows = append(t.file.Rows, r) }

// started are systems to be stopped together.
type started []*system.System

func (l started) stop() {
	for _, s := range l {
		s.Stop()
	}
}

// lineup starts the echo, sluice with so many nodes, and the others that can have
// so many, filled with the usual keys.
func (t *target) lineup(ctx context.Context, nodes int) (l started, err error) {
	defer func() {
		if err != nil {
			l.stop()
		}
	}()
	names := []string{"echo", "sluice"}
	if t.peers {
		names = append(names, "gubernator")
		if nodes == 1 {
			names = append(names, "ratelimit")
		}
	}
	for _, name := range names {
		s, err := t.start(ctx, name, nodes, usual)
		if errors.Is(err, system.ErrNoRedis) {
			fmt.Println("ratelimit is left out:", err)
			continue
		}
		if err != nil {
			return l, err
		}
		l = append(l, s)
		if name != "echo" {
			if err := t.fill(ctx, s, "allowed", usual, 100); err != nil {
				return l, err
			}
		}
	}
	return l, nil
}

// shape is the usual one.
func shape(nodes, callers, checks int) report.Shape {
	return report.Shape{Nodes: nodes, Callers: callers, Checks: checks, Keys: usual, Distribution: "uniform", Domain: "allowed"}
}

func (l started) contestants() (cs []contestant) {
	for _, s := range l {
		cs = append(cs, unary(s, load.Uniform{N: usual}))
	}
	return cs
}

func (t *target) oneNode(ctx context.Context) error {
	l, err := t.lineup(ctx, 1)
	if err != nil {
		return err
	}
	defer l.stop()
	if err := system.SameSize(ctx, l[0], l[1]); err != nil {
		return err
	}
	for _, c := range []struct {
		checks int
		bound  float64
	}{{1, 0.90}, {100, 0.75}, {1000, 0.75}} {
		cell, err := t.compare(ctx, shape(1, 64, c.checks), l.contestants()...)
		if err != nil {
			return err
		}
		t.versusEcho(cell, fmt.Sprintf("1 node, checks a call: %d, 64 callers", c.checks), c.bound)
	}
	return nil
}

// versusEcho adds sluice's ratio to the echo, and the others' in a note.
func (t *target) versusEcho(cell *report.Cell, work string, bound float64) {
	r := report.AtLeast(work, bound, cell.Series[1].Ratio(&cell.Series[0], report.Checks), "")
	r.Note = "echo " + report.Number(cell.Series[0].Of(report.Checks).Median) + " checks/s"
	for i := 2; i < len(cell.Series); i++ {
		s := &cell.Series[i]
		r.Note += fmt.Sprintf("; %s %s", s.Name, report.Number(s.Ratio(&cell.Series[0], report.Checks).Median))
	}
	t.add(r)
}

func (t *target) threeNodes(ctx context.Context) error {
	l, err := t.lineup(ctx, 3)
	if err != nil {
		return err
	}
	defer l.stop()
	for _, c := range []struct {
		checks int
		bound  float64
	}{{1, 0.65}, {100, 0.45}, {1000, 0.45}} {
		cell, err := t.compare(ctx, shape(3, 64, c.checks), l.contestants()...)
		if err != nil {
			return err
		}
		t.versusEcho(cell, fmt.Sprintf("3 nodes, random node, checks a call: %d, 64 callers", c.checks), c.bound)
		if c.checks == 1 {
			t.add(report.AtMost("3 nodes, 1 check a call, 64 callers: p99 ÷ echo's", 1.6, cell.Series[1].Ratio(&cell.Series[0], report.P99), ""))
		}
	}
	return t.oneCaller(ctx, l)
}

// oneCaller is the time of a check that meets no other.
func (t *target) oneCaller(ctx context.Context, l started) error {
	cs := l.contestants()
	sluice := l[1]
	holders, err := sluice.Holders(ctx, "allowed", t.namesOf(usual))
	if err != nil {
		return err
	}
	local, forwarded := cs[1], cs[1]
	local.name, local.pick, local.node = sluice.Name+", held", load.Placed{Holders: holders, Place: load.Here}, 0
	forwarded.name, forwarded.pick, forwarded.node = sluice.Name+", forwarded", load.Placed{Holders: holders, Place: load.Elsewhere}, 0
	cs = append([]contestant{cs[0], local, forwarded}, cs[2:]...)
	alone := shape(3, 1, 1)
	alone.Note = "sluice's first node is asked"
	cell, err := t.compare(ctx, alone, cs...)
	if err != nil {
		return err
	}
	echo := &cell.Series[0]
	t.add(report.AtMost("1 caller, decided locally: p50 ÷ echo's", 1.15, cell.Series[1].Ratio(echo, report.P50), ""))
	t.add(report.AtMost("1 caller, forwarded: p50 ÷ echo's", 2.2, cell.Series[2].Ratio(echo, report.P50), ""))
	return nil
}

func (t *target) stream(ctx context.Context) error {
	l := started{}
	defer func() { l.stop() }()
	var cs []contestant
	for _, name := range []string{"echo", "sluice"} {
		s, err := t.start(ctx, name, 1, usual)
		if err != nil {
			return err
		}
		l = append(l, s)
		if name == "sluice" {
			if err := t.fill(ctx, s, "allowed", usual, 100); err != nil {
				return err
			}
		}
		stream, err := s.Stream(ctx)
		if err != nil {
			return err
		}
		// The servers outlive the stream, so ending it cannot fail for long.
		defer func() { _ = stream.Close() }()
		if name == "echo" {
			cs = append(cs, unary(s, load.Uniform{N: usual}))
		}
		c := unary(s, load.Uniform{N: usual})
		c.name, c.target = s.Name+", stream", stream
		cs = append(cs, c)
	}
	one := shape(1, 64, 1)
	one.Note = "by CheckStream where it says stream"
	cell, err := t.compare(ctx, one, cs...)
	if err != nil {
		return err
	}
	r := report.AtLeast("CheckStream, single checks of 64 callers in frames, 1 node, ÷ the unary echo's calls/s", 5,
		cell.Series[2].Ratio(&cell.Series[0], report.Checks), "")
	r.Note = "echo by CheckStream: " + report.Number(cell.Series[1].Ratio(&cell.Series[0], report.Checks).Median)
	t.add(r)
	return nil
}
