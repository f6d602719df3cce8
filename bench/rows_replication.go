package main

import (
	"context"
	"fmt"

	"github.com/sluice-project/sluice/bench/load"
	"github.com/sluice-project/sluice/bench/report"
)

// replication compares, on one cluster of three, checks of a rule with asynchronous
// replication with those of one without.
func (t *target) replication(ctx context.Context) error {
	s, err := t.bin.Sluice(ctx, 3, 2*usual)
	if err != nil {
		return err
	}
	defer s.Stop()
	var cs []contestant
	for _, domain := range []string{"allowed", "replicated"} {
		if err := t.fill(ctx, s, domain, usual, 100); err != nil {
			return err
		}
		c := unary(s, load.Uniform{N: usual})
		c.name, c.domain = domain, domain
		cs = append(cs, c)
	}
	for _, checks := range []int{1, 100} {
		work := shape(3, 64, checks)
		work.Note = "rules without and with asynchronous replication"
		cell, err := t.compare(ctx, work, cs...)
		if err != nil {
			return err
		}
		bound := 0.90
		t.add(report.AtLeast(fmt.Sprintf("3 nodes, 64 callers, checks a call: %d, async ÷ no replication", checks), bound,
			cell.Series[1].Ratio(&cell.Series[0], report.Checks), ""))
	}
	return nil
}
