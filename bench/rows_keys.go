package main

import (
	"context"
	"fmt"

	"github.com/sluice-project/sluice/bench/process"
	"github.com/sluice-project/sluice/bench/report"
	"github.com/sluice-project/sluice/bench/system"
)

// manyKeys has a node for each number of keys, and all stand side by side: memory, the
// collector's share and the fall of throughput.
func (t *target) manyKeys(ctx context.Context) error {
	var cs []contestant
	for _, n := range t.scale {
		s, err := t.start(ctx, system.Spec{System: "sluice", Name: fmt.Sprintf("sluice, %s keys", report.Number(float64(n))), Keys: n})
		if err != nil {
			return err
		}
		if err := t.fill(ctx, s, "allowed", n, 1000); err != nil {
			return err
		}
		cs = append(cs, contestant{name: s.Name, system: s, keys: n})
	}
	largest := t.scale[len(t.scale)-1]
	var work report.Shape
	for _, checks := range []int{1, 100} { // the last is what is looked at below
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
		first, last := &cell.Series[0], &cell.Series[len(cell.Series)-1]
		what := fmt.Sprintf("%s → %s keys, checks/s that are left, checks a call: %d", report.Number(float64(t.scale[0])), report.Number(float64(largest)), checks)
		t.add(report.AtLeast(what, 0.65, last.Ratio(first, report.Checks), ""))
	}

	// A cycle of the collector is longer than a round.
	long, err := t.measure(ctx, work, cs[len(cs)-1], t.long)
	if err != nil {
		return err
	}
	share := 100 * long.GCShare
	t.add(report.Told(fmt.Sprintf("the collector's share of CPU at %s keys under load", report.Number(float64(largest))),
		report.SpreadOf([]float64{share}), "%"))
	for i, n := range t.scale {
		if n < t.scale[len(t.scale)-2] {
			continue
		}
		// After the load, when the heap has had time to grow to the collector's goal.
		u, err := process.Total(cs[i].system.Processes)
		if err != nil {
			return err
		}
		t.add(report.AtMost(fmt.Sprintf("resident memory per key at %s keys, after load", report.Number(float64(n))), 320,
			report.SpreadOf([]float64{float64(u.Resident) / float64(n)}), "bytes"))
	}
	return nil
}
