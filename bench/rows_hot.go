package main

import (
	"context"

	"github.com/sluice-project/sluice/bench/load"
	"github.com/sluice-project/sluice/bench/report"
)

// hot compares one key that everybody asks for with many, and with the echo.
func (t *target) hot(ctx context.Context) error {
	l := started{}
	defer func() { l.stop() }()
	for _, name := range []string{"echo", "sluice"} {
		s, err := t.start(ctx, name, 3, usual)
		if err != nil {
			return err
		}
		l = append(l, s)
	}
	sluice := l[1]
	if err := t.fill(ctx, sluice, "allowed", usual, 100); err != nil {
		return err
	}
	holders, err := sluice.Holders(ctx, "allowed", t.namesOf(usual))
	if err != nil {
		return err
	}
	one := unary(sluice, load.Uniform{N: 1})
	one.name = sluice.Name + ", one key"
	cell, err := t.compare(ctx, shape(3, 64, 1), unary(l[0], load.Uniform{N: usual}), unary(sluice, load.Uniform{N: usual}), one)
	if err != nil {
		return err
	}
	t.add(report.AtLeast("3 nodes, 64 callers: one hot key ÷ uniform keys", 0.95, cell.Series[2].Ratio(&cell.Series[1], report.Checks), ""))

	forwarded := unary(sluice, load.Placed{Holders: holders, Place: load.Elsewhere})
	forwarded.name = sluice.Name + ", forwarded"
	one.name += ", not held"
	for _, c := range []*contestant{&forwarded, &one} {
		c.node = (int(holders[0]) + 1) % 3
	}
	alone := shape(3, 1, 1)
	alone.Note = "one node is asked that does not hold the key"
	cell, err = t.compare(ctx, alone, unary(l[0], load.Uniform{N: usual}), forwarded, one)
	if err != nil {
		return err
	}
	t.add(report.AtMost("1 caller, a hot key that another node holds: p50 ÷ echo's", 1.2, cell.Series[2].Ratio(&cell.Series[0], report.P50), ""))
	return nil
}
