package main

import (
	"context"
	"fmt"
	"time"

	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/report"
	"github.com/sluice-project/sluice/bench/system"
)

// moreNodes compares three nodes with nine: first nine that do nothing, then both
// clusters with checks that are all forwarded, and as many echoes that know nothing of each other: what these
// cost more, nine processes cost more that share two cores.
func (t *target) moreNodes(ctx context.Context) error {
	nine, err := t.start(ctx, sluice(9))
	if err != nil {
		return err
	}
	idle, err := t.idle(ctx, nine.Processes)
	if err != nil {
		return err
	}
	r := report.AtMost("an idle node of nine", 2, idle, "% of a core")
	// The spread is over the nodes, and it is the worst that counts.
	r.Met = idle.High <= 2
	t.add(r)

	three, err := t.start(ctx, sluice(3))
	if err != nil {
		return err
	}
	var cs []contestant
	for _, s := range []*system.System{three, nine} {
		if err := t.fill(ctx, s, "allowed", usual, 100); err != nil {
			return err
		}
		owners, err := s.Owners(ctx, "allowed", usual)
		if err != nil {
			return err
		}
		c := unary(s).only(owners, false, "forwarded")
		c.name, c.nodes = s.Name, s.Nodes()
		cs = append(cs, c)
	}
	for _, n := range []int{3, 9} {
		s, err := t.start(ctx, system.Spec{System: "echo", Nodes: n})
		if err != nil {
			return err
		}
		cs = append(cs, contestant{name: s.Name, system: s, nodes: n})
	}
	for _, checks := range []int{1, 100} {
		work := shape(3, 64, checks)
		work.Note = "nodes as the name says, all checks forwarded"
		cell, err := t.compare(ctx, work, cs...)
		if err != nil {
			return err
		}
		r := report.AtMost(fmt.Sprintf("CPU seconds per million forwarded checks, %d a call, 9 nodes ÷ 3 nodes", checks), 1.25,
			cell.Series[1].Ratio(&cell.Series[0], report.ServerCPU), "")
		r.Note = fmt.Sprintf("%s and %s s", report.Number(cell.Series[0].Of(report.ServerCPU).Median), report.Number(cell.Series[1].Of(report.ServerCPU).Median))
		t.add(r)
		ours, bare := cell.Series[1].Over(&cell.Series[0], report.ServerCPU), cell.Series[3].Over(&cell.Series[2], report.ServerCPU)
		for i := range ours {
			ours[i] /= bare[i]
		}
		t.add(report.Told(fmt.Sprintf("the echo's, %d a call, 9 processes ÷ 3 processes", checks), report.SpreadOf(bare), ""))
		t.add(report.Told("the one ÷ the other", report.SpreadOf(ours), ""))
	}
	return nil
}

// idle returns the processes' use of a core in percent while no checks are sent.
func (t *target) idle(ctx context.Context, ps []*process.Process) (report.Spread, error) {
	var cpu [2][]time.Duration
	for i := range cpu {
		// Joining is over; what it left to do is done in a moment.
		if err := pause(ctx, []time.Duration{t.long / 5, t.long}[i]); err != nil {
			return report.Spread{}, err
		}
		for _, p := range ps {
			u, err := p.Usage()
			if err != nil {
				return report.Spread{}, err
			}
			cpu[i] = append(cpu[i], u.CPU)
		}
	}
	var shares []float64
	for i := range ps {
		shares = append(shares, 100*(cpu[1][i]-cpu[0][i]).Seconds()/t.long.Seconds())
	}
	return report.SpreadOf(shares), nil
}
